"""One gradient step, shared by everything that learns."""

from typing import TypeVar

import jax
import optax

T = TypeVar("T")


def descend(
    optimiser: optax.GradientTransformation, gradient: T, params: T, state: optax.OptState
) -> tuple[T, optax.OptState]:
    """New parameters and optimiser state."""
    # Optax mixes dtypes in its bias corrections; code of ours is run under strict promotion.
    with jax.numpy_dtype_promotion("standard"):
        update, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, update), state
