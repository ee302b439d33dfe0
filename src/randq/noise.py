"""Random numbers for a whole network from one call of the generator.

Each call of JAX's generator inside a compiled program costs up to a second of compile time on a
CPU, and a network asks for dozens of arrays. So what needs random numbers takes them from a
`Supply`, in order, and that is filled by a single call.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from randq import threefry
from randq.types import Array, Float, Key

T = TypeVar("T")


class Supply:
    """Numbers handed out in order. Without numbers it hands out zeros, and counts."""

    def __init__(self, dtype: Any, numbers: Float[Array, " n"] | None = None) -> None:
        self.dtype = dtype
        self.numbers = numbers
        self.used = 0

    def take(self, *shape: int) -> Float[Array, "..."]:
        """The next numbers, as an array."""
        start = self.used
        self.used += math.prod(shape)
        if self.numbers is None:
            return jnp.zeros(shape, self.dtype)
        return self.numbers[start : self.used].reshape(shape)

    def like(self, array: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The next numbers, in the shape of an array."""
        return self.take(*array.shape)


def normals(use: Callable[[Supply], T], key: Key, dtype: Any) -> T:
    """What `use` makes of a supply of standard normal numbers."""

    def generate(n: int) -> Float[Array, " n"]:
        # In a loop of two turns, which XLA leaves alone. Otherwise it would repeat the polynomials
        # behind erf_inv in each of the dozens of operations that use some of the numbers.
        low = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
        halves = threefry.uniform(key, (2, -(-n // 2)), dtype, float(low), 1.0)
        return math.sqrt(2) * jax.lax.map(jax.lax.erf_inv, halves).reshape(-1)[:n]

    return _supplied(use, dtype, generate)


def uniforms(use: Callable[[Supply], T], key: Key, dtype: Any) -> T:
    """What `use` makes of a supply of numbers uniform in [-1, 1)."""
    return _supplied(use, dtype, lambda n: threefry.uniform(key, (n,), dtype, -1.0, 1.0))


def _supplied(
    use: Callable[[Supply], T], dtype: Any, generate: Callable[[int], Float[Array, " n"]]
) -> T:
    counter = Supply(dtype)
    jax.eval_shape(lambda: use(counter))
    return use(Supply(dtype, generate(counter.used)))
