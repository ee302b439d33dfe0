"""The environments behind Gymnasium: its own checker, and the JAX versions step for step."""

import pickle
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import randq.envs.gym
from randq.envs import ENVIRONMENTS, DeepSea, NChain

CASES = [
    ("randq/NChain-v0", NChain, {}),
    ("randq/NChain-v0", NChain, {"length": 50, "features": "one_hot", "action_map": "random"}),
    ("randq/DeepSea-v0", DeepSea, {}),
    ("randq/DeepSea-v0", DeepSea, {"size": 6, "deterministic": False, "mapping_seed": 42}),
]
cases = pytest.mark.parametrize(("env_id", "cls", "settings"), CASES)


@pytest.mark.parametrize("cls", ENVIRONMENTS.values())
def test_every_environment_is_registered(cls):
    env = gymnasium.make(f"randq/{cls.__name__}-v0")
    assert env.unwrapped.environment == cls()


@cases
def test_passes_gymnasiums_checker_without_a_warning(env_id, cls, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(env_id, **settings).unwrapped)


@cases
def test_equals_the_jax_environment_step_for_step(env_id, cls, settings):
    host, env = gymnasium.make(env_id, **settings), cls(**settings)
    world_key, key = jax.random.split(jax.random.key(5))
    world = env.world(world_key)
    step = jax.jit(env.step)
    rng = np.random.RandomState(0)
    for episode in range(4):
        theirs, info = host.reset(seed=5 if episode == 0 else None)
        key, reset_key = jax.random.split(key)
        state, ours = env.reset(world, reset_key)
        np.testing.assert_array_equal(theirs, ours)
        over = False
        while not over:
            # Often the same action, so that the far end of the chain is seen.
            action = np.int64(rng.rand() < episode / 3)
            observation, reward, terminated, truncated, info = host.step(action)
            key, step_key = jax.random.split(key)
            state, ours = step(world, state, jnp.int32(action), step_key)
            np.testing.assert_array_equal(observation, ours.observation)
            assert observation.dtype == np.float32
            assert observation.flags.writeable
            assert reward == float(ours.reward)
            assert (terminated, truncated) == (bool(ours.terminated), bool(ours.truncated))
            assert info == {}
            over = terminated or truncated


def worlds(env, seeds):
    for seed in seeds:
        env.reset(seed=seed)
        yield np.asarray(env.unwrapped._world).tobytes()


def test_a_seed_decides_the_world_and_an_unseeded_reset_stays_in_it():
    env = gymnasium.make("randq/DeepSea-v0")
    first, kept, other, again = worlds(env, [3, None, 4, 3])
    assert first == kept == again != other
    assert [first] == list(worlds(gymnasium.make("randq/DeepSea-v0"), [3]))
    # Without any seed, two instances live in different worlds.
    unseeded = [next(worlds(gymnasium.make("randq/DeepSea-v0"), [None])) for _ in range(2)]
    assert unseeded[0] != unseeded[1]
    fixed = gymnasium.make("randq/DeepSea-v0", mapping_seed=42)
    assert len(set(worlds(fixed, [0, 1, None]))) == 1


def test_seeds_beyond_32_bits_work():
    env = gymnasium.make("randq/NChain-v0")
    env.reset(seed=2**70)


def test_wrong_actions_and_settings_are_refused():
    env = gymnasium.make("randq/NChain-v0", disable_env_checker=True).unwrapped
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: got 2, takes Discrete\(2\)"):
        env.step(2)
    with pytest.raises(ValueError, match="length: got 1, takes an integer >= 2"):
        gymnasium.make("randq/NChain-v0", length=1)


def test_specification_survives_json_and_pickle():
    spec = gymnasium.make("randq/NChain-v0", length=20).spec
    for copy in (
        gymnasium.envs.registration.EnvSpec.from_json(spec.to_json()),
        pickle.loads(pickle.dumps(spec)),
    ):
        assert gymnasium.make(copy).unwrapped.environment == NChain(length=20)


def test_vector_of_environments():
    envs = gymnasium.make_vec("randq/DeepSea-v0", num_envs=3, vectorization_mode="sync", size=5)
    observations, _ = envs.reset(seed=0)
    assert observations.shape == (3, 5, 5)
    observations, rewards, *_ = envs.step(np.array([0, 1, 1]))
    assert observations.shape == (3, 5, 5)
    assert rewards.shape == (3,)


def test_registering_twice_is_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        randq.envs.gym.register()


def test_actions_that_are_numbers():
    env = gymnasium.make("randq/MountainCarContinuous-v0").unwrapped
    assert env.action_space == gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: got array\(\[1.5\].*takes Box\(-1.0, 1.0"):
        env.step(np.float32([1.5]))
    _, reward, *_ = env.step(np.float32([0.5]))
    assert reward == pytest.approx(-0.025)


def test_without_mujoco_the_message_says_how_to_install_it(monkeypatch):
    def fails(name, **settings):
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed, run ...")

    monkeypatch.setattr(gymnasium, "make", fails)
    with pytest.raises(ValueError, match=r'HalfCheetah-v5.*pip install "randq\[mujoco\]"'):
        randq.envs.gym.find("HalfCheetah-v5")
