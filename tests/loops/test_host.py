"""The host loop: the compiled loop's run step for step, and vectors of environments."""

import functools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from randq.envs import CartPole, MountainCar, MountainCarContinuous, NChain, Pendulum
from randq.envs.gym.stepper import Stepper
from randq.exploration import Epsilon, OrnsteinUhlenbeck, ParameterNoise
from randq.loops import host as loop
from randq.loops.compiled import Compiled
from randq.loops.host import DivergedError, Host
from randq.loops.keys import StepKeys, block_keys, run_keys
from randq.posteriors import Bootstrap
from randq.presets import AGENTS, PRESETS

TINY = {
    "hidden": (8,),
    "batch_size": 8,
    "replay_capacity": 200,
    "learning_starts": 13,
    "target_every": 20,
    "learning_rate": 0.02,
    "gamma": 0.9,
    "scale_inputs": True,
}
CHANGES = {
    "ddqn": {"epsilon": Epsilon(decay=60, unit="steps")},
    "noisy-dqn": {},
    "bbqn": {"random_steps": 15},
    "mnf-dqn": {},
    "boot-dqn-prior": {"posterior": Bootstrap(heads=3, mask_probability=0.5, prior_scale=1.0)},
    "bdqn": {"redraw_every": 5, "condition_every": 5, "condition_batch": 16},
    "ddpg": {"noise": OrnsteinUhlenbeck(dt=1.0), "random_steps": 15},
    "noisy-ddpg": {"normalise_observations": True},
    "bbqn-ddpg": {},
    "mnf-ddpg": {},
    "boot-ddpg": {"posterior": Bootstrap(heads=3, mask_probability=0.5)},
    "param-noise-ddpg": {
        "noise": OrnsteinUhlenbeck(),
        "parameter_noise": ParameterNoise(factor=1.5),
        "condition_every": 5,
        "condition_batch": 16,
    },
}
NUMBERS = {
    name: value for name, value in TINY.items() if name not in ("target_every", "scale_inputs")
} | {"hidden": (8, 8), "target_rate": 0.1, "actor_learning_rate": 0.01}
"""The same, for agents whose actions are numbers."""


