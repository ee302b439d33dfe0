"""One gradient step, shared by everything that learns."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

from randq.large import LARGE, total
from randq.packing import Packing
from randq.types import Array, PyTree, Scalar

T = TypeVar("T")


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
    return _norm(Packing(gradient, LARGE).pack(gradient))


def _norm(arrays: list[Array]) -> Scalar:
    return jnp.sqrt(jnp.sum(jnp.stack([total(x * x) for x in arrays])))


def checked(max_norm: float | None) -> optax.GradientTransformation:
    """Scales a gradient down to a norm, and to nothing where that is not finite, so that nothing
    that was learnt is lost."""

    def update(gradient: list[Array], params: list[Array] | None) -> list[Array]:
        # One pass over the numbers tells both; `norm` of the same gradient is the same pass.
        size = _norm(gradient)
        sound = jnp.isfinite(size)

        def scaled(x: Array) -> Array:
            if max_norm is not None:
                x = jnp.where(size < max_norm, x, x / size * max_norm)
            return jnp.where(sound, x, 0)

        return [scaled(x) for x in gradient]

    return optax.stateless(update)


def descend(
    optimiser: optax.GradientTransformation, gradient: T, params: T, state: optax.OptState
) -> tuple[T, optax.OptState]:
    """New parameters and optimiser state."""
    # Optax mixes dtypes in its bias corrections; code of ours is run under strict promotion.
    with jax.numpy_dtype_promotion("standard"):
        update, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, update), state
