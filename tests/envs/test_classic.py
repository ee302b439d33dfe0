"""The classic tasks of control, step for step beside Gymnasium's."""

import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.envs import Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum

CASES = {
    "MountainCar-v0": MountainCar(),
    "CartPole-v1": CartPole(),
    "Acrobot-v1": Acrobot(),
    "Pendulum-v1": Pendulum(),
    "MountainCarContinuous-v0": MountainCarContinuous(),
}
SINGLE = ("Acrobot-v1", "MountainCarContinuous-v0")
"""Those whose state Gymnasium holds in single precision."""
cases = pytest.mark.parametrize("name", CASES)


def numbers(name, state):
    """The state without its count of steps, as Gymnasium holds it."""
    dtype = np.float32 if name in SINGLE else np.float64
    return np.concatenate([np.reshape(dtype(x), -1) for x in state[:-1]])


def as_ours(action):
    return jnp.int32(action) if isinstance(action, int) else jnp.asarray(action)


def policy(name, observation, random):
    """Reaches the ends that there are: a goal, a fall, both walls; with some luck thrown in."""
    if CASES[name].action_bounds is not None:
        # A little more than the bounds, which both have to see to.
        force = random.normal() if random.random() < 0.3 else np.sign(observation[-1]) or 1.0
        return np.float32([1.1 * CASES[name].action_bounds[1][0] * force])
    if random.random() < 0.1:
        return int(random.integers(2))
    if name == "CartPole-v1":
        return int(observation[2] + 0.3 * observation[3] > 0)
    return 0 if observation[1 if name == "MountainCar-v0" else -2] < 0 else 2


@cases
@pytest.mark.parametrize("seed", range(3))
def test_each_step_is_gymnasiums(name, seed):
    """From each state that ours reaches, theirs goes on to the same one."""
    ours, random = CASES[name], np.random.default_rng(seed)
    theirs = gymnasium.make(name).unwrapped
    theirs.reset(seed=seed)
    key = jax.random.key(seed)
    reset, step = (jax.jit(f) for f in (ours.reset, ours.step))
    state, observation = reset((), key)
    for _ in range(ours.max_steps):
        action = policy(name, observation, random)
        theirs.state = numbers(name, state)
        theirs.steps_beyond_terminated = None
        expected, reward, terminated, _, _ = theirs.step(action)
        state, result = step((), state, as_ours(action), key)
        observation = np.asarray(result.observation)
        np.testing.assert_allclose(observation, expected, rtol=2e-5, atol=2e-6)
        assert result.terminated == terminated
        if name == "MountainCar-v0" and terminated:
            reward = 1.0
        if ours.action_bounds is None:
            assert result.reward == reward
        else:
            np.testing.assert_allclose(result.reward, reward, rtol=2e-5, atol=2e-6)
        if result.terminated or result.truncated:
            break
    assert result.terminated or result.truncated


@cases
def test_a_whole_episode_is_gymnasiums_while_rounding_allows(name):
    ours = CASES[name]
    theirs = gymnasium.make(name).unwrapped
    theirs.reset(seed=0)
    key = jax.random.key(3)
    state, _ = ours.reset((), key)
    theirs.state = numbers(name, state)
    step = jax.jit(ours.step)
    for t in range(60 if name == "CartPole-v1" else 150):
        action = t // 20 % 2 * (ours.num_actions - 1) if name != "CartPole-v1" else t % 2
        if ours.action_bounds is not None:
            action = np.float32([1.0 if t // 20 % 2 else -0.5])
        expected, _, terminated, _, _ = theirs.step(action)
        state, result = step((), state, as_ours(action), key)
        np.testing.assert_allclose(result.observation, expected, rtol=1e-3, atol=1e-3)
        assert result.terminated == terminated
        if terminated:
            break
    assert t > 10


@cases
def test_time_limits_cut_off_and_do_not_terminate(name):
    env = type(CASES[name])(max_episode_steps=5)
    state, _ = env.reset((), jax.random.key(0))
    for t in range(5):
        action = jnp.int32(t % 2) if env.action_bounds is None else jnp.zeros(1)
        state, result = env.step((), state, action, jax.random.key(0))
        assert not result.terminated
        assert bool(result.truncated) == (t == 4)


@cases
def test_starts_are_gymnasiums(name):
    """Uniform in the same box: the extremes of many starts come close to its bounds."""
    ours, theirs = CASES[name], gymnasium.make(name).unwrapped
    keys = jax.random.split(jax.random.key(0), 2000)
    starts = jax.vmap(lambda k: jnp.concatenate([jnp.ravel(x) for x in ours.reset((), k)[0][:-1]]))(
        keys
    )
    expected = np.stack([np.float64(theirs.reset(seed=s) and theirs.state) for s in range(2000)])
    width = np.ptp(expected, 0)
    for extreme in (np.min, np.max, np.mean):
        error = np.abs(extreme(starts, 0) - extreme(expected, 0))
        assert (error <= 0.01 * np.maximum(1, 4 * width)).all()


@cases
def test_bounds_are_gymnasiums(name):
    space = gymnasium.make(name).observation_space
    low, high = CASES[name].observation_bounds
    np.testing.assert_allclose(np.float32(low), space.low, rtol=1e-6)
    np.testing.assert_allclose(np.float32(high), space.high, rtol=1e-6)
    actions = gymnasium.make(name).action_space
    if CASES[name].action_bounds is None:
        assert CASES[name].num_actions == actions.n
    else:
        assert (CASES[name].num_actions,) == actions.shape
        np.testing.assert_array_equal(CASES[name].action_bounds, [actions.low, actions.high])


def test_the_papers_rewards_of_mountain_car():
    """-1 at every step, +1 at the goal; at most 1000 steps."""
    env = MountainCar()
    assert env.max_steps == 1000
    body = functools.partial(jax.jit(env.step), ())
    state, _ = env.reset((), jax.random.key(0))
    total, steps = 0.0, 0
    while steps < 1000:
        steps += 1
        action = jnp.int32(2) if state.velocity >= 0 else jnp.int32(0)  # with the momentum
        state, result = body(state, action, jax.random.key(0))
        total += float(result.reward)
        if result.terminated:
            break
    assert result.terminated
    assert total == 1 - (steps - 1)
    assert total > -200
