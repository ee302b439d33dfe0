"""The car in a valley with an engine that can push as hard as one likes, at a price."""

import dataclasses
from typing import final

import jax.numpy as jnp
import numpy as np

from randq import config, threefry
from randq.envs.base import Control, Step
from randq.envs.mountain_car import FASTEST, GRAVITY, LEFTMOST, RIGHTMOST, CarState
from randq.types import Array, Bool, Float32, Key

GOAL, POWER = 0.45, 0.0015


@final
@dataclasses.dataclass(frozen=True)
class MountainCarContinuous(Control[CarState]):
    """Gymnasium's MountainCarContinuous: 100 for the goal, less 0.1 force^2 for each step.

    An action is the force. The episode terminates at the goal, and is cut off after
    `max_episode_steps`. Not to move at all returns 0: better than most ways to learn what is best.
    """

    max_episode_steps: int = 999
    """Steps after which an episode is cut off."""

    def __post_init__(self) -> None:
        config.whole("max_episode_steps", self.max_episode_steps, at_least=1)

    def observe(self, state: CarState) -> Float32[Array, "2"]:
        return jnp.stack([state.position, state.velocity])

    def reset(self, world: tuple[()], key: Key) -> tuple[CarState, Float32[Array, "2"]]:
        position = threefry.uniform(key, (), jnp.float32, -0.6, -0.4)
        state = CarState(position, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(
        self, world: tuple[()], state: CarState, action: Float32[Array, "1"], key: Key
    ) -> tuple[CarState, Step]:
        force = jnp.clip(action[0], -1, 1)
        velocity = state.velocity + POWER * force - GRAVITY * jnp.cos(3 * state.position)
        velocity = jnp.clip(velocity, -FASTEST, FASTEST)
        position = jnp.clip(state.position + velocity, LEFTMOST, RIGHTMOST)
        at_the_wall = (position <= np.float32(LEFTMOST)) & (velocity < 0)
        velocity = jnp.where(at_the_wall, jnp.float32(0), velocity)
        state = CarState(position, velocity, state.steps + 1)
        arrived = self.good(world, state, jnp.float32(0))
        return state, Step(
            observation=self.observe(state),
            reward=jnp.where(arrived, jnp.float32(100), jnp.float32(0)) - 0.1 * action[0] ** 2,
            terminated=arrived,
            truncated=~arrived & (state.steps >= self.max_episode_steps),
        )

    def good(self, world: tuple[()], state: CarState, total: Float32[Array, ""]) -> Bool[Array, ""]:
        """At the goal."""
        return (state.position >= GOAL) & (state.velocity >= 0)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (2,)

    @property
    def observation_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([LEFTMOST, -FASTEST]), np.array([RIGHTMOST, FASTEST])

    @property
    def num_actions(self) -> int:
        return 1

    @property
    def action_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (-1.0,), (1.0,)
