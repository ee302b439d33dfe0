"""A car in a valley, too weak to drive straight out: a sparse reward in a continuous state."""

import dataclasses
from typing import NamedTuple, final

import jax.numpy as jnp
import numpy as np

from randq import config, threefry
from randq.envs.base import Control, Step
from randq.types import Array, Bool, Float32, Int32, Key

LEFTMOST, RIGHTMOST, GOAL = -1.2, 0.6, 0.5
FASTEST = 0.07
FORCE, GRAVITY = 0.001, 0.0025


class CarState(NamedTuple):
    """Where the car is, how fast it goes, and how many steps of the episode are done."""

    position: Float32[Array, ""]
    velocity: Float32[Array, ""]
    steps: Int32[Array, ""]


@final
@dataclasses.dataclass(frozen=True)
class MountainCar(Control[CarState]):
    """Gymnasium's MountainCar with the paper's rewards: -1 for a step, +1 for the one to the goal.

    Actions push left, not at all, or right. The episode terminates at the goal, and is cut off
    after `max_episode_steps`.
    """

    max_episode_steps: int = 1000
    """Steps after which an episode is cut off (the paper has 1000, Gymnasium 200)."""
    goal_reward: float = 1.0
    """Reward of the step that reaches the goal (the paper has 1, Gymnasium -1)."""

    def __post_init__(self) -> None:
        config.whole("max_episode_steps", self.max_episode_steps, at_least=1)
        config.within("goal_reward", self.goal_reward, -1e6, 1e6)

    def observe(self, state: CarState) -> Float32[Array, "2"]:
        return jnp.stack([state.position, state.velocity])

    def reset(self, world: tuple[()], key: Key) -> tuple[CarState, Float32[Array, "2"]]:
        position = threefry.uniform(key, (), jnp.float32, -0.6, -0.4)
        state = CarState(position, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(
        self, world: tuple[()], state: CarState, action: Int32[Array, ""], key: Key
    ) -> tuple[CarState, Step]:
        push = (action - 1).astype(jnp.float32) * np.float32(FORCE)
        velocity = state.velocity + push - np.float32(GRAVITY) * jnp.cos(3 * state.position)
        velocity = jnp.clip(velocity, -FASTEST, FASTEST)
        position = jnp.clip(state.position + velocity, LEFTMOST, RIGHTMOST)
        at_the_wall = (position <= np.float32(LEFTMOST)) & (velocity < 0)
        velocity = jnp.where(at_the_wall, jnp.float32(0), velocity)
        state = CarState(position, velocity, state.steps + 1)
        arrived = self.good(world, state, jnp.float32(0))
        return state, Step(
            observation=self.observe(state),
            reward=jnp.where(arrived, jnp.float32(self.goal_reward), jnp.float32(-1)),
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
        return 3