class Keyed(gymnasium.Env):
    """An environment in JAX for Gymnasium, with the keys that the compiled loop would give it."""

    def __init__(self, env, seed, block):
        self.env, self.block, self.t = env, block, 0
        low, high = env.observation_bounds
        self.observation_space = gymnasium.spaces.Box(
            np.broadcast_to(np.float32(low), env.observation_shape),
            np.broadcast_to(np.float32(high), env.observation_shape),
        )
        self.action_space = gymnasium.spaces.Discrete(env.num_actions)
        if env.action_bounds is not None:
            self.action_space = gymnasium.spaces.Box(*np.float32(env.action_bounds))
        keys = run_keys(jnp.int32(seed))
        self.key, self.reset_key = keys.run, keys.env
        self.world = env.world(keys.world)
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)

    def reset(self, *, seed=None, options=None):
        self.state, observation = self._reset(self.world, self.reset_key)
        return np.array(observation), {}

    def step(self, action):
        keys, _ = block_keys(self.key, jnp.int32(self.t // self.block), self.block, 1)
        keys = StepKeys(*keys[self.t % self.block])
        self.t, self.reset_key = self.t + 1, keys.reset
        dtype = jnp.int32 if self.env.action_bounds is None else jnp.float32
        self.state, step = self._step(self.world, self.state, jnp.asarray(action, dtype), keys.env)
        observation, reward, terminated, truncated = (np.array(x) for x in step)
        return observation, float(reward), bool(terminated), bool(truncated), {}


def play(agent, stepper, calls, seed=0):
    """The state after some steps, and the actions that were taken."""
    host = Host(agent, stepper.spaces, stepper.num_envs)
    state, actions = host.step(host.init(seed), stepper.reset())
    taken = []
    for _ in range(calls):
        taken.append(np.asarray(actions))
        state, actions = host.step(state, stepper.step(taken[-1]))
    state = host._packing.unpack(state)
    rows = host.replay.packing.unpack(state.replay.items, axes=1)
    return state._replace(replay=state.replay._replace(items=rows)), np.array(taken)


CASES = [("mnf-dqn", MountainCar(max_episode_steps=17), 1), ("mnf-dqn", NChain(length=5), 3)]
CASES += [(name, CartPole(), 4) for name in CHANGES if name in PRESETS]
CASES += [("mnf-ddpg", MountainCarContinuous(max_episode_steps=30), 3)]
CASES += [(name, Pendulum(max_episode_steps=30), 1) for name in CHANGES if name not in PRESETS]


@pytest.mark.parametrize(("name", "env", "every"), CASES, ids=str)
def test_plays_the_run_of_the_compiled_loop_step_for_step(name, env, every, x64):
    """In float64, where rounding does not decide which action is the best."""
    settings = TINY if name in PRESETS else NUMBERS
    settings = {**settings, **CHANGES[name], "update_every": every, "precision": "float64"}
    agent, blocks, seed = replace(AGENTS[name], **settings), 120 // every, 3

    program = Compiled(agent, env)
    theirs = program.init(jnp.array([seed], jnp.int32))
    theirs, _ = program.run(theirs, 1)
    for _ in range(blocks - 1):
        theirs, _ = program.run(theirs, 1)
    ours, actions = play(agent, Stepper(Keyed(env, seed, every)), every * blocks, seed)

    steps = every * blocks
    stored = jax.tree.map(lambda x: np.asarray(x[0, :steps]), theirs.replay.items)
    kept = jax.tree.map(lambda x: np.asarray(x[:steps]), ours.replay.items)
    assert len(np.unique(stored.action)) > 1
    # The arithmetic of an environment may be fused in another way inside the large program.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    equal = np.testing.assert_array_equal if env.action_bounds is None else close
    equal(actions[:, 0], stored.action)
    for mine, other in zip(kept[1:3] + kept[4:6], stored[1:3] + stored[4:6], strict=True):
        equal(mine, other)
    observe = jax.vmap(env.observe)
    close(kept.observation, observe(stored.observation))
    close(kept.next_observation, observe(stored.next_observation))
    for count in ("steps", "episodes", "updates"):
        assert int(getattr(ours.agent, count)) == int(getattr(theirs.agent, count)[0])
    assert int(ours.agent.updates) > 20

    def numbers(tree):
        return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]

    for part in set(ours.agent._fields) & {"posterior", "actor", "statistics", "noise_std"}:
        mine, other = (numbers(getattr(x.agent, part)) for x in (ours, theirs))
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(a, b[0], rtol=1e-4, atol=1e-5)


class Clockwork(gymnasium.Env):
    """Tells which episode of which environment it is in, and the time; ends after 3 or 4 steps."""

    observation_space = gymnasium.spaces.Box(-1, 1000, (3,))
    action_space = gymnasium.spaces.Discrete(2, start=5)

    def __init__(self, number):
        self.number, self.episode = number, -1
        self.actions = []

    def _observation(self):
        return np.array([self.number, self.episode, self.time], np.float32)

    def reset(self, *, seed=None, options=None):
        self.episode, self.time = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action):
        assert action in self.action_space
        self.actions.append(np.array(action))
        self.time += 1
        odd = (self.episode + self.number) % 2
        over = self.time == 3 + odd
        reward = float(self.number + self.time)
        return self._observation(), reward, over and bool(odd), over and not odd, {}


class NumberedClockwork(Clockwork):
    """The same with actions that are numbers, within bounds of which none is in the middle."""

    action_space = gymnasium.spaces.Box(np.float32([-1, 2]), np.float32([3, 2.5]))


