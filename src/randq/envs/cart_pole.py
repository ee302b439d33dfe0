"""A pole on a cart, kept upright by pushing the cart left and right."""

import dataclasses
import math
from typing import NamedTuple, final

import jax.numpy as jnp
import numpy as np

from randq import config, threefry
from randq.envs.base import Control, Step
from randq.types import Array, Bool, Float32, Int32, Key

GRAVITY, FORCE, SECONDS = 9.8, 10.0, 0.02
CART, POLE, HALF_LENGTH = 1.0, 0.1, 0.5
TOTAL, MOMENT = CART + POLE, POLE * HALF_LENGTH
FURTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360


class PoleState(NamedTuple):
    """Position and angle with their velocities, and how many steps of the episode are done."""

    x: Float32[Array, ""]
    x_dot: Float32[Array, ""]
    theta: Float32[Array, ""]
    theta_dot: Float32[Array, ""]
    steps: Int32[Array, ""]


@final
@dataclasses.dataclass(frozen=True)
class CartPole(Control[PoleState]):
    """Gymnasium's CartPole: 1 for every step until the pole falls or the cart leaves the track."""

    max_episode_steps: int = 500
    """Steps after which an episode is cut off."""

    def __post_init__(self) -> None:
        config.whole("max_episode_steps", self.max_episode_steps, at_least=1)

    def observe(self, state: PoleState) -> Float32[Array, "4"]:
        return jnp.stack(state[:4])

    def reset(self, world: tuple[()], key: Key) -> tuple[PoleState, Float32[Array, "4"]]:
        x, x_dot, theta, theta_dot = threefry.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        state = PoleState(x, x_dot, theta, theta_dot, jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(
        self, world: tuple[()], state: PoleState, action: Int32[Array, ""], key: Key
    ) -> tuple[PoleState, Step]:
        x, x_dot, theta, theta_dot, steps = state
        force = jnp.where(action == 1, jnp.float32(FORCE), jnp.float32(-FORCE))
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        push = (force + MOMENT * theta_dot**2 * sin) / TOTAL
        theta_acceleration = (GRAVITY * sin - cos * push) / (
            HALF_LENGTH * (4 / 3 - POLE * cos**2 / TOTAL)
        )
        acceleration = push - MOMENT * theta_acceleration * cos / TOTAL
        state = PoleState(
            x=x + SECONDS * x_dot,
            x_dot=x_dot + SECONDS * acceleration,
            theta=theta + SECONDS * theta_dot,
            theta_dot=theta_dot + SECONDS * theta_acceleration,
            steps=steps + 1,
        )
        fallen = self._fallen(state)
        return state, Step(
            observation=self.observe(state),
            reward=jnp.ones((), jnp.float32),
            terminated=fallen,
            truncated=~fallen & (state.steps >= self.max_episode_steps),
        )

    def _fallen(self, state: PoleState) -> Bool[Array, ""]:
        return (jnp.abs(state.x) > FURTHEST) | (jnp.abs(state.theta) > STEEPEST)

    def optimal_return(self, world: tuple[()]) -> Float32[Array, ""]:
        return jnp.float32(self.max_episode_steps)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (4,)

    @property
    def observation_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        high = np.array([2 * FURTHEST, np.inf, 2 * STEEPEST, np.inf])
        return -high, high

    @property
    def num_actions(self) -> int:
        return 2
