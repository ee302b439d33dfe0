"""What arrays of a hundred thousand numbers and more need on a CPU, where time is memory.

Small arrays are packed, and share calls of the generator, because each operation costs something.
For large ones that is nothing, and each pass over memory counts: they stay alone.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from randq import threefry
from randq.types import Array, Float, Key, Scalar

LARGE = 2**17
"""An array with more numbers than this is large."""


def total(x: Float[Array, "..."]) -> Scalar:
    """The sum of all entries."""
    if x.size <= LARGE or x.ndim < 2:
        return jnp.sum(x)
    # XLA adds up a large array in a tree of small windows; a product takes a seventh of the time.
    rows = x.reshape(-1, x.shape[-1])
    return jnp.sum(rows @ jnp.ones(rows.shape[1], x.dtype))


SINE = (6.283185, -41.341656, 81.601, -76.54966, 39.535812)
"""sin(2 pi x) / x in powers of x^2, with the precision of float32 for x from -1/4 to 1/4."""


@partial(jax.jit, static_argnums=(1, 2), inline=True)
def normal(key: Key, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
    """Standard normal numbers by the method of Box and Muller, from a block of the cipher each.

    They are others than those of `threefry.normal`, for two thirds of the time: one logarithm and
    one short polynomial take the place of an inverse error function.
    """
    if jnp.dtype(dtype) != jnp.float32 or not threefry.is_threefry(key):
        return threefry.normal(key, shape, dtype)
    first, second = threefry.blocks(key, shape)
    unit = first.astype(jnp.float32) * np.float32(2**-32) + np.float32(2**-33)
    turn = jax.lax.bitcast_convert_type(second, jnp.int32).astype(jnp.float32)
    # The cosine of a turn between -1/2 and 1/2 is the sine of what it lacks to a quarter.
    x = np.float32(0.25) - jnp.abs(turn * np.float32(2**-32))
    sine = jnp.full_like(x, SINE[-1])
    for coefficient in SINE[-2::-1]:
        sine = sine * (x * x) + np.float32(coefficient)
    return jnp.sqrt(np.float32(-2) * jnp.log(unit)) * (sine * x)
