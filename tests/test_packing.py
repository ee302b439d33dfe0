"""Packing: what goes in comes out, and there are few arrays in between."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.packing import Packing, message, read

TREE = {
    "a": jnp.arange(6, dtype=jnp.float32).reshape(2, 3),
    "b": (jnp.float32(7), jnp.int32(8), jnp.array([True, False])),
    "key": jax.random.split(jax.random.key(3), 2),
    "large": jnp.arange(50, dtype=jnp.float32),
}


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    plain = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(plain(x), plain(y))


@pytest.mark.parametrize(("large", "arrays"), [(49, 5), (50, 4), (0, 6)])
def test_round_trip(large, arrays):
    packing = Packing(jax.eval_shape(lambda: TREE), large)
    packed = packing.pack(TREE)
    assert len(packed) == arrays
    same(packing.unpack(packed), TREE)
    same(jax.jit(packing.unpack)(jax.jit(packing.pack)(TREE)), TREE)


def test_leading_axes_are_kept():
    example = {"x": jnp.zeros((2, 2)), "n": jnp.zeros((), jnp.int32)}
    rows = {"x": jnp.arange(20.0).reshape(5, 2, 2), "n": jnp.arange(5, dtype=jnp.int32)}
    packing = Packing(example)
    packed = packing.pack(rows, axes=1)
    assert sorted(x.shape for x in packed) == [(5, 1), (5, 4)]
    same(packing.unpack(packed, axes=1), rows)


def test_one_number_is_read_without_unpacking():
    packing = Packing(jax.eval_shape(lambda: TREE), 49)
    packed = jax.jit(packing.pack)(TREE)
    assert packing.number(packed, lambda tree: tree["b"][1]) == 8
    assert packing.number(packed, lambda tree: tree["b"][0]) == 7


def test_a_message_is_read_again():
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (2, 3, 5), np.uint8),
        rng.normal(size=(2, 4)).astype(np.float32),
        np.array([np.inf, -0.0, 1e-40, np.nan], np.float32),
        rng.integers(-(2**31), 2**31, (3,), np.int32),
        np.array([True, False, True]),
        np.zeros((), np.float32),
        rng.normal(size=(6, 4)).astype(np.float32)[::2].T,  # not in one piece
    ]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    found = jax.jit(lambda m: read(m, shapes))(message(arrays))
    for x, y in zip(found, arrays, strict=True):
        assert x.dtype == y.dtype
        assert np.asarray(x).tobytes() == y.tobytes()
    with pytest.raises(AssertionError, match="not the arrays"):
        read(jnp.asarray(message(arrays[:-1])), shapes[:-2])
