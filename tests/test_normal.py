"""Normal numbers for weights: their distribution, and each against Box and Muller in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from randq import normal as module
from randq import threefry
from randq.normal import ROUNDS, normal


def test_numbers_are_standard_normal():
    x = np.asarray(normal(jax.random.key(1), (1000, 2000), jnp.float32)).astype(np.float64)
    assert stats.kstest(x.ravel(), "norm").pvalue > 1e-3
    # Far out too, where a test of the whole distribution sees nothing.
    for far in (3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(far) * x.size
        assert abs(np.sum(np.abs(x) > far) - expected) < 5 * expected**0.5
    # Neighbours, and the same place under the next key, have nothing to do with each other.
    other = np.asarray(normal(jax.random.key(2), (1000, 2000), jnp.float32)).astype(np.float64)
    for a, b in ((x[:, 1:], x[:, :-1]), (x[1:], x[:-1]), (x, other)):
        for f in (np.asarray, np.square):
            assert abs(np.corrcoef(f(a).ravel(), f(b).ravel())[0, 1]) < 5 / x.size**0.5


def test_normal_numbers_follow_from_the_words_of_a_block():
    key = jax.random.key(3)
    blocks = threefry.blocks(key, (5000,), ROUNDS)
    first, second = (np.asarray(x).astype(np.float64) for x in blocks)
    expected = np.sqrt(-2 * np.log((first + 0.5) / 2**32)) * np.cos(2 * np.pi * second / 2**32)
    np.testing.assert_allclose(normal(key, (5000,), jnp.float32), expected, atol=3e-6)


def test_other_generators_and_precisions_have_the_numbers_of_jax():
    key = jax.random.key(0, impl="rbg")
    np.testing.assert_array_equal(
        normal(key, (3, 4), jnp.float32), jax.random.normal(key, (3, 4), jnp.float32)
    )
    with jax.enable_x64(True):
        found = normal(jax.random.key(0), (100,), jnp.float64)
        assert found.dtype == jnp.float64
        np.testing.assert_array_equal(found, jax.random.normal(jax.random.key(0), (100,)))


@pytest.mark.parametrize(
    ("word", "expected"),
    # The words at both ends, and those beside the powers of two and the roots where bits change.
    [(0, 2 * 33 * np.log(2)), (2**32 - 1, 0.0)]
    + [
        (word, -2 * np.log((word + 0.5) / 2**32))
        for root in (1.0, 2**0.5)
        for power in (1, 7, 23, 24, 30, 31)
        for word in (int(root * 2**power) - 1, int(root * 2**power), int(root * 2**power) + 1)
    ],
)
def test_logarithms_of_single_words(word, expected):
    found = float(module._surprise(jnp.uint32(word)))
    assert found >= 0.0
    # A word of more than 24 bits is rounded to those.
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2e-7)


def test_no_word_gives_a_number_that_is_none():
    ends = [np.arange(5000), 2**31 + np.arange(-2500, 2500), 2**32 - 1 - np.arange(5000)]
    words = jnp.asarray(np.concatenate(ends), jnp.uint32)
    roots = np.sqrt(np.asarray(module._surprise(words)))
    assert np.isfinite(roots).all()
    assert roots.max() < 6.8
