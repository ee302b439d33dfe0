"""One gradient step, shared by everything that learns.

Small arrays are taken as one: with dozens of them most of a program would be the optimiser. Large
ones stay alone, as most of the time would go to copying them.
"""

from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax

from randq.large import total
from randq.packing import Packing
from randq.types import Array, PyTree, Scalar

T = TypeVar("T")

Optimiser: TypeAlias = optax.GradientTransformationExtraArgs
"""One that is told the `value` of the loss too."""


def begin(optimiser: optax.GradientTransformation, params: PyTree) -> optax.OptState:
    """The state of an optimiser before the first step."""
    return optimiser.init(Packing(params).pack(params))


def norm(gradient: PyTree) -> Scalar:
    """Its Euclidean length."""
    return _norm(Packing(gradient).pack(gradient))


def _norm(arrays: list[Array]) -> Scalar:
    return jnp.sqrt(jnp.sum(jnp.stack([total(x * x) for x in arrays])))


def checked(max_norm: float | None) -> Optimiser:
    """Scales a gradient down to a norm, and to nothing where that or the loss is not finite, so
    that nothing that was learnt is lost."""

    def update(
        gradient: list[Array],
        state: optax.OptState,
        params: list[Array] | None = None,
        *,
        value: Scalar,
        **_: Any,
    ) -> tuple[list[Array], optax.OptState]:
        # One pass over the numbers tells both; `norm` of the same gradient is the same pass. That
        # the loss has a say has XLA know that all is read before it is written: it copies nothing.
        size = _norm(gradient)
        sound = jnp.isfinite(size) & jnp.isfinite(value)
        factor = 1 if max_norm is None else max_norm / jnp.maximum(size, max_norm)
        return [jnp.where(sound, x * factor, 0) for x in gradient], state

    return Optimiser(lambda params: optax.EmptyState(), update)


def descend(
    optimiser: optax.GradientTransformation,
    gradient: T,
    value: Scalar,
    params: T,
    state: optax.OptState,
) -> tuple[T, optax.OptState]:
    """New parameters and optimiser state, by the gradient of a loss that has this value."""
    optimiser = optax.with_extra_args_support(optimiser)
    packing = Packing(params)
    old = packing.pack(params)
    # Optax mixes dtypes in its bias corrections; code of ours is run under strict promotion.
    with jax.numpy_dtype_promotion("standard"):
        update, state = optimiser.update(packing.pack(gradient), state, old, value=value)
        return packing.unpack(optax.apply_updates(old, update)), state


def moved(old: T, new: T, rate: float) -> T:
    """Parameters on their way from old ones to new ones."""
    packing = Packing(old)
    pairs = zip(packing.pack(old), packing.pack(new), strict=True)
    way: T = packing.unpack([x + rate * (y - x) for x, y in pairs])
    return way
