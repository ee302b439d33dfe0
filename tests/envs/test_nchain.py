"""The n-chain, against values worked by hand and against every policy there is."""

import itertools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from randq.envs import NChain

KEY = jax.random.key(0)


def play(env, actions, world=None):
    """Positions, rewards and truncations along a sequence of actions."""
    world = env.world(KEY) if world is None else world

    def body(state, action):
        state, step = env.step(world, state, action, KEY)
        return state, (state.position, step.reward, step.terminated, step.truncated)

    state, _ = env.reset(world, KEY)
    return jax.lax.scan(body, state, jnp.asarray(actions, jnp.int32))[1]


def test_observations_by_hand():
    thermometer, one_hot = NChain(length=4), NChain(length=4, features="one_hot")
    for env, at_s2, at_s3 in [
        (thermometer, [1, 1, 0, 0], [1, 1, 1, 0]),
        (one_hot, [0, 1, 0, 0], [0, 0, 1, 0]),
    ]:
        world = env.world(KEY)
        state, first = env.reset(world, KEY)
        _, step = env.step(world, state, jnp.int32(1), KEY)
        np.testing.assert_array_equal(first, at_s2)
        np.testing.assert_array_equal(step.observation, at_s3)


def test_an_episode_by_hand():
    # To s1, push twice; to s3, push twice; back to s1, push once; and the 11th step is the last.
    left, right = 0, 1
    actions = [left, left, left, right, right, right, right, left, left, left, right]
    position, reward, terminated, truncated = play(NChain(length=3), actions)
    np.testing.assert_array_equal(position, [0, 0, 0, 1, 2, 2, 2, 1, 0, 0, 1])
    small = np.float32(0.001)
    # Neither arriving at an end nor leaving it is paid, only staying.
    np.testing.assert_array_equal(reward, [0, small, small, 0, 0, 1, 1, 0, 0, small, 0])
    assert not terminated.any()
    np.testing.assert_array_equal(truncated, [False] * 10 + [True])


@pytest.mark.parametrize("length", [2, 10, 100])
@pytest.mark.parametrize("action_map", ["fixed", "random"])
def test_always_right_gets_exactly_ten(length, action_map):
    env = NChain(length=length, action_map=action_map)
    world = env.world(jax.random.key(1))

    def body(state, _):
        state, step = env.step(world, state, world[state.position], KEY)
        return state, step

    _, steps = jax.lax.scan(body, env.reset(world, KEY)[0], length=length + 8)
    assert float(steps.reward.sum()) == 10.0 == float(env.optimal_return(world))
    assert steps.truncated[-1]
    assert not steps.truncated[:-1].any()


@pytest.mark.parametrize("length", [2, 3, 5])
def test_no_sequence_of_actions_is_better(length):
    env = NChain(length=length)
    sequences = np.array(list(itertools.product([0, 1], repeat=length + 8)), np.int32)
    returns = jax.jit(jax.vmap(lambda actions: play(env, actions)[1].sum()))(sequences)
    assert float(returns.max()) == 10.0
    # Only the straight way is that good.
    assert int((returns > 9.9995).sum()) == 1


@pytest.mark.parametrize("length", [3, 10, 40])
def test_value_iteration_over_the_published_chain_finds_ten(length):
    """An own table of the chain, backwards from the last step."""
    value = np.zeros(length)
    for _ in range(length + 8):
        left = np.concatenate([[0.001 + value[0]], value[:-1]])
        right = np.concatenate([value[1:], [1.0 + value[-1]]])
        value = np.maximum(left, right)
    assert value[1] == pytest.approx(10.0)
    assert float(NChain(length=length).optimal_return(jnp.ones(length, jnp.int32))) == 10.0


def test_in_a_very_long_chain_the_small_reward_wins():
    env = NChain(length=12_000)
    _, reward, _, _ = play(env, np.zeros(env.max_steps))
    assert float(env.optimal_return(env.world(KEY))) == pytest.approx(float(reward.sum()), rel=1e-3)


def test_random_map_swaps_actions_state_by_state():
    env = NChain(length=200, action_map="random")
    world = np.asarray(env.world(KEY))
    assert 60 < world.sum() < 140  # 200 fair coins: five standard deviations on each side
    mirrored = jnp.asarray(1 - world)
    actions = np.random.RandomState(0).randint(2, size=env.max_steps)
    swapped = play(env, 1 - actions, mirrored)
    jax.tree.map(np.testing.assert_array_equal, play(env, actions, jnp.asarray(world)), swapped)


def test_mapping_seed_fixes_the_map_for_every_key():
    maps = [
        tuple(NChain(length=20, action_map="random", mapping_seed=seed).world(key).tolist())
        for seed in (0, 1)
        for key in jax.random.split(KEY, 3)
    ]
    assert len(set(maps[:3])) == len(set(maps[3:])) == 1
    assert maps[0] != maps[3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 1}, r"length: got 1, takes an integer >= 2"),
        ({"length": 2.5}, r"length: got 2.5, takes an integer >= 2"),
        ({"features": "onehot"}, r"features: got 'onehot', takes one of thermometer, one_hot"),
        ({"action_map": "mixed"}, r"action_map: got 'mixed', takes one of fixed, random"),
        ({"mapping_seed": 1}, r"mapping_seed: got 1, takes None unless action_map is random"),
        (
            {"action_map": "random", "mapping_seed": -1},
            r"mapping_seed: got -1, takes an integer from 0 to 2\*\*32 - 1, or None",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, message, monkeypatch):
    # Users run without the type checker of the tests, which would object first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        NChain(**settings)
