"""The contract of an environment written in JAX, and the two things its implementations share."""

import abc
import math
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from randq import config
from randq.types import Array, Bool, Float32, Int32, Key, PyTree, Shaped, Spaces

World = TypeVar("World")
State = TypeVar("State")


class Step(NamedTuple):
    """What one action led to."""

    observation: Float32[Array, "..."]
    """The true next observation, also at the end of an episode: never that of the next reset."""
    reward: Float32[Array, ""]
    terminated: Bool[Array, ""]
    """The episode ended for good: there is nothing to bootstrap from."""
    truncated: Bool[Array, ""]
    """The episode was cut off by a time limit: the state has a future that is not played."""


class Environment(abc.ABC, Generic[World, State]):
    """One example at a time, as pure functions; the caller jits, vmaps and resets.

    How to write one:

    1. Make a frozen dataclass of plain settings, so that it hashes and can be a static argument of
       `jax.jit`. Write one help line under each field (the command line shows it), and check each
       setting in `__post_init__` with `randq.config`. No field may hold an array.
    2. What is drawn once per run (an action map, say) is the *world*, a pytree that `world` makes
       from a key: vmapped seeds then live in different worlds. Return `()` if nothing is drawn.
    3. What changes from step to step is the *state*, a NamedTuple of arrays.
    4. `step` never resets. What it does after the end of an episode is undefined.
    5. Give every array its dtype (float32, int32, bool): results must not depend on JAX's flags.
    6. Add the class to `randq.envs.ENVIRONMENTS`; the contract tests, the command line and the
       Gymnasium registration follow from that line.
    """

    @abc.abstractmethod
    def world(self, key: Key) -> World:
        """Draw what stays fixed for a whole run."""

    @abc.abstractmethod
    def reset(self, world: World, key: Key) -> tuple[State, Float32[Array, "..."]]:
        """Begin an episode: its first state, and the observation of it."""

    @abc.abstractmethod
    def observe(self, state: State) -> Float32[Array, "..."]:
        """The observation of a state, so that a replay can hold states, which are smaller."""

    def encode(self, state: State) -> PyTree:
        """The observation as a network takes it: an array, or the `OneHot` that stands for it."""
        return self.observe(state)

    @abc.abstractmethod
    def step(
        self, world: World, state: State, action: Shaped[Array, "..."], key: Key
    ) -> tuple[State, Step]:
        """Take one action: an int32 from 0 to `num_actions` - 1, or float32s within bounds."""

    @abc.abstractmethod
    def optimal_return(self, world: World) -> Float32[Array, ""] | None:
        """The best expected undiscounted return of an episode; None where nobody knows it.

        Whether it is None depends on the settings alone, so it can be asked while tracing.
        """

    def good(self, world: World, state: State, total: Float32[Array, ""]) -> Bool[Array, ""]:
        """Whether an episode that ended in this state with this return is a success."""
        optimum = self.optimal_return(world)
        return jnp.zeros((), bool) if optimum is None else is_optimal(total, optimum)

    @property
    @abc.abstractmethod
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation, which is float32."""

    @property
    @abc.abstractmethod
    def observation_bounds(self) -> tuple[Any, Any]:
        """Least and greatest observation: numbers, or arrays that broadcast to the shape."""

    @property
    @abc.abstractmethod
    def num_actions(self) -> int:
        """How many actions there are, or of how many numbers one consists."""

    @property
    def action_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Least and greatest of each number of an action; None if there are actions to choose from.

        An environment whose actions are numbers says so by giving their bounds.
        """
        return None

    @property
    def spaces(self) -> Spaces:
        """What an agent must know."""
        shape = self.observation_shape
        low, high = (np.broadcast_to(np.float64(x), shape) for x in self.observation_bounds)
        action_low, action_high = self.action_bounds or (None, None)
        return Spaces(
            shape,
            self.num_actions,
            flat_bound(low),
            flat_bound(high),
            action_low=action_low,
            action_high=action_high,
        )

    @property
    @abc.abstractmethod
    def max_steps(self) -> int | None:
        """The most steps an episode can take; None where it has no limit."""

    @property
    @abc.abstractmethod
    def fixed_length(self) -> bool:
        """Whether every episode takes exactly `max_steps` steps."""


class Control(Environment[tuple[()], State]):
    """A task of control: nothing is drawn once per run, and a setting limits the steps."""

    max_episode_steps: int

    def world(self, key: Key) -> tuple[()]:
        return ()

    def optimal_return(self, world: tuple[()]) -> Float32[Array, ""] | None:
        return None

    @property
    def max_steps(self) -> int:
        return self.max_episode_steps

    @property
    def fixed_length(self) -> bool:
        return False


def flat_bound(bound: np.ndarray) -> tuple[float | None, ...]:
    """A bound of each number of an observation, in order; None where it is infinite."""
    values = bound.astype(np.float64).ravel().tolist()
    return tuple(value if math.isfinite(value) else None for value in values)


def is_optimal(
    returns: Float32[Array, "..."], optimum: Float32[Array, "..."]
) -> Bool[Array, "..."]:
    """Whether a return is the best one, up to the rounding of a sum of float32 rewards."""
    return returns >= optimum - 1e-4 * jnp.maximum(1.0, jnp.abs(optimum))


def check_mapping_seed(seed: object, maps_randomly: bool, unless: str) -> None:
    """Refuse a seed that numpy would not take, or that would silently do nothing."""
    if seed is not None:
        config.require(maps_randomly, "mapping_seed", seed, f"None unless {unless}")
        ok = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**32
        config.require(ok, "mapping_seed", seed, "an integer from 0 to 2**32 - 1, or None")


def random_action_map(
    key: Key, shape: tuple[int, ...], mapping_seed: int | None
) -> Int32[Array, "..."]:
    """For each cell, which of two actions means "right": a fair coin each.

    A `mapping_seed` replaces the key and gives the map that bsuite draws from the same seed.
    """
    if mapping_seed is None:
        return jax.random.bernoulli(key, 0.5, shape).astype(jnp.int32)
    drawn = np.random.RandomState(mapping_seed).binomial(1, 0.5, shape)
    return jnp.asarray(drawn, jnp.int32)
