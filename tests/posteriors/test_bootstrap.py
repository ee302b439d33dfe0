"""The ensemble: what is shared, what is frozen, who votes, who learns from what."""

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from randq.networks import MLP, Conv2d, ConvNet
from randq.posteriors import Bootstrap, learnt, trainable


def build(network="mlp", seed=0, **settings):
    def init(key):
        if network == "mlp":
            return MLP.create(3, [7], 2, key=key)
        return ConvNet.create((4, 4, 2), [(5, 2, 2)], [7], 2, key=key)

    def make(key):
        return Bootstrap(heads=4, **settings).build(init, key)

    return jax.jit(make)(jax.random.key(seed))


def constant_heads(values):
    """Heads that give these values for every input."""
    values = jnp.asarray(values)
    count, out = values.shape
    posterior = Bootstrap(heads=count, shared="nothing").build(
        lambda key: MLP.create(1, [], out, key=key), jax.random.key(0)
    )
    head = posterior.heads.own.head
    head = eqx.tree_at(lambda h: (h.weight, h.bias), head, (jnp.zeros_like(head.weight), values))
    return eqx.tree_at(lambda p: p.heads.own.head, posterior, head)


@pytest.mark.parametrize("shared", ["nothing", "convolutions", "torso"])
def test_heads_start_apart_and_share_what_they_should(shared):
    heads = build("conv", shared=shared).heads
    own, common = heads.own, heads.shared
    expected = {
        "nothing": (True, True, True),
        "convolutions": (False, True, True),
        "torso": (False, False, True),
    }[shared]
    layers = [lambda n: n.convolutions[0], lambda n: n.hidden[0], lambda n: n.head]
    for layer, is_own in zip(layers, expected, strict=True):
        mine, ours = layer(own), layer(common)
        if is_own:
            assert ours.weight is None
            numbers = np.concatenate([np.ravel(mine.weight), np.ravel(mine.bias)])
            assert mine.weight.shape[0] == 4
            assert len(np.unique(numbers)) == numbers.size  # no head is a copy of another one
        else:
            assert mine.weight is None
            assert ours.weight.ndim == (4 if isinstance(ours, Conv2d) else 2)


def dots(function, *arguments):
    """The sizes of the results of all matrix products, however deep they stand."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield equation.outvars[0].aval.size
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from walk(inner)

    return sorted(walk(jax.make_jaxpr(function)(*arguments).jaxpr))


@pytest.mark.parametrize(
    ("shared", "expected"), [("torso", [7, 4 * 2]), ("nothing", [4 * 2, 4 * 7])]
)
def test_a_shared_torso_is_computed_once(shared, expected):
    posterior = build(shared=shared)
    assert dots(posterior.heads, jnp.ones(3)) == expected


def test_a_shared_torso_learns_from_all_heads():
    posterior = build(shared="torso")
    xs = jnp.ones((2, 3))

    def loss(posterior, head):
        return jnp.sum(posterior.members(None)(xs)[head] ** 2)

    for head in range(4):
        gradient = jax.grad(loss)(posterior, head).heads
        assert gradient.shared.hidden[0].weight.any()
        moved = [k for k in range(4) if gradient.own.head.weight[k].any()]
        assert moved == [head]


def test_prior_is_fixed_added_and_different_for_each_head():
    plain, prior = build(), build(prior_scale=3.0)
    assert plain.heads.prior is None
    networks = prior.heads.prior.tree
    values = np.ravel(networks.head.weight)
    assert len(np.unique(values)) == values.size

    for split in (trainable, learnt):  # neither the optimiser nor a target network sees it
        moving, rest = split(prior)
        assert not jax.tree.leaves(moving.heads.prior)
        assert len(jax.tree.leaves(rest.heads.prior)) == len(jax.tree.leaves(networks))

    # The same keys make the same trained part: the difference is three times the prior.
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    difference = prior.members(None)(xs) - plain.members(None)(xs)
    for k in range(4):
        network = jax.tree.map(lambda x: x[k], networks)  # noqa: B023
        expected = 3.0 * np.asarray(jax.vmap(network)(xs))
        np.testing.assert_allclose(difference[k], expected, rtol=1e-4, atol=1e-5)


def test_majority_beats_average():
    """Two of three heads prefer action 0; one shouts for action 1."""
    posterior = constant_heads([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 99.0, 0.0]])
    x = jnp.zeros(1)
    assert jnp.argmax(posterior.evaluator()(x)) == 0
    assert jnp.argmax(posterior.mean()(x)) == 1
    np.testing.assert_allclose(posterior.mean()(x), [2 / 3, 33, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "winner"),
    [
        ([[1.0, 0.0, 98.0], [0.0, 3.0, -99.0], [0.0, 3.0, -99.0], [1.0, 0.0, 98.0]], 1),
        ([[1.0, 0.0], [0.0, 3.0]], 1),
        ([[3.0, 0.0], [0.0, 1.0]], 0),
        ([[-1e6, -2e6], [-2e6, -1.5e6]], 0),
        ([[0.0, 0.0], [0.0, 0.0]], 0),
    ],
)
def test_ties_go_to_the_larger_average(values, winner):
    if len(values) == 4:  # actions 2 and 1 have two votes each; action 1 has the larger average
        assert np.mean(values, axis=0)[1] > np.mean(values, axis=0)[2]
    score = constant_heads(values).evaluator()(jnp.zeros(1))
    assert np.isfinite(score).all()
    assert jnp.argmax(score) == winner


def test_a_draw_is_one_of_the_heads_and_each_is_as_likely():
    posterior = constant_heads([[float(k), -1.0] for k in range(5)])
    draw = jax.jit(jax.vmap(lambda key: posterior.sample(key)(jnp.zeros(1))[0]))
    got = np.asarray(draw(jax.random.split(jax.random.key(0), 5000)))
    counts = np.array([(got == k).sum() for k in range(5)])
    assert counts.sum() == 5000
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("probability", [0.2, 0.5, 1.0])
def test_masks_are_independent_coins(probability):
    masks = np.asarray(build(mask_probability=probability).masks(jax.random.key(0), 5000))
    assert masks.shape == (4, 5000)
    np.testing.assert_allclose(masks.mean(axis=1), probability, atol=4 * 0.5 / 5000**0.5)
    if probability < 1:
        assert np.abs(np.corrcoef(masks) - np.eye(4)).max() < 5 / 5000**0.5
