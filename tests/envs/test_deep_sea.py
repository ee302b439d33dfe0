"""DeepSea, step for step beside bsuite's, by hand, and its luck by counting."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.envs import DeepSea

KEY = jax.random.key(0)


class Luck:
    """Stands in for bsuite's random generator and hands out the luck that our step drew."""

    moves, noise = True, 0.0

    def rand(self):
        return 1.0 if self.moves else 0.0  # bsuite moves right if this exceeds 1 / N

    def randn(self):
        return self.noise


def bsuite_sea(env):
    from bsuite.environments import deep_sea as bsuite  # slow to import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bsuite warns about randomize_actions=False
        return bsuite.DeepSea(
            size=env.size,
            deterministic=env.deterministic,
            unscaled_move_cost=env.unscaled_move_cost,
            randomize_actions=env.randomize_actions,
            mapping_seed=env.mapping_seed,
        )


def dive(env, world, rights, key):
    """An episode that wishes to go right where `rights` says so, and all there is to know of it."""

    def body(state, wish):
        right, key = wish
        means_right = world[state.row, state.column]
        action = jnp.where(right, means_right, 1 - means_right)
        state, step = env.step(world, state, action, key)
        return state, (action, env.draw(key), step)

    state, first = env.reset(world, key)
    state, log = jax.lax.scan(body, state, (rights, jax.random.split(key, env.size)))
    return first, state, log


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (2, {"mapping_seed": 0}),
        (10, {"mapping_seed": 42}),
        (17, {"mapping_seed": 2**32 - 1, "unscaled_move_cost": 0.37}),
        (6, {"randomize_actions": False}),
        (2, {"mapping_seed": 42, "deterministic": False}),
        (3, {"mapping_seed": 1, "deterministic": False}),
        (10, {"mapping_seed": 7, "deterministic": False, "unscaled_move_cost": 0.5}),
    ],
    ids=repr,
)
def test_equals_bsuite_step_for_step(size, settings):
    env = DeepSea(size=size, **settings)
    theirs = bsuite_sea(env)
    theirs._rng = luck = Luck()
    # From never right to always right, so that every column and the treasure are seen.
    prefers_right = np.linspace(0.0, 1.0, episodes := 40)[:, None]
    rights = np.random.RandomState(size).rand(episodes, size) < prefers_right
    run = jax.jit(jax.vmap(lambda *args: dive(env, env.world(KEY), *args)))
    ours = jax.device_get(run(rights, jax.random.split(KEY, episodes)))

    bad_episodes = 0
    for episode in range(episodes):
        first, end, log = jax.tree.map(lambda leaf, i=episode: leaf[i], ours)
        np.testing.assert_array_equal(first, theirs.reset().observation)
        for t in range(size):
            action, (luck.moves, luck.noise), step = jax.tree.map(lambda leaf, t=t: leaf[t], log)
            expected = theirs.step(int(action))
            np.testing.assert_array_equal(step.observation, expected.observation)
            np.testing.assert_allclose(step.reward, expected.reward, rtol=1e-6, atol=1e-7)
            assert step.terminated == expected.last() == (expected.discount == 0.0)
            assert not step.truncated
        bad_episodes += end.bad
        assert bad_episodes == theirs.bsuite_info()["total_bad_episodes"]
    assert 0 < bad_episodes < episodes


def test_map_of_a_mapping_seed_by_value():
    # From bsuite 0.3.6, DeepSea(4, mapping_seed=42), for machines that lack bsuite.
    world = DeepSea(size=4, mapping_seed=42).world(KEY)
    assert world.tolist() == [[0, 1, 1, 1], [0, 0, 0, 1], [1, 1, 0, 1], [1, 0, 0, 0]]


@pytest.mark.parametrize("size", [2, 10, 30])
def test_straight_to_the_treasure(size):
    env = DeepSea(size=size)
    _, state, (_, _, steps) = dive(env, env.world(KEY), np.ones(size, bool), KEY)
    cost = np.float32(0.01 / size)
    np.testing.assert_array_equal(steps.reward[:-1], np.full(size - 1, -cost))
    assert float(steps.reward[-1]) == np.float32(1 - 0.01 / size)
    assert not state.bad
    assert steps.terminated.tolist() == [False] * (size - 1) + [True]
    assert not steps.observation[-1].any()
    np.testing.assert_array_equal(steps.observation[0], np.eye(size)[1][:, None] * np.eye(size)[1])
    assert float(env.optimal_return(env.world(KEY))) == pytest.approx(0.99)
    assert float(steps.reward.sum()) == pytest.approx(0.99)


@pytest.mark.parametrize("size", [2, 3, 6, 12])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("cost", [0.0, 0.01, 0.9])
def test_optimal_return_by_value_iteration(size, deterministic, cost):
    """Over the whole grid, with an own table of where right and left lead."""
    env = DeepSea(size=size, deterministic=deterministic, unscaled_move_cost=cost)
    world = env.world(KEY)
    slips = 0.0 if deterministic else 1 / size
    value = np.zeros((size + 1, size))
    for row in reversed(range(size)):
        for column in range(size):
            right = float(column == size - 1) - cost / size
            right += (1 - slips) * value[row + 1, min(column + 1, size - 1)]
            right += slips * value[row + 1, column]
            value[row, column] = max(right, value[row + 1, max(column - 1, 0)])
    assert float(env.optimal_return(world)) == pytest.approx(value[0, 0], abs=1e-6)


def test_wind_and_noise_have_the_right_size():
    size, runs = 5, 20_000
    env = DeepSea(size=size, deterministic=False)
    keys = jax.random.split(KEY, runs)
    moves, noise = jax.jit(jax.vmap(env.draw))(keys)
    # Five standard errors; a wrong probability or scale is far outside.
    assert abs(float(moves.mean()) - 0.8) < 5 * (0.8 * 0.2 / runs) ** 0.5
    assert abs(float(noise.mean())) < 5 / runs**0.5
    assert abs(float(noise.std()) - 1) < 5 / (2 * runs) ** 0.5
    assert abs(np.corrcoef(moves, noise)[0, 1]) < 5 / runs**0.5

    # Going right for ever: the share that reaches the corner, and what it is paid there.
    world, always = env.world(KEY), np.ones(size, bool)
    _, _, (_, _, steps) = jax.jit(jax.vmap(lambda key: dive(env, world, always, key)))(keys)
    arrived = np.asarray(steps.observation[:, -2, -1, -1] == 1)
    share = (1 - 1 / size) ** (size - 1)
    assert abs(arrived.mean() - share) < 5 * (share * (1 - share) / runs) ** 0.5
    paid = np.asarray(steps.reward[:, -1])
    assert abs(paid[arrived].mean() - (1 - 0.01 / size)) < 5 / arrived.sum() ** 0.5
    assert abs(paid[arrived].std() - 1) < 5 / (2 * arrived.sum()) ** 0.5
    # Only the first and the last column of the last row are noisy.
    between = ~arrived & (np.asarray(steps.observation[:, -2, -1, 0]) == 0)
    assert between.any()
    assert np.all(paid[between] == np.float32(-0.01 / size))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 1}, r"size: got 1, takes an integer >= 2"),
        ({"unscaled_move_cost": -0.1}, r"unscaled_move_cost: got -0.1, takes a number from 0 to 1"),
        (
            {"randomize_actions": False, "mapping_seed": 1},
            r"mapping_seed: got 1, takes None unless randomize_actions is true",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DeepSea(**settings)
