"""Large arrays: sums, and draws that make their numbers where they are used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq import large, noise
from randq.large import LARGE, total
from randq.noise import normals, uniforms
from randq.posteriors import gaussian

SHAPE = (512, 257)  # just large


def test_the_sum_of_a_large_array():
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    assert x.size > LARGE
    np.testing.assert_allclose(total(jnp.asarray(x)), x.sum(dtype=np.float64), rtol=1e-5)
    gradient = jax.grad(lambda x: total(x**2))(jnp.asarray(x))
    np.testing.assert_array_equal(gradient, 2 * x)


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (LARGE + 1,), (2, 3, LARGE // 4)])
def test_sums_of_every_shape(shape):
    np.testing.assert_allclose(total(jnp.ones(shape, jnp.float32)), np.prod(shape))


@pytest.mark.parametrize("supplied", [normals, uniforms])
def test_large_arrays_leave_the_numbers_of_small_ones_alone(supplied):
    key = jax.random.key(4)

    def small(supply):
        return supply.take(3), supply.take(2, 2)

    def mixed(supply):
        first, a = supply.take(3), supply.take(*SHAPE)
        return first, supply.take(2, 2), a, supply.take(*SHAPE)

    *found, a, b = supplied(mixed, key, jnp.float32)
    for x, y in zip(found, supplied(small, key, jnp.float32), strict=True):
        np.testing.assert_array_equal(x, y)
    # And two large ones are two.
    assert a.shape == b.shape == SHAPE
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / a.size**0.5


def test_noise_of_a_large_layer_has_the_gradient_of_a_small_one(monkeypatch):
    log_std, epsilon = (
        jnp.linspace(-3, 1, 30).reshape(5, 6),
        jnp.sin(jnp.arange(30.0)).reshape(5, 6),
    )
    weight = jnp.cos(jnp.arange(30.0)).reshape(5, 6)

    def loss(log_std):
        return jnp.sum(weight * gaussian.spread(log_std, epsilon))

    found = []
    for bound in (0, LARGE):
        monkeypatch.setattr(gaussian, "LARGE", bound)
        found.append(jax.value_and_grad(loss)(log_std))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6)
    np.testing.assert_allclose(found[0][1], weight * jnp.exp(log_std) * epsilon, rtol=1e-6)


def test_the_divergence_of_a_large_layer_has_the_gradient_of_a_small_one(monkeypatch):
    mean, log_std = jnp.linspace(-2, 2, 30).reshape(5, 6), jnp.linspace(-6, 1, 30).reshape(5, 6)

    def weighed(mean, log_std):
        return gaussian.kl_to_prior(jnp.sin(mean), log_std, 0.7) ** 2

    found = []
    for bound in (0, LARGE):
        monkeypatch.setattr(gaussian, "LARGE", bound)
        found.append(jax.value_and_grad(weighed, argnums=(0, 1))(mean, log_std))
    for x, y in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-6)


def test_what_is_large_is_said_in_one_place():
    assert noise.LARGE == gaussian.LARGE == large.LARGE
