"""One gradient step, shared by everything that learns."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

from randq.packing import Packing
from randq.types import Array, PyTree, Scalar

T = TypeVar("T")

LARGE = 2**17
"""An array with more numbers than this is updated where it is."""


def packed(optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimiser that takes small arrays as one: with dozens of them most of a program would be
    the optimiser. Large ones stay alone, as most of the time would go to copying them."""

    def pack(tree: PyTree) -> list[Array]:
        return Packing(tree, LARGE).pack(tree)

    def update(
        gradient: PyTree, state: optax.OptState, params: PyTree | None = None
    ) -> tuple[Any, optax.OptState]:
        old = None if params is None else pack(params)
        new, state = optimiser.update(pack(gradient), state, old)
        return Packing(gradient, LARGE).unpack(list(new)), state

    return optax.GradientTransformation(lambda params: optimiser.init(pack(params)), update)


def norm(gradient: PyTree) -> Scalar:
    """Its Euclidean length."""
    parts = [jnp.sum(x * x) for x in Packing(gradient, LARGE).pack(gradient)]
    return jnp.sqrt(jnp.sum(jnp.stack(parts)))


def descend(
    optimiser: optax.GradientTransformation, gradient: T, params: T, state: optax.OptState
) -> tuple[T, optax.OptState]:
    """New parameters and optimiser state."""
    # Optax mixes dtypes in its bias corrections; code of ours is run under strict promotion.
    with jax.numpy_dtype_promotion("standard"):
        update, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, update), state
