"""A pendulum that hangs from a motor, to be swung up and held upright."""

import dataclasses
import math
from typing import NamedTuple, final

import jax.numpy as jnp
import numpy as np

from randq import config, threefry
from randq.envs.base import Control, Step
from randq.types import Array, Float32, Int32, Key

SECONDS, GRAVITY, MASS, LENGTH = 0.05, 10.0, 1.0, 1.0
FASTEST, STRONGEST = 8.0, 2.0


class PendulumState(NamedTuple):
    """Angle from upright (-pi to pi) and its velocity, and how many steps are done."""

    theta: Float32[Array, ""]
    theta_dot: Float32[Array, ""]
    steps: Int32[Array, ""]


@final
@dataclasses.dataclass(frozen=True)
class Pendulum(Control[PendulumState]):
    """Gymnasium's Pendulum: each step costs angle^2 + 0.1 velocity^2 + 0.001 torque^2.

    An action is the torque. An episode never terminates: it is cut off.
    """

    max_episode_steps: int = 200
    """Steps after which an episode is cut off."""

    def __post_init__(self) -> None:
        config.whole("max_episode_steps", self.max_episode_steps, at_least=1)

    def observe(self, state: PendulumState) -> Float32[Array, "3"]:
        return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta), state.theta_dot])

    def reset(self, world: tuple[()], key: Key) -> tuple[PendulumState, Float32[Array, "3"]]:
        theta, theta_dot = threefry.uniform(key, (2,), jnp.float32, -1.0, 1.0)
        state = PendulumState(math.pi * theta, theta_dot, jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(
        self, world: tuple[()], state: PendulumState, action: Float32[Array, "1"], key: Key
    ) -> tuple[PendulumState, Step]:
        torque = jnp.clip(action[0], -STRONGEST, STRONGEST)
        theta, theta_dot, steps = state
        cost = theta**2 + 0.1 * theta_dot**2 + 0.001 * torque**2
        pull = 3 * GRAVITY / (2 * LENGTH) * jnp.sin(theta)
        push = 3 / (MASS * LENGTH**2) * torque
        theta_dot = jnp.clip(theta_dot + SECONDS * (pull + push), -FASTEST, FASTEST)
        # Where it was before it turned round makes no difference, and would cost digits.
        state = PendulumState(_wrapped(theta + SECONDS * theta_dot), theta_dot, steps + 1)
        return state, Step(
            observation=self.observe(state),
            reward=-cost,
            terminated=jnp.zeros((), bool),
            truncated=state.steps >= self.max_episode_steps,
        )

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (3,)

    @property
    def observation_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        high = np.array([1.0, 1.0, FASTEST])
        return -high, high

    @property
    def num_actions(self) -> int:
        return 1

    @property
    def action_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (-STRONGEST,), (STRONGEST,)

    @property
    def fixed_length(self) -> bool:
        return True


def _wrapped(angle: Float32[Array, ""]) -> Float32[Array, ""]:
    """The same angle between -pi and pi."""
    return (angle + math.pi) % (2 * math.pi) - math.pi
