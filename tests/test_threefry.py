"""The generator against JAX's own: the same numbers, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from randq import threefry

SHAPES = [(), (1,), (7,), (1000,), (3, 5), (2, 0), (2, 3, 4)]
SEEDS = st.integers(0, 2**31 - 1)


def same(ours, theirs):
    assert ours.dtype == theirs.dtype
    if jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
        ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from(SHAPES))
def test_bits_are_those_of_jax(seed, shape):
    key = jax.random.key(seed)
    same(threefry.bits(key, shape), jax.random.bits(key, shape, jnp.uint32))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (-0.6, -0.4), (-0.99999994, 1)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_uniform_numbers_are_those_of_jax(low, high, dtype):
    with jax.enable_x64(dtype == jnp.float64):
        key = jax.random.key(5)
        ours = jax.jit(lambda key: threefry.uniform(key, (2, 501), dtype, low, float(high)))
        same(ours(key), jax.random.uniform(key, (2, 501), dtype, low, float(high)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_normal_numbers_are_those_of_jax(dtype):
    with jax.enable_x64(dtype == jnp.float64):
        key = jax.random.key(6)
        ours = jax.jit(lambda key: threefry.normal(key, (3, 501), dtype))
        same(ours(key), jax.random.normal(key, (3, 501), dtype))


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 40), st.integers(-(2**31), 2**31 - 1))
def test_keys_are_those_of_jax(seed, num, data):
    key = jax.random.key(seed)
    same(threefry.split(key, num), jax.random.split(key, num))
    folded = jax.random.fold_in(key, jnp.int32(data))
    same(threefry.fold_in(key, jnp.int32(data)), folded)
    if data >= 0:
        same(threefry.fold_in(key, data), folded)


def test_the_same_under_jit_and_vmap():
    keys = jax.random.split(jax.random.key(1), 4)

    @jax.jit
    @jax.vmap
    def ours(key):
        a, b = threefry.split(threefry.fold_in(key, 3))
        return threefry.bits(a, (9,)), threefry.uniform(b, (9,), jnp.float32, -1.0, 1.0)

    @jax.vmap
    def theirs(key):
        a, b = jax.random.split(jax.random.fold_in(key, 3))
        return jax.random.bits(a, (9,), jnp.uint32), jax.random.uniform(b, (9,), minval=-1.0)

    jax.tree.map(same, ours(keys), theirs(keys))


def test_keys_of_another_generator_are_passed_on():
    key = jax.random.key(2, impl="rbg")
    same(threefry.bits(key, (5,)), jax.random.bits(key, (5,), jnp.uint32))
    same(threefry.split(key, 3), jax.random.split(key, 3))
    same(threefry.fold_in(key, 3), jax.random.fold_in(key, 3))
    ours = threefry.uniform(key, (5,), jnp.float32, 0.0, 1.0)
    same(ours, jax.random.uniform(key, (5,), jnp.float32))


@pytest.mark.parametrize(
    ("rounds", "count", "key", "block"),
    # The known answers that come with Random123.
    [
        (13, (0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
        (13, (0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0xFD36D048, 0x2D17272C)),
        (13, (0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
        (20, (0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        (20, (0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        (20, (0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_cipher_has_the_answers_of_its_authors(rounds, count, key, block):
    key = jax.random.wrap_key_data(jnp.asarray(key, jnp.uint32))
    x, y = (jnp.asarray(word, jnp.uint32) for word in count)
    assert tuple(int(word) for word in threefry._encrypted(key, x, y, rounds)) == block
