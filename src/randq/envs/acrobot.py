"""Two links that hang down, swung up by a torque at the joint between them."""

import dataclasses
import math
from typing import NamedTuple, final

import jax.numpy as jnp
import numpy as np

from randq import config, threefry
from randq.envs.base import Control, Step
from randq.types import Array, Bool, Float32, Int32, Key

SECONDS, GRAVITY = 0.2, 9.8
LENGTH, MASS, CENTRE, INERTIA = 1.0, 1.0, 0.5, 1.0
FASTEST = (4 * math.pi, 9 * math.pi)


class AcrobotState(NamedTuple):
    """Both angles and their velocities, and how many steps of the episode are done."""

    links: Float32[Array, "4"]
    steps: Int32[Array, ""]


@final
@dataclasses.dataclass(frozen=True)
class Acrobot(Control[AcrobotState]):
    """Gymnasium's Acrobot: -1 for every step until the tip is one link above the pivot."""

    max_episode_steps: int = 500
    """Steps after which an episode is cut off."""

    def __post_init__(self) -> None:
        config.whole("max_episode_steps", self.max_episode_steps, at_least=1)

    def observe(self, state: AcrobotState) -> Float32[Array, "6"]:
        first, second, *velocities = state.links
        cos, sin = jnp.cos, jnp.sin
        return jnp.stack([cos(first), sin(first), cos(second), sin(second), *velocities])

    def reset(self, world: tuple[()], key: Key) -> tuple[AcrobotState, Float32[Array, "6"]]:
        links = threefry.uniform(key, (4,), jnp.float32, -0.1, 0.1)
        state = AcrobotState(links, jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def step(
        self, world: tuple[()], state: AcrobotState, action: Int32[Array, ""], key: Key
    ) -> tuple[AcrobotState, Step]:
        torque = (action - 1).astype(jnp.float32)
        first, second, first_dot, second_dot = _runge_kutta(state.links, torque)
        links = jnp.stack(
            [
                _wrapped(first),
                _wrapped(second),
                jnp.clip(first_dot, -FASTEST[0], FASTEST[0]),
                jnp.clip(second_dot, -FASTEST[1], FASTEST[1]),
            ]
        )
        state = AcrobotState(links, state.steps + 1)
        up = self.good(world, state, jnp.float32(0))
        return state, Step(
            observation=self.observe(state),
            reward=jnp.where(up, jnp.float32(0), jnp.float32(-1)),
            terminated=up,
            truncated=~up & (state.steps >= self.max_episode_steps),
        )

    def good(
        self, world: tuple[()], state: AcrobotState, total: Float32[Array, ""]
    ) -> Bool[Array, ""]:
        """The tip is up."""
        first, second = state.links[0], state.links[1]
        return -jnp.cos(first) - jnp.cos(first + second) > 1

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (6,)

    @property
    def observation_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        high = np.array([1.0, 1.0, 1.0, 1.0, *FASTEST])
        return -high, high

    @property
    def num_actions(self) -> int:
        return 3


def _runge_kutta(links: Float32[Array, "4"], torque: Float32[Array, ""]) -> Float32[Array, "4"]:
    """One step of the classical fourth-order rule."""
    k1 = _derivative(links, torque)
    k2 = _derivative(links + SECONDS / 2 * k1, torque)
    k3 = _derivative(links + SECONDS / 2 * k2, torque)
    k4 = _derivative(links + SECONDS * k3, torque)
    return links + SECONDS / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def _derivative(links: Float32[Array, "4"], torque: Float32[Array, ""]) -> Float32[Array, "4"]:
    """The equations of motion of Sutton and Barto's book, for two equal links."""
    first, second, first_dot, second_dot = links
    cos, sin = jnp.cos(second), jnp.sin(second)
    coupling = MASS * LENGTH * CENTRE * sin
    d1 = MASS * (2 * CENTRE**2 + LENGTH**2 + 2 * LENGTH * CENTRE * cos) + 2 * INERTIA
    d2 = MASS * (CENTRE**2 + LENGTH * CENTRE * cos) + INERTIA
    phi2 = MASS * CENTRE * GRAVITY * jnp.sin(first + second)
    phi1 = (
        -coupling * second_dot**2
        - 2 * coupling * second_dot * first_dot
        + MASS * (CENTRE + LENGTH) * GRAVITY * jnp.sin(first)
        + phi2
    )
    second_acceleration = (torque + d2 / d1 * phi1 - coupling * first_dot**2 - phi2) / (
        MASS * CENTRE**2 + INERTIA - d2**2 / d1
    )
    first_acceleration = -(d2 * second_acceleration + phi1) / d1
    return jnp.stack([first_dot, second_dot, first_acceleration, second_acceleration])


def _wrapped(angle: Float32[Array, ""]) -> Float32[Array, ""]:
    """The same angle between -pi and pi."""
    turns = jnp.round(angle / (2 * math.pi))
    return angle - 2 * math.pi * turns
