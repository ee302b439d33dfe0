"""One roll-out without noise, and the two definitions of "solved"."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.envs import DeepSea, NChain
from randq.envs.base import is_optimal
from randq.evaluation import GoodShare, Streak, rollout
from randq.networks import MLP


def by_hand(env, world, scores, key):
    """Return and success of a roll-out, in a plain loop that stops at the end of the episode."""
    reset_key, steps_key = jax.random.split(key)
    keys = iter(jax.random.split(steps_key, env.max_steps))
    state, observation = env.reset(world, reset_key)
    total, over = 0.0, False
    while not over:
        action = np.argmax(scores(observation)).astype(np.int32)
        state, result = env.step(world, state, jnp.asarray(action), next(keys))
        observation, total = result.observation, total + float(result.reward)
        over = bool(result.terminated | result.truncated)
    return total, bool(env.good(world, state, jnp.float32(total)))


@pytest.mark.parametrize(
    "env", [NChain(length=4, action_map="random"), DeepSea(size=4, deterministic=False)], ids=repr
)
def test_rollout_is_a_plain_loop(env):
    def one(key):
        network_key, world_key, key = jax.random.split(key, 3)
        features = int(np.prod(env.observation_shape))
        return MLP.create(features, (), 2, key=network_key), env.world(world_key), key

    for seed in range(3):
        scores, world, key = one(jax.random.key(seed))
        ours = jax.jit(lambda w, k, s: rollout(env, w, s, k))(world, key, scores)
        total, good = by_hand(env, world, scores, key)
        assert float(ours.total) == pytest.approx(total, abs=1e-5)
        assert bool(ours.good) == good


def test_rollout_of_the_best_policy_is_optimal():
    env = NChain(length=5)
    right = jnp.array([0.0, 1.0])
    episode = rollout(env, env.world(jax.random.key(0)), lambda x: right, jax.random.key(1))
    assert float(episode.total) == 10.0
    assert episode.good
    left = rollout(env, env.world(jax.random.key(0)), lambda x: -right, jax.random.key(1))
    assert not left.good


def test_a_good_dive_is_one_that_never_left_the_diagonal():
    """bsuite's notion: in the wind, noise on the rewards decides nothing."""
    env = DeepSea(size=4, deterministic=False, randomize_actions=False)
    world = env.world(jax.random.key(0))
    best, worst = jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0])
    keys = jax.random.split(jax.random.key(1), 200)
    good = jax.vmap(lambda k: rollout(env, world, lambda x: best, k))(keys)
    assert good.good.all()
    assert (good.total < 0.5).any(), "some of them earned little"
    bad = jax.vmap(lambda k: rollout(env, world, lambda x: worst, k))(keys)
    assert not bad.good.any()
    assert (bad.total > 1.0).any(), "some of them were paid well"


def test_rewards_after_the_end_do_not_count(monkeypatch):
    """Here the episode ends early, while the environment would go on to pay."""
    step = DeepSea.step

    def early(self, world, state, action, key):
        state, result = step(self, world, state, action, key)
        return state, result._replace(terminated=state.row >= 2, reward=jnp.float32(1))

    monkeypatch.setattr(DeepSea, "step", early)
    env = DeepSea(size=5, randomize_actions=False)
    episode = rollout(env, env.world(jax.random.key(0)), lambda x: jnp.ones(2), jax.random.key(1))
    assert float(episode.total) == 2.0


def test_an_episode_without_a_limit_is_refused(monkeypatch):
    monkeypatch.setattr(NChain, "max_steps", None)
    with pytest.raises(ValueError, match="takes one whose episodes have a limit of steps"):
        rollout(NChain(), (), lambda x: x, jax.random.key(0))


# --- solved as in Figure 1 ---------------------------------------------------------------------


def streak(row, length, every=1):
    """Where the streak begins, given a string of 0 and 1 for evaluations every so many episodes."""
    counter = Streak(length)
    for i, c in enumerate(row, start=1):
        counter.add(every * i, c == "1")
    return counter.solved_at


@pytest.mark.parametrize(
    ("row", "length", "begins"),
    [
        ("111", 3, 1),  # from the first episode on, counted from 1
        ("0111", 3, 2),
        ("110111", 3, 4),  # a broken streak begins anew
        ("1101101100", 3, None),  # never long enough
        ("0111100111", 3, 2),  # the first streak counts, and not its last part or the second one
        ("11", 3, None),
        ("0001", 1, 4),
        ("0000", 1, None),
    ],
)
def test_streak(row, length, begins):
    assert streak(row, length) == begins
    # Counted in evaluations, and told in episodes.
    assert streak(row, length, every=10) == (begins and 10 * begins)


def test_the_streak_of_figure_1_is_a_hundred_long():
    assert streak("1" * 99, Streak().length) is None
    assert streak("1" * 100, Streak().length) == 1
    with pytest.raises(ValueError, match="streak: got 0, takes an integer >= 1"):
        Streak(0)


# --- solved as in bsuite -----------------------------------------------------------------------


def bsuite_solved_at(good):
    """`find_solution` of bsuite's analysis: the first episode with total_bad / episode < 0.9."""
    bad = 0
    for episode, was_good in enumerate(good, start=1):
        bad += not was_good
        if 10 * bad < 9 * episode:  # in whole numbers: 9 of 10 is not below 0.9
            return episode
    return None


def test_good_share_is_the_definition_of_bsuite():
    random = np.random.default_rng(0)
    seeds = [random.random(1000) < chance for chance in (0, 0.02, 0.09, 0.11, 0.2, 1)]
    seeds += [np.arange(1, 1001) % 10 == 0, np.arange(1, 1001) % 9 == 0, np.arange(1000) > 700]
    found = []
    for good in seeds:
        counter = GoodShare()
        for episode, was_good in enumerate(good.tolist(), start=1):
            counter.add(episode, was_good)
        found.append(counter.solved_at)
    assert found == [bsuite_solved_at(good) for good in seeds]
    assert found[0] is None
    assert found[5] == 1
    assert found[6] is None, "exactly a tenth is not more than a tenth"
    assert found[7] == 9


def test_is_optimal_up_to_rounding():
    optimum = jnp.array([10.0, 0.99, -2.0])
    assert is_optimal(jnp.array([10.0, 0.99, -2.0]), optimum).all()
    # As sums of float32 rewards come out, for example 0.99 as 1 less ten times 0.001.
    assert is_optimal(jnp.array([9.99999, 0.98999, -2.00001]), optimum).all()
    assert is_optimal(jnp.array([11.0, 1.0, 0.0]), optimum).all()
    # The next best returns: one push less at the end of the chain, a dive without the treasure.
    assert not is_optimal(jnp.array([9.0, 0.0, -2.01]), optimum).any()
    assert not is_optimal(jnp.array([9.998, 0.9885, -2.001]), optimum).any()
    assert not is_optimal(jnp.full(3, jnp.nan), optimum).any()
