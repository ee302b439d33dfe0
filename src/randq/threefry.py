"""JAX's random generator, in a form that suits a CPU: the same numbers, for less.

JAX compiles Threefry for a CPU as a loop over its rounds, each a pass over memory. Written out, the
rounds become one pass: several times faster for a large array, and compiled in a quarter of the
time. Functions here give what those of the same name in `jax.random` give, bit for bit; keys of
another generator than Threefry are passed on to them. Those with arithmetic are compiled as a whole
also where they are called alone, as JAX's are: so they round alike wherever they are called.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from randq.types import Array, Float, Int, Key, Shaped

Word = Shaped[Array, "..."]
"""Unsigned integers of 32 bits."""

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
ROUNDS = 20
"""Of the cipher, as in JAX."""
PARITY = np.uint32(0x1BD11BDA)


def bits(key: Key, shape: tuple[int, ...]) -> Word:
    """Random words."""
    if not is_threefry(key):
        return jax.random.bits(key, shape, jnp.uint32)
    high, low = blocks(key, shape)
    return high ^ low


def blocks(key: Key, shape: tuple[int, ...], rounds: int = ROUNDS) -> tuple[Word, Word]:
    """A block of the cipher for each entry of an array: two random words, which `bits` mixes."""
    size = math.prod(shape)
    assert size < 2**32, "numbers would repeat themselves"
    count = jax.lax.iota(jnp.uint32, size).reshape(shape)
    return _encrypted(key, jnp.zeros_like(count), count, rounds)


@partial(jax.jit, static_argnums=(1, 2, 3, 4), inline=True)
def uniform(
    key: Key, shape: tuple[int, ...], dtype: Any, low: float, high: float
) -> Float[Array, "..."]:
    """Numbers uniform in [low, high)."""
    if not is_threefry(key) or jnp.dtype(dtype) != jnp.float32:
        return jax.random.uniform(key, shape, dtype, low, high)
    least, most = np.float32(low), np.float32(high)
    # The upper bits as the digits of a number in [1, 2).
    digits = (bits(key, shape) >> np.uint32(9)) | np.float32(1).view(np.uint32)
    unit = jax.lax.bitcast_convert_type(digits, jnp.float32) - np.float32(1)
    return jnp.maximum(least, unit * (most - least) + least)


@partial(jax.jit, static_argnums=(1, 2), inline=True)
def normal(key: Key, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
    """Standard normal numbers."""
    least = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
    return math.sqrt(2) * jax.lax.erf_inv(uniform(key, shape, dtype, float(least), 1.0))


def split(key: Key, num: int = 2) -> Shaped[Array, " num"]:
    """New keys."""
    if not is_threefry(key):
        return jax.random.split(key, num)
    return jax.random.wrap_key_data(jnp.stack(blocks(key, (num,)), axis=-1))


def fold_in(key: Key, data: Int[Array, ""] | int) -> Key:
    """A new key from a key and a number."""
    if not is_threefry(key):
        return jax.random.fold_in(key, data)
    count = jnp.asarray(data).astype(jnp.uint32)
    return jax.random.wrap_key_data(jnp.stack(_encrypted(key, jnp.zeros_like(count), count)))


def is_threefry(key: Key) -> bool:
    """Whether a key is one of the generator that is written here."""
    return str(jax.random.key_impl(key)) == "threefry2x32"


def _encrypted(key: Key, x: Word, y: Word, rounds: int = ROUNDS) -> tuple[Word, Word]:
    """Threefry-2x32 (Salmon et al., 2011)."""
    first, second = jax.random.key_data(key)
    schedule = (first, second, first ^ second ^ PARITY)
    x, y = x + schedule[0], y + schedule[1]
    for i in range(rounds):
        turn = ROTATIONS[i % 8]
        x = x + y
        y = ((y << np.uint32(turn)) | (y >> np.uint32(32 - turn))) ^ x
        if i % 4 == 3:
            key_number = i // 4 + 1
            x = x + schedule[key_number % 3]
            y = y + schedule[(key_number + 1) % 3] + np.uint32(key_number)
    return x, y
