"""MuJoCo's environments, played by real agents."""

import numpy as np
import pytest

import randq
from randq.envs.gym import find
from randq.experiments.figure5 import FIGURE5_ENVS


@pytest.mark.parametrize("env_id", FIGURE5_ENVS)
def test_an_agent_learns_and_plays(env_id):
    agent = randq.make("mnf-ddpg", env_id, seed=1)
    agent.learn(300, progress_bar=False)
    env = find(env_id)
    observation, _ = env.reset(seed=0)
    action, _ = agent.predict(observation)
    assert action in env.action_space
    assert np.abs(agent.predict(np.stack([observation, -observation]))[0]).max() <= 1
    assert np.isfinite(agent.uncertainty(observation).std).all()
    (score,) = randq.evaluate(agent, env, episodes=1).returns
    assert np.isfinite(score)


def test_only_a_fall_ends_an_episode_for_good():
    """A hopper falls, a cheetah cannot: its episodes are cut off at 1000 steps."""
    fallen = randq.make("ddpg", "Hopper-v5", seed=0, learning_starts=2_000)
    fallen.learn(500, progress_bar=False)
    assert fallen.episodes
    assert max(played.length for played in fallen.episodes) < 1_000
    running = randq.make("ddpg", "HalfCheetah-v5", seed=0, learning_starts=2_000)
    running.learn(1_001, progress_bar=False)
    assert [played.length for played in running.episodes] == [1_000]
