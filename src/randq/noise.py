"""Random numbers for a whole network from one call of the generator.

Each call of JAX's generator inside a compiled program costs up to a second of compile time on a
CPU, and a network asks for dozens of arrays. So what needs random numbers takes them from a
`Supply`, in order, and that is filled by a single call. Large arrays have calls of their own: then
XLA makes their numbers where it uses them, and keeps no copy.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from randq import threefry
from randq.large import LARGE
from randq.normal import normal
from randq.types import Array, Float, Key

T = TypeVar("T")


class Supply:
    """Numbers handed out in order. Without numbers it hands out zeros, and counts."""

    def __init__(
        self,
        dtype: Any,
        shared: Float[Array, " n"] | None = None,
        alone: Callable[[int, tuple[int, ...]], Float[Array, "..."]] | None = None,
    ) -> None:
        self.dtype = dtype
        self.shared = shared
        """The numbers of all small arrays."""
        self.alone = alone or (lambda i, shape: jnp.zeros(shape, dtype))
        """Makes those of the i-th large array."""
        self.used = 0
        self.large = 0

    def take(self, *shape: int) -> Float[Array, "..."]:
        """The next numbers, as an array."""
        size = math.prod(shape)
        if size > LARGE:
            self.large += 1
            return self.alone(self.large, shape)
        self.used += size
        if self.shared is None:
            return jnp.zeros(shape, self.dtype)
        return self.shared[self.used - size : self.used].reshape(shape)

    def like(self, array: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The next numbers, in the shape of an array."""
        return self.take(*array.shape)


def normals(use: Callable[[Supply], T], key: Key, dtype: Any) -> T:
    """What `use` makes of a supply of standard normal numbers."""

    def shared(n: int) -> Float[Array, " n"]:
        # In a loop of two turns, which XLA leaves alone. Otherwise it would repeat the polynomials
        # behind erf_inv in each of the dozens of operations that use some of the numbers.
        low = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
        halves = threefry.uniform(key, (2, -(-n // 2)), dtype, float(low), 1.0)
        return math.sqrt(2) * jax.lax.map(jax.lax.erf_inv, halves).reshape(-1)[:n]

    return _supplied(use, key, dtype, shared, lambda key, shape: normal(key, shape, dtype))


def uniforms(use: Callable[[Supply], T], key: Key, dtype: Any) -> T:
    """What `use` makes of a supply of numbers uniform in [-1, 1)."""

    def generate(key: Key, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return threefry.uniform(key, shape, dtype, -1.0, 1.0)

    return _supplied(use, key, dtype, lambda n: generate(key, (n,)), generate)


def _supplied(
    use: Callable[[Supply], T],
    key: Key,
    dtype: Any,
    shared: Callable[[int], Float[Array, " n"]],
    alone: Callable[[Key, tuple[int, ...]], Float[Array, "..."]],
) -> T:
    counter = Supply(dtype)
    jax.eval_shape(lambda: use(counter))
    # No key of a large array is that of the small ones: it is folded.
    return use(
        Supply(dtype, shared(counter.used), lambda i, shape: alone(threefry.fold_in(key, i), shape))
    )
