"""Noisy networks, against the formulas of Fortunato et al. written out."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from randq.networks import MLP, Conv2d, ConvNet, Linear
from randq.noise import normals
from randq.posteriors import Noisy
from randq.posteriors.noisy import NoisyLayer

RNG = np.random.default_rng(0)


def f(x):
    return np.sign(x) * np.sqrt(np.abs(x))


def random(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def test_linear_layer_by_hand():
    layer = NoisyLayer(Linear(random(3, 2), random(2)), random(3, 2), random(2))
    noise_in, noise_out = np.array([4.0, -9.0, 0.0]), np.array([-1.0, 0.25])
    drawn, cost = layer.draw(
        (jnp.asarray(noise_in, jnp.float32), jnp.asarray(noise_out, jnp.float32))
    )
    assert f(noise_in).tolist() == [2.0, -3.0, 0.0]
    for i in range(3):
        for j in range(2):
            epsilon = f(noise_in)[i] * f(noise_out)[j]
            expected = layer.mean_layer.weight[i, j] + layer.weight_std[i, j] * epsilon
            np.testing.assert_allclose(drawn.weight[i, j], expected, rtol=1e-5)
    expected = layer.mean_layer.bias + layer.bias_std * f(noise_out).astype(np.float32)
    np.testing.assert_allclose(drawn.bias, expected, rtol=1e-5)
    assert cost == 0


def test_a_filter_is_a_column():
    mean = Conv2d(random(2, 2, 3, 4), random(4), stride=1)
    layer = NoisyLayer(mean, random(2, 2, 3, 4), random(4))
    noise_in, noise_out = normals(layer.noise, jax.random.key(0), jnp.float32)
    assert (noise_in.shape, noise_out.shape) == ((12,), (4,))
    drawn, _ = layer.draw((noise_in, noise_out))
    epsilon = (drawn.weight - mean.weight) / layer.weight_std
    expected = f(np.asarray(noise_in)).reshape(2, 2, 3, 1) * f(np.asarray(noise_out))
    np.testing.assert_allclose(epsilon, expected, rtol=1e-3, atol=1e-4)


def test_noise_is_factorised_and_of_the_right_law():
    """f^-1 of the bias's noise is standard normal, and a draw's weight noise has rank one."""
    layer = NoisyLayer(Linear(jnp.zeros((3, 2)), jnp.zeros(2)), jnp.ones((3, 2)), jnp.ones(2))

    def one(key):
        return layer.draw(normals(layer.noise, key, jnp.float32))[0]

    draws = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 5000))
    bias, weight = np.asarray(draws.bias), np.asarray(draws.weight)
    assert scipy.stats.kstest((np.sign(bias) * bias**2).ravel(), "norm").pvalue > 1e-3
    assert np.linalg.svd(weight, compute_uv=False)[:, 1].max() < 1e-5
    # E f(e)^2 = E|e| = sqrt(2 / pi), so the weights' noise has the square of that as variance.
    np.testing.assert_allclose(weight.var(axis=0), 2 / np.pi, rtol=0.12)


def test_initial_sizes():
    def build(key):
        init = lambda k: ConvNet.create((4, 4, 3), [(5, 2, 2)], [8], 2, key=k)  # noqa: E731
        return Noisy(sigma0=0.4, layers="all").build(init, key).network

    network = jax.jit(build)(jax.random.key(0))
    for layer, fan_in in (
        (network.convolutions[0], 12),
        (network.hidden[0], 20),
        (network.head, 8),
    ):
        np.testing.assert_allclose(layer.weight_std, 0.4 / fan_in**0.5, rtol=1e-6)
        np.testing.assert_allclose(layer.bias_std, 0.4 / fan_in**0.5, rtol=1e-6)
        assert np.abs(layer.mean_layer.weight).max() <= fan_in**-0.5
    assert Noisy().sigma0 == 0.5  # Fortunato et al.


def test_mean_is_the_network_of_the_means():
    posterior = Noisy().build(lambda k: MLP.create(3, [4], 2, key=k), jax.random.key(0))
    np.testing.assert_array_equal(
        posterior.mean().head.weight, posterior.network.head.mean_layer.weight
    )
