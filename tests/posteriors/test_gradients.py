"""Gradients against finite differences in float64, one direction for each array."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.networks import MLP, ConvNet
from randq.posteriors import MNF, BayesLinear, Bootstrap, MeanField, Noisy, Point, trainable

RNG = np.random.default_rng(0)


def mlp(key):
    return MLP.create(3, [4], 2, key=key, activation=jnp.tanh, dtype=jnp.float64)


def conv(key):
    return ConvNet.create((4, 4, 2), [(3, 2, 2)], [], 2, key=key, dtype=jnp.float64)


INPUT = {mlp: (3,), conv: (4, 4, 2)}
CASES = {
    "point": (Point(), mlp),
    "noisy": (Noisy(), mlp),
    "mean_field": (MeanField(prior_std=0.5), mlp),
    "mean_field-conv-example": (MeanField(layers="all", noise="example"), conv),
    "mnf": (MNF(flow_steps=2, flow_hidden=3), mlp),
    "mnf-conv": (MNF(layers="all", flow_hidden=3), conv),
    "mnf-example": (MNF(noise="example", flow_hidden=3), mlp),
    "bootstrap": (Bootstrap(heads=3, prior_scale=2.0), mlp),
    "bayes_linear": (BayesLinear(), mlp),
}


def compare(value, params, step=1e-6):
    """Each array moves by itself along a random direction."""
    value, gradient = jax.jit(value), jax.jit(jax.grad(value))(params)
    leaves, structure = jax.tree.flatten(params)
    for i, (leaf, slope) in enumerate(zip(leaves, jax.tree.leaves(gradient), strict=True)):
        direction = RNG.normal(size=leaf.shape)
        ahead, behind = (
            value(structure.unflatten([*leaves[:i], leaf + s * direction, *leaves[i + 1 :]]))
            for s in (step, -step)
        )
        expected = (ahead - behind) / (2 * step)
        np.testing.assert_allclose(np.sum(slope * direction), expected, rtol=1e-5, atol=1e-7)


def prepare(name):
    family, init = CASES[name]
    xs = jnp.asarray(RNG.normal(size=(4, *INPUT[init])))
    posterior = jax.jit(lambda key: family.build(init, key))(jax.random.key(0))
    posterior = posterior.condition(xs, jnp.asarray([0, 1, 0, 1]), jnp.asarray(RNG.normal(size=4)))
    return xs, *trainable(posterior)


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_a_loss(name, x64):
    xs, params, rest = prepare(name)
    targets = jnp.asarray(RNG.normal(size=(4, 2)))

    def loss(params):
        members = eqx.combine(params, rest).members(jax.random.key(1))
        return jnp.mean((members(xs) - targets[None]) ** 2) + 0.1 * members.cost

    compare(loss, params)


@pytest.mark.parametrize("name", ["mean_field", "mnf", "mnf-conv"])
def test_gradient_of_the_cost(name, x64):
    _, params, rest = prepare(name)
    compare(lambda params: eqx.combine(params, rest).sample(jax.random.key(1)).cost, params)
