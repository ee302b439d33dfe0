"""Noise on actions, for agents whose posterior is a point."""

from dataclasses import dataclass
from typing import Literal, get_args

import jax.numpy as jnp

from randq.config import one_of, whole, within
from randq.types import Array, Float, Int32

Unit = Literal["steps", "episodes"]


@dataclass(frozen=True)
class Epsilon:
    """The chance of a random action, falling in a straight line."""

    start: float = 1.0
    """Chance at the beginning."""
    end: float = 0.1
    """Chance after the decay."""
    decay: int = 1000
    """How long it falls."""
    unit: Unit = "episodes"
    """What the decay counts."""

    def __post_init__(self) -> None:
        within("epsilon.start", self.start, 0.0, 1.0)
        within("epsilon.end", self.end, 0.0, 1.0)
        whole("epsilon.decay", self.decay, at_least=1)
        one_of("epsilon.unit", self.unit, get_args(Unit))

    def __call__(self, steps: Int32[Array, ""], episodes: Int32[Array, ""]) -> Float[Array, ""]:
        count = steps if self.unit == "steps" else episodes
        share = jnp.clip(count.astype(jnp.float32) / self.decay, 0.0, 1.0)
        return self.start + share * (self.end - self.start)
