"""Independent Gaussian weights, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from randq.networks import MLP, Linear
from randq.noise import normals
from randq.posteriors import MeanField
from randq.posteriors.mean_field import MeanFieldLayer

RHO = np.array([[-1.0, 0.5], [2.0, -3.0], [0.0, 1.0]])
BIAS_RHO = np.array([-2.0, 1.0])
MU = np.array([[0.3, -1.0], [2.0, 0.0], [-0.7, 0.1]])
BIAS_MU = np.array([1.0, -0.5])


def layer(prior_std=1.0, dtype=jnp.float32):
    return MeanFieldLayer(
        mean_layer=Linear(jnp.asarray(MU, dtype), jnp.asarray(BIAS_MU, dtype)),
        weight_rho=jnp.asarray(RHO, dtype),
        bias_rho=jnp.asarray(BIAS_RHO, dtype),
        prior_std=prior_std,
    )


def softplus(rho):
    return np.log(1 + np.exp(rho))


@pytest.mark.parametrize("prior_std", [1.0, 0.4])
def test_cost_is_the_kl_of_weights_and_biases(prior_std, x64):
    """KL = cross entropy - entropy, where E log p is known from the moments."""
    mean = np.concatenate([MU.ravel(), BIAS_MU])
    std = softplus(np.concatenate([RHO.ravel(), BIAS_RHO]))
    entropy = scipy.stats.norm(mean, std).entropy()
    cross = -scipy.stats.norm.logpdf(0, 0, prior_std) + (mean**2 + std**2) / (2 * prior_std**2)
    subject = layer(prior_std, jnp.float64)
    _, cost = subject.draw((jnp.zeros((3, 2)), jnp.zeros(2)))
    np.testing.assert_allclose(cost, np.sum(cross - entropy), rtol=1e-12)


def test_draws_are_gaussian_with_these_moments():
    subject = layer()

    def one(key):
        return subject.draw(normals(subject.noise, key, jnp.float32))[0]

    draws = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 20_000))
    for got, mean, std in (
        (draws.weight, MU, softplus(RHO)),
        (draws.bias, BIAS_MU, softplus(BIAS_RHO)),
    ):
        standard = (np.asarray(got) - mean) / std
        assert np.abs(standard.mean(axis=0)).max() < 5 / 20_000**0.5
        np.testing.assert_allclose(standard.std(axis=0), 1, atol=5 / 40_000**0.5)
        assert scipy.stats.kstest(standard[:, 0].ravel(), "norm").pvalue > 1e-4
    numbers = np.concatenate([np.asarray(draws.weight).reshape(20_000, 6), draws.bias], axis=1)
    assert np.abs(np.corrcoef(numbers.T) - np.eye(8)).max() < 5 / 20_000**0.5


def test_cost_and_its_gradient_survive_any_rho():
    """softplus(-200) is 0 in float32; its logarithm must not be -inf."""
    for value in (-200.0, -30.0, 80.0):
        extreme = jax.tree.map(jnp.asarray, layer())
        extreme = MeanFieldLayer(
            extreme.mean_layer, jnp.full((3, 2), value), extreme.bias_rho, prior_std=1.0
        )
        noise = (jnp.ones((3, 2)), jnp.ones(2))
        cost, gradient = jax.jit(jax.value_and_grad(lambda x: x.draw(noise)[1]))(extreme)  # noqa: B023
        assert np.isfinite(cost)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_training_starts_from_the_initial_deviation():
    def build(key):
        return MeanField(initial_std=0.03).build(lambda k: MLP.create(4, [3], 2, key=k), key)

    network = build(jax.random.key(0)).network
    for node, fan_in in ((network.hidden[0], 4), (network.head, 3)):
        expected = 0.03 / fan_in**0.5
        np.testing.assert_allclose(jax.nn.softplus(node.weight_rho), expected, rtol=1e-5)
        np.testing.assert_allclose(jax.nn.softplus(node.bias_rho), expected, rtol=1e-5)
