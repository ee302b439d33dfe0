"""Evaluation: one roll-out with all randomness of the agent disabled, and when a task is solved."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from randq.config import whole
from randq.envs.base import Environment
from randq.types import Array, Bool, Float, Float32, Key, PyTree


class Episode(NamedTuple):
    """How one episode went."""

    total: Float32[Array, ""]
    """Its undiscounted return."""
    good: Bool[Array, ""]
    """Whether the environment calls it a success: by default, if no return can be better."""


def rollout(
    env: Environment[Any, Any],
    world: PyTree,
    scores: Callable[[Any], Float[Array, " actions"]],
    key: Key,
) -> Episode:
    """One episode that takes the best-scored action in each state."""
    if env.max_steps is None:
        raise ValueError(
            f"environment: got {env!r}, takes one whose episodes have a limit of steps"
        )
    reset_key, steps_key = jax.random.split(key)
    state, _ = env.reset(world, reset_key)

    def step(carry: Any, step_key: Key) -> tuple[Any, None]:
        state, episode, over = carry
        action = jnp.argmax(scores(env.encode(state))).astype(jnp.int32)
        state, result = env.step(world, state, action, step_key)
        total = episode.total + jnp.where(over, 0.0, result.reward)
        ends = ~over & (result.terminated | result.truncated)
        good = jnp.where(ends, env.good(world, state, total), episode.good)
        return (state, Episode(total, good), over | ends), None

    nothing = Episode(jnp.zeros(()), jnp.zeros((), bool))
    start = (state, nothing, jnp.zeros((), bool))
    keys = jax.random.split(steps_key, env.max_steps)
    (_, episode, _), _ = jax.lax.scan(step, start, keys)
    return episode


@dataclass
class Streak:
    """Solved, as in Figure 1: where the first run of `length` optimal evaluations begins."""

    seeds: int
    length: int = 100
    solved_at: np.ndarray = field(init=False)
    """Episode, counted from 1, at which the streak begins; 0 while there is none."""

    def __post_init__(self) -> None:
        whole("streak", self.length, at_least=1)
        self.solved_at = np.zeros(self.seeds, np.int64)
        self._current = np.zeros(self.seeds, np.int64)
        self._episode = 0

    def add(self, optimal: np.ndarray) -> None:
        """Take the evaluations after further episodes, as rows of seeds."""
        for row in optimal:
            self._episode += 1
            self._current = np.where(row, self._current + 1, 0)
            first = (self._current >= self.length) & (self.solved_at == 0)
            self.solved_at[first] = self._episode - self.length + 1


@dataclass
class GoodShare:
    """Solved, as bsuite has it for DeepSea: more than a tenth of all training episodes were good.

    bsuite looks at a logarithmic grid of episodes; this looks at every one, so it can be earlier.
    """

    seeds: int
    solved_at: np.ndarray = field(init=False)
    """Episode, counted from 1, at which the share was first exceeded; 0 while it was not."""

    def __post_init__(self) -> None:
        self.solved_at = np.zeros(self.seeds, np.int64)
        self._good = np.zeros(self.seeds, np.int64)
        self._episode = 0

    def add(self, good: np.ndarray) -> None:
        """Take further training episodes, as rows of seeds."""
        for row in good:
            self._episode += 1
            self._good += row
            first = (10 * self._good > self._episode) & (self.solved_at == 0)
            self.solved_at[first] = self._episode
