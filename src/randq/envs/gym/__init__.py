"""The environments of this package for Gymnasium; importing this file registers them.

`gymnasium.make("randq.envs.gym:randq/NChain-v0", length=50)` imports and makes in one line.
"""

import difflib
import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.registration import EnvSpec

from randq import config, threefry
from randq.envs import ENVIRONMENTS, IDS, Environment, Step
from randq.envs.gym import atari
from randq.types import Array, Float32, Key, PyTree

# The environment is a static argument of module-level functions, so that all instances with equal
# settings (a vector of environments, for example) share one compilation.
_static = functools.partial(jax.jit, static_argnums=0)


@_static
def _begin(env: Environment[Any, Any], key: Key) -> tuple[PyTree, Key]:
    world_key, key = threefry.split(key)
    return env.world(world_key), key


@_static
def _reset(
    env: Environment[Any, Any], world: PyTree, key: Key
) -> tuple[Key, PyTree, Float32[Array, "..."]]:
    key, reset_key = threefry.split(key)
    state, observation = env.reset(world, reset_key)
    return key, state, observation


@_static
def _step(
    env: Environment[Any, Any], world: PyTree, state: PyTree, action: Array, key: Key
) -> tuple[Key, PyTree, Step]:
    key, step_key = threefry.split(key)
    state, step = env.step(world, state, action, step_key)
    return key, state, step


class GymnasiumEnv(gymnasium.Env[np.ndarray, Any]):
    """Any environment of this package behind Gymnasium's interface.

    `reset(seed=s)` decides everything that follows, the world included: it draws a new world from
    `threefry.split(jax.random.key(s))[0]`. A `reset()` without a seed stays in the world. So seed
    once, or give the environment a `mapping_seed`, to learn in one world.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, as Gymnasium declares it

    def __init__(self, environment: Environment[Any, Any]) -> None:
        self.environment = environment
        low, high = environment.observation_bounds
        shape = environment.observation_shape
        self.observation_space = gymnasium.spaces.Box(
            np.broadcast_to(np.float32(low), shape), np.broadcast_to(np.float32(high), shape)
        )
        self.action_space: gymnasium.spaces.Space[Any]
        if environment.action_bounds is None:
            self.action_space = gymnasium.spaces.Discrete(environment.num_actions)
        else:
            low, high = (np.array(bound, np.float32) for bound in environment.action_bounds)
            self.action_space = gymnasium.spaces.Box(low, high)
        self._world: PyTree = None
        self._state: PyTree = None
        self._key: Key | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self._key is None:
            # JAX keeps 32 bits of a seed and Gymnasium allows any; unseeded, its generator decides.
            drawn = self.np_random.integers(2**32) if seed is None else seed % 2**32
            self._world, self._key = _begin(self.environment, jax.random.key(int(drawn)))
        self._key, self._state, observation = _reset(self.environment, self._world, self._key)
        return np.array(observation), {}

    @property
    def rng_state(self) -> list[int]:
        """What decides all randomness to come, as plain numbers; it can be put back."""
        assert self._key is not None
        return [int(number) for number in jax.random.key_data(self._key)]

    @rng_state.setter
    def rng_state(self, numbers: list[int]) -> None:
        self._key = jax.random.wrap_key_data(jnp.array(numbers, jnp.uint32))

    def step(
        self, action: np.ndarray | np.int64 | int
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        config.require(action in self.action_space, "action", action, str(self.action_space))
        dtype = np.int32 if self.environment.action_bounds is None else np.float32
        self._key, self._state, step = _step(
            self.environment, self._world, self._state, np.asarray(action, dtype), self._key
        )
        # A copy, because what JAX hands out is a read-only view of its own buffer.
        observation = np.array(step.observation)
        return observation, step.reward.item(), step.terminated.item(), step.truncated.item(), {}


def make(name: str, **settings: Any) -> GymnasiumEnv:
    """The environment of this name in `ENVIRONMENTS`, for Gymnasium; the entry point of all ids."""
    constructor: Callable[..., Environment[Any, Any]] = ENVIRONMENTS[name]
    env = GymnasiumEnv(constructor(**settings))
    env.spec = EnvSpec(IDS[name], f"{__name__}:make", kwargs={"name": name, **settings})
    return env


def register() -> None:
    """Register the id of every environment; calling it again does nothing."""
    for name, env_id in IDS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=f"{__name__}:make", kwargs={"name": name})


register()

_MISSING = (gymnasium.error.DependencyNotInstalled, ImportError)


def find(name: str, **settings: Any) -> gymnasium.Env[Any, Any]:
    """An environment by its name here (`mountain_car`) or its id in Gymnasium (`CartPole-v1`).

    `MinAtar/Breakout-v1` and its four sisters need the extra `minatar`; Atari games, which are
    `atari-paper/Breakout` and so on (docs/atari.md), the extra `atari`. Ids of ale-py are refused,
    because they leave open how a game is played.
    """
    if name in ENVIRONMENTS:
        return make(name, **settings)
    if name.startswith("atari-"):
        return atari.make(name, **settings)
    if game := atari.bare_game(name):
        takes = " or ".join(f"{protocol}/{game}" for protocol in atari.PROTOCOLS)
        config.require(False, "env", name, f"{takes}, which settle how the game is played")
    if name.startswith("MinAtar/"):
        _register_minatar()
    if ":" not in name and name not in gymnasium.registry:
        close = difflib.get_close_matches(name, [*ENVIRONMENTS, *gymnasium.registry], n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        takes = f"{', '.join(ENVIRONMENTS)}, or an id that is registered with Gymnasium{hint}"
        config.require(False, "env", name, takes)
    try:
        return gymnasium.make(name, **settings)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        sentence = " ".join(str(error).split())
        if "mujoco" in sentence.lower() and isinstance(error, _MISSING):
            takes = 'an environment that is installed (pip install "randq[mujoco]")'
            raise ValueError(f"env: got {name!r}, takes {takes}") from error
        raise ValueError(f"env: got {name!r}, which Gymnasium cannot make ({sentence})") from error


def _register_minatar() -> None:
    try:
        from minatar.gym import register_envs
    except ImportError:
        takes = 'an environment that is installed (pip install "randq[minatar]")'
        config.require(False, "env", "MinAtar", takes)
    if not any(env_id.startswith("MinAtar/") for env_id in gymnasium.registry):
        register_envs()