def vector(mode, number=3):
    makers = [functools.partial(Clockwork, i) for i in range(number)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


@functools.cache
def vector_run(mode):
    agent = replace(PRESETS["mnf-dqn"], **TINY, update_every=4)
    env = vector(mode)
    state, _ = play(agent, Stepper(env), 20)
    return env, jax.tree.map(np.asarray, state.replay), state.agent


@pytest.mark.parametrize("mode", AutoresetMode)
def test_every_autoreset_mode_stores_the_true_transitions(mode):
    env, replay, agent = vector_run(mode)
    items = jax.tree.map(lambda x: x[: replay.written], replay.items)
    number, episode, time = items.observation.T
    np.testing.assert_array_equal(
        items.next_observation - items.observation, [[0, 0, 1]] * len(time)
    )
    np.testing.assert_array_equal(items.reward, number + time + 1)
    odd = (episode + number) % 2 == 1
    np.testing.assert_array_equal(items.terminated, odd & (time == 3))
    for i in range(3):
        mine = number == i
        # Nothing is stored twice, and nothing left out but the idle steps of the mode.
        ours = list(zip(episode[mine], time[mine], strict=True))
        assert ours == sorted(set(ours))
        lengths = [3 + (e + i) % 2 for e in range(int(episode[mine].max()))]
        complete = [(e, t) for e, length in enumerate(lengths) for t in range(length)]
        assert ours[: len(complete)] == complete
        # The environment was told what is stored, counted as it counts.
        told = np.array(env.envs[i].actions)
        np.testing.assert_array_equal(told - 5, items.action[mine])
    idle = 20 * 3 - int(replay.written)
    assert (idle > 0) == (mode is AutoresetMode.NEXT_STEP)
    assert int(agent.steps) == replay.written
    updates = int(agent.steps) // 4 - TINY["learning_starts"] // 4
    assert abs(int(agent.updates) - updates) <= 1


def test_each_environment_holds_its_own_draw_and_redraws_it_when_its_episode_ends():
    settings = {**TINY, "redraw_update": False, "update_every": 4}
    agent = replace(PRESETS["mnf-dqn"], **settings)
    stepper = Stepper(vector(AutoresetMode.SAME_STEP))
    host = Host(agent, stepper.spaces, stepper.num_envs)
    state, actions = host.step(host.init(0), stepper.reset())

    def weights():
        return np.asarray(host._packing.unpack(state).agent.draw.head.weight)

    assert not np.array_equal(weights()[0], weights()[1])
    seen = set()
    for _ in range(12):
        before = weights().copy()
        arrived = stepper.step(np.asarray(actions))
        state, actions = host.step(state, arrived)
        changed = (weights() != before).any(axis=(1, 2))
        ended = arrived.terminated | arrived.truncated
        np.testing.assert_array_equal(changed, ended)
        seen.add(tuple(ended))
    assert len(seen) > 2


def test_a_vector_never_learns_twice_with_the_same_random_numbers():
    """Four environments take four steps in a call, so that each call learns."""
    env = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4)
    agent = replace(PRESETS["mnf-dqn"], **TINY, update_every=4)
    stepper = Stepper(env)
    host = Host(agent, stepper.spaces, stepper.num_envs)
    state, actions = host.step(host.init(0), stepper.reset(0))
    keys, updates = [], []
    for _ in range(16):
        state, actions = host.step(state, stepper.step(np.asarray(actions)))
        seen = host.unpacked(state)
        keys += [np.asarray(jax.random.key_data(key)).tobytes() for key in seen.update_keys]
        updates.append(int(seen.agent.updates))
    assert updates[-1] > 10
    assert len(set(keys)) == len(keys)


def seeded(name):
    """An agent that seldom learns, in an environment with short episodes."""
    settings = TINY if name in PRESETS else NUMBERS
    agent = replace(AGENTS[name], **{**settings, **CHANGES[name], "update_every": 4})
    env = "CartPole-v1" if name in PRESETS else "Pendulum-v1"
    stepper = Stepper(gymnasium.make(env, max_episode_steps=30))
    stepper.env.reset(seed=0)
    return agent, stepper


@pytest.mark.parametrize("name", ["mnf-dqn", "bdqn", "ddpg", "mnf-ddpg"])
def test_a_large_draw_stays_where_it_is_until_it_is_outdated(name, monkeypatch):
    agent, stepper = seeded(name)
    kept = []
    for large in (loop.LARGE, 0):
        monkeypatch.setattr(loop, "LARGE", large)
        program = Host(agent, stepper.spaces)
        assert not program._keeps(0, 0, stepper.reset()), "an episode begins"
        arrived = stepper.step(np.asarray(stepper.env.action_space.sample())[None])
        kept.append(program._keeps(100, 101, arrived))
        if name == "bdqn":
            assert not program._keeps(104, 105, arrived), "every five steps"
        else:
            over = arrived._replace(truncated=np.array([True]))
            assert not program._keeps(100, 101, over), "an episode ends"
    assert kept == [False, name != "ddpg"], "noise on actions is another one at each step"


def test_draws_that_stay_change_nothing(monkeypatch):
    runs = []
    for large in (loop.LARGE, 0):
        monkeypatch.setattr(loop, "LARGE", large)
        runs.append(play(*seeded("mnf-dqn"), 120))
    (a, actions), (b, same) = runs
    np.testing.assert_array_equal(actions, same)
    for state in (a, b):
        assert not state.agent.stale.any()
    for x, y in zip(jax.tree.leaves(a.agent.draw), jax.tree.leaves(b.agent.draw), strict=True):
        np.testing.assert_array_equal(x, y)


