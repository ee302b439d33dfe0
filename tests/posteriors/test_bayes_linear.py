"""The conjugate last layer, against the textbook's formulas in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.networks import MLP
from randq.posteriors import BayesLinear, learnt, trainable

RNG = np.random.default_rng(0)
PRIOR_STD, NOISE_STD = 0.7, 0.3


def build(dtype=jnp.float64, prior_std=PRIOR_STD, noise_std=NOISE_STD):
    def make(key):
        family = BayesLinear(prior_std=prior_std, noise_std=noise_std)
        return family.build(lambda k: MLP.create(3, [5], 4, key=k, dtype=dtype), key)

    return jax.jit(make)(jax.random.key(0))


def data(count=30):
    """Nothing is known about output 3."""
    xs = jnp.asarray(RNG.normal(size=(count, 3)))
    return xs, jnp.asarray(RNG.integers(0, 3, count)), jnp.asarray(RNG.normal(size=count))


def textbook(posterior, xs, outputs, targets):
    """Mean and covariance for each output: Bishop, eqs. 3.53 and 3.54."""
    weight, bias = (np.asarray(x) for x in jax.tree.leaves(posterior.torso.hidden[0]))
    features = np.maximum(np.asarray(xs) @ weight + bias, 0)
    features = np.concatenate([features, np.ones((len(xs), 1))], axis=1)
    for k in range(4):
        own = np.asarray(outputs) == k
        phi, t = features[own], np.asarray(targets)[own]
        covariance = np.linalg.inv(np.eye(6) / PRIOR_STD**2 + phi.T @ phi / NOISE_STD**2)
        yield covariance @ phi.T @ t / NOISE_STD**2, covariance


def test_closed_form(x64):
    xs, outputs, targets = data()
    posterior = build()
    after = jax.jit(type(posterior).condition)(posterior, xs, outputs, targets)
    head = after.mean().head
    for k, (mean, covariance) in enumerate(textbook(posterior, xs, outputs, targets)):
        np.testing.assert_allclose(head.weight[:, k], mean[:-1], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(head.bias[k], mean[-1], rtol=1e-9, atol=1e-12)
        root = np.asarray(after.last.tree.precision_root[k])
        np.testing.assert_allclose(root @ root.T @ covariance, np.eye(6), atol=1e-9)

    # It is a function of the data alone: conditioning again changes nothing, nor does their order.
    again = after.condition(xs[::-1], outputs[::-1], targets[::-1])
    np.testing.assert_allclose(again.last.tree.mean, after.last.tree.mean, rtol=1e-8, atol=1e-10)


def test_draws_have_the_closed_form_covariance(x64):
    xs, outputs, targets = data()
    posterior = build()
    after = posterior.condition(xs, outputs, targets)

    def weights(key):
        head = after.sample(key).network.head
        return jnp.concatenate([head.weight, head.bias[None]]).T

    draws = np.asarray(jax.jit(jax.vmap(weights))(jax.random.split(jax.random.key(1), 20_000)))
    for k, (mean, covariance) in enumerate(textbook(posterior, xs, outputs, targets)):
        std = np.sqrt(np.diag(covariance))
        error = (draws[:, k].mean(axis=0) - mean) / std
        assert np.abs(error).max() < 5 / 20_000**0.5
        got = np.cov(draws[:, k].T) / np.outer(std, std)
        np.testing.assert_allclose(got, covariance / np.outer(std, std), atol=0.05)
    between = np.corrcoef(draws[:, 0, 0], draws[:, 1, 0])[0, 1]
    assert abs(between) < 5 / 20_000**0.5


def test_before_data_there_is_the_prior(x64):
    posterior = build()
    x = jnp.ones(3)
    np.testing.assert_array_equal(posterior.mean()(x), np.zeros(4))
    draws = jax.vmap(lambda key: posterior.sample(key).network.head.weight)
    drawn = np.asarray(draws(jax.random.split(jax.random.key(0), 4000)))
    np.testing.assert_allclose(drawn.std(axis=0), PRIOR_STD, rtol=0.06)
    # And so it stays for an output without data.
    after = posterior.condition(*data())
    np.testing.assert_array_equal(after.mean().head.weight[:, 3], np.zeros(5))
    np.testing.assert_allclose(after.last.tree.precision_root[3], np.eye(6) / PRIOR_STD)


def test_gradients_reach_the_features_and_never_the_last_layer(x64):
    xs, outputs, targets = data()
    posterior = build().condition(xs, outputs, targets)

    def loss(posterior):
        return jnp.sum(posterior.members(jax.random.key(0))(xs) ** 2)

    gradient = jax.grad(loss)(posterior)
    assert all(x.any() for x in jax.tree.leaves(gradient.torso))
    assert not any(x.any() for x in jax.tree.leaves(gradient.last))
    assert not jax.tree.leaves(trainable(posterior)[0].last)
    assert len(jax.tree.leaves(learnt(posterior)[0].last)) == 2  # a target network copies it


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8])
def test_any_integers_name_outputs(dtype):
    posterior = build(jnp.float32)
    xs = jnp.ones((2, 3))
    after = posterior.condition(xs, jnp.asarray([1, 1], dtype), jnp.asarray([2.0, 2.0]))
    mean = after.mean()(xs[0])
    assert mean[1] > 1
    np.testing.assert_array_equal(np.delete(mean, 1), np.zeros(3))


def test_more_data_make_it_surer(x64):
    xs, outputs, targets = data()
    posterior = build()

    def spread(count):
        after = posterior.condition(xs[:count], outputs[:count], targets[:count])
        roots = np.asarray(after.last.tree.precision_root)
        return np.linalg.slogdet(roots @ roots.transpose(0, 2, 1))[1].sum()

    assert spread(0) < spread(10) < spread(30)


def test_one_posterior_is_a_tree_that_combines_again():
    posterior = build(jnp.float32)
    params, rest = trainable(posterior)
    assert eqx.tree_equal(eqx.combine(params, rest), posterior)
