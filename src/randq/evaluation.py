"""Evaluation: one roll-out with all randomness of the agent disabled, and when a task is solved."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from randq import threefry
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
    scores: Callable[[Any], Float[Array, " n"]],
    key: Key,
) -> Episode:
    """One episode that takes the best-scored action in each state, or the one that is given."""
    if env.max_steps is None:
        raise ValueError(
            f"environment: got {env!r}, takes one whose episodes have a limit of steps"
        )
    reset_key, steps_key = threefry.split(key)
    keys = threefry.split(steps_key, env.max_steps)

    def step(carry: Any) -> Any:
        state, episode, _, i = carry
        action = env.spaces.chosen(scores(env.encode(state)))
        state, result = env.step(world, state, action, keys[i])
        total = episode.total + result.reward
        episode = Episode(total, env.good(world, state, total))
        return state, episode, result.terminated | result.truncated, i + 1

    state, _ = env.reset(world, reset_key)
    nothing = Episode(jnp.zeros((), jnp.float32), jnp.zeros((), bool))
    start = (state, nothing, jnp.zeros((), bool), jnp.zeros((), jnp.int32))
    goes_on = lambda carry: ~carry[2] & (carry[3] < env.max_steps)  # noqa: E731
    return jax.lax.while_loop(goes_on, step, start)[1]


@dataclass
class Streak:
    """Solved, as in Figure 1: where the first run of `length` optimal evaluations begins."""

    length: int = 100
    solved_at: int | None = None
    """Episode, counted from 1, at which the streak begins; None while there is none."""
    begins: int = 0
    """Where the streak that is under way began ..."""
    current: int = 0
    """... and how long it is."""

    def __post_init__(self) -> None:
        whole("streak", self.length, at_least=1)

    def add(self, episode: int, optimal: bool) -> None:
        """Take the evaluation after an episode."""
        if not optimal:
            self.current = 0
            return
        self.begins = self.begins if self.current else episode
        self.current += 1
        if self.current >= self.length and self.solved_at is None:
            self.solved_at = self.begins


@dataclass
class GoodShare:
    """Solved, as bsuite has it for DeepSea: more than a tenth of all training episodes were good.

    bsuite looks at a logarithmic grid of episodes; this looks at every one, so it can be earlier.
    """

    solved_at: int | None = None
    """Episode, counted from 1, at which the share was first exceeded; None while it was not."""
    good: int = 0
    """Episodes so far that were good."""

    def add(self, episode: int, good: bool) -> None:
        """Take the next training episode."""
        self.good += good
        if 10 * self.good > episode and self.solved_at is None:
            self.solved_at = episode