def test_categories_are_rows_of_the_first_layer():
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    agent = replace(PRESETS["ddqn"], **TINY, update_every=1)
    state, _ = play(agent, Stepper(env), 60)
    assert state.agent.posterior.network.hidden[0].weight.shape == (16, 8)
    assert int(state.agent.updates) > 40
    assert state.replay.items.observation.shape[1:] == ()


def test_counts_updates_in_episodes_if_it_is_told_to():
    agent = replace(PRESETS["bbqn"], **TINY, updates_per_episode=2)
    state, _ = play(agent, Stepper(Clockwork(0)), 28)
    assert int(state.agent.episodes) == 8
    assert int(state.agent.updates) == 2 * 5  # those that ended before the 13th step have none


@pytest.mark.parametrize("name", ["ddpg", "boot-ddpg"])
def test_a_vector_of_environments_with_actions_that_are_numbers(name):
    changes = {**NUMBERS, "noise": OrnsteinUhlenbeck(sigma=2.0, dt=1.0), "update_every": 4}
    makers = [functools.partial(NumberedClockwork, i) for i in range(3)]
    env = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    state, _ = play(replace(AGENTS[name], **changes), Stepper(env), 20)
    replay = jax.tree.map(np.asarray, state.replay)
    items = jax.tree.map(lambda x: x[: replay.written], replay.items)
    assert items.action.dtype == np.float32
    number = items.observation[:, 0]
    for i in range(3):
        # What is stored is what the environment was told.
        np.testing.assert_array_equal(env.envs[i].actions, items.action[number == i])
    for column, (low, high) in enumerate(((-1, 3), (2, 2.5))):
        assert items.action[:, column].min() == low
        assert items.action[:, column].max() == high
    noise = np.asarray(state.agent.draw.noise)
    assert noise.shape == (3, 2)
    assert np.unique(noise).size == 6
    assert int(state.agent.updates) > 5


def test_an_agent_that_went_wrong_answers_with_no_action():
    agent = replace(AGENTS["mnf-ddpg"], **NUMBERS)
    stepper = Stepper(gymnasium.make("Pendulum-v1"))
    host = Host(agent, stepper.spaces)
    state, actions = host.step(host.init(0), stepper.reset(0))
    assert not host.refuses(np.asarray(actions))
    for _ in range(20):
        arrived = stepper.step(np.asarray(actions))
        state, actions = host.step(state, arrived)
    assert not host.refuses(np.asarray(actions))
    broken = arrived._replace(reward=np.float32([np.inf]))
    for _ in range(200):
        state, actions = host.step(state, broken)
    assert host.refuses(np.asarray(actions))
    with pytest.raises(DivergedError, match="learning diverged"):
        host.check(state)
    weights = jax.tree.leaves(host.memory(state).agent.actor)
    assert all(np.isfinite(x).all() for x in weights)


def test_what_a_loaded_agent_explores_with():
    agent = replace(AGENTS["ddpg"], **NUMBERS)
    stepper = Stepper(gymnasium.make("Pendulum-v1"))
    host = Host(agent, stepper.spaces)
    state, _ = host.step(host.init(0), stepper.reset(0))
    memory = host.memory(state)
    x = jnp.array([0.1, 0.2, 0.3])
    first = jax.tree.map(lambda x: x[0], memory.agent.draw)
    held = memory.agent._replace(draw=first, stale=memory.agent.stale[0])
    expected = agent.act(held, x, jax.random.key(0))
    np.testing.assert_allclose(memory.held(agent)(x), expected, rtol=1e-5)
    again = host.memory(host.init(1, memory))
    np.testing.assert_array_equal(again.agent.actor.head.weight, memory.agent.actor.head.weight)


WOKEN = """
import json, os, randq

def switches():
    found = {}
    for task in os.listdir("/proc/self/task"):
        lines = open(f"/proc/self/task/{task}/status").read().splitlines()
        found[task] = int(next(x for x in lines if x.startswith("voluntary")).split()[1])
    return found

agent = randq.make("dqn", "CartPole-v1", learning_starts=70)
agent.learn(200, progress_bar=False)
before = switches()
agent.learn(500, progress_bar=False)
after = switches()
others = set(before) - {str(os.getpid())}
print(json.dumps(sum(after[x] - before[x] for x in others if x in after)))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux says who slept")
def test_a_step_of_a_small_network_wakes_no_other_thread():
    environment = os.environ | {"NPROC": "1"}  # else XLA may split a single operation
    done = subprocess.run(
        [sys.executable, "-c", WOKEN], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) < 100  # of 500 steps
