"""The networks of DDPG, against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.actor_critic import FURTHEST, SMALL, Actor, Bounds, Critic, Statistics
from randq.types import OneHot

KEY = jax.random.key(0)
BOUNDS = Bounds((-1.0, 0.5), (3.0, 0.75))
RNG = np.random.default_rng(0)


def shaken(network):
    """Other scales and shifts of the layer norms, so that a forgotten one shows."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: x + jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype), network)


def block(layer, x):
    values = x @ np.asarray(layer.linear.weight) + np.asarray(layer.linear.bias)
    if layer.norm is not None:
        values = (values - values.mean()) / np.sqrt(values.var() + 1e-5)
        values = values * np.asarray(layer.norm.scale) + np.asarray(layer.norm.shift)
    return np.maximum(values, 0)


def head(network, x):
    return x @ np.asarray(network.head.weight) + np.asarray(network.head.bias)


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("hidden", [(7,), (7, 6), (7, 6, 5)])
def test_actor(hidden, layer_norm):
    actor = shaken(Actor.create(3, hidden, BOUNDS, key=KEY, layer_norm=layer_norm))
    for _ in range(3):
        x = h = RNG.normal(size=3).astype(np.float32)
        for layer in actor.blocks:
            h = block(layer, h)
        unit = np.tanh(head(actor, h))
        np.testing.assert_allclose(actor.unit(jnp.asarray(x)), unit, rtol=1e-4, atol=1e-5)
        expected = np.array([1.0, 0.625]) + np.array([2.0, 0.125]) * unit
        np.testing.assert_allclose(actor(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("hidden", [(7,), (7, 6), (7, 6, 5)])
def test_the_action_joins_the_critic_at_its_second_hidden_layer(hidden, layer_norm):
    critic = shaken(Critic.create(3, hidden, BOUNDS, key=KEY, layer_norm=layer_norm))
    joint = 0 if len(hidden) == 1 else 1
    x, unit = RNG.normal(size=3).astype(np.float32), np.array([0.25, -0.5], np.float32)
    action = np.array([1.0, 0.625], np.float32) + np.array([2.0, 0.125], np.float32) * unit
    h = x
    for i, layer in enumerate(critic.blocks):
        h = block(layer, np.concatenate([h, unit]) if i == joint else h)
    pair = jnp.asarray(x), jnp.asarray(action)
    np.testing.assert_allclose(critic(pair), head(critic, h), rtol=1e-4, atol=1e-5)
    sizes = [layer.linear.weight.shape[0] for layer in critic.blocks]
    assert sizes == [size + 2 * (i == joint) for i, size in enumerate((3, *hidden[:-1]))]


@pytest.mark.parametrize("hidden", [(7,), (7, 6)])
def test_a_one_hot_observation_is_the_vector_it_stands_for(hidden):
    actor = Actor.create(5, hidden, BOUNDS, key=KEY)
    critic = Critic.create(5, hidden, BOUNDS, key=KEY)
    seen, dense = OneHot(jnp.int32(3), 5), jnp.eye(5)[3]
    np.testing.assert_allclose(actor(seen), actor(dense), rtol=1e-6)
    action = jnp.array([1.0, 0.6])
    np.testing.assert_allclose(critic((seen, action)), critic((dense, action)), rtol=1e-6)


def test_an_actor_begins_in_the_middle_of_its_bounds():
    actor = Actor.create(3, (64, 64), BOUNDS, key=KEY)
    assert 0 < np.abs(actor.head.weight).max() <= SMALL
    assert np.abs(actor.unit(jnp.ones(3))).max() < 0.1


def test_dtype_is_kept(x64):
    for dtype in (jnp.float32, jnp.float64):
        actor = Actor.create(3, (4, 4), BOUNDS, key=KEY, dtype=dtype)
        critic = Critic.create(3, (4, 4), BOUNDS, key=KEY, dtype=dtype)
        assert {x.dtype for x in jax.tree.leaves((actor, critic))} == {jnp.dtype(dtype)}
        x, action = jnp.zeros(3, jnp.float32), jnp.ones(2, jnp.float32)
        assert actor(x).dtype == critic((x, action)).dtype == dtype


def test_bounds_are_respected_to_the_last_bit():
    rng = np.random.default_rng(2)
    low = rng.normal(size=200)
    bounds = Bounds(tuple(low.tolist()), tuple((low + rng.uniform(0.01, 9, 200)).tolist()))
    for end, expected in ((-1.0, bounds.low), (1.0, bounds.high)):
        action = bounds.within(bounds.action(jnp.full(200, end)))
        assert action.dtype == jnp.float32
        assert np.all(action >= np.float32(bounds.low))
        assert np.all(action <= np.float32(bounds.high))
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(bounds.unit(action), end, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Actor.create(3, (), BOUNDS, key=KEY), r"^hidden: got \(\), takes at least one"),
        (lambda: Critic.create(3, (0,), BOUNDS, key=KEY), "^hidden: got 0, takes an integer >= 1"),
        (lambda: Actor.create(0, (4,), BOUNDS, key=KEY), "^in_features: got 0"),
    ],
)
def test_bad_input(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_statistics_are_those_of_all_that_was_seen():
    rng = np.random.default_rng(3)
    batches = [rng.normal(5, 3, size=(n, 2, 2)).astype(np.float32) for n in (1, 64, 7, 128)]
    statistics = Statistics.none(4, jnp.float32)
    x = jnp.asarray(batches[0][0])
    np.testing.assert_allclose(statistics(x), np.clip(x.reshape(-1), -5, 5), rtol=1e-5)
    for batch in batches:
        statistics = statistics.merged(jnp.asarray(batch))
    seen = np.concatenate(batches).reshape(-1, 4)
    assert statistics.count == len(seen)
    np.testing.assert_allclose(statistics.mean, seen.mean(0), rtol=1e-4)
    np.testing.assert_allclose(statistics.variance, seen.var(0), rtol=1e-4)
    normal = jax.vmap(statistics)(jnp.asarray(seen))
    np.testing.assert_allclose(normal.std(0), 1, rtol=1e-2)
    assert np.abs(statistics(jnp.full((2, 2), 1e6))).max() == FURTHEST
