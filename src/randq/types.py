"""The few types that everything shares."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, PRNGKeyArray, PyTree, Shaped

from randq.config import require, whole

Key = PRNGKeyArray
"""A typed random key, as `jax.random.key` makes it."""

Scalar = Float[Array, ""]
"""One number as an array, for example a cost."""

Batch = PyTree[Shaped[Array, "batch ..."]]
"""What a network takes, with a leading batch axis on every array."""


class OneHot(eqx.Module):
    """A vector with a one at `index`, or of zeros alone if that lies outside.

    A network takes it in place of the vector: times a matrix, it is a row of that matrix.
    """

    index: Int32[Array, "..."]
    size: int = eqx.field(static=True)

    def dense(self, dtype: Any) -> Float[Array, "... size"]:
        return jax.nn.one_hot(self.index, self.size, dtype=dtype)


@dataclass(frozen=True)
class Spaces:
    """What an agent must know of an environment: plain numbers, so that it can be written down."""

    observation_shape: tuple[int, ...]
    num_actions: int
    """How many actions there are to choose from, or how many numbers an action is."""
    low: tuple[float | None, ...] | None = None
    """Least value of each number of an observation, in order; None where there is none."""
    high: tuple[float | None, ...] | None = None
    """Greatest value of each."""
    categories: int | None = None
    """How many observations there are, if an observation is one of so many and has no shape."""
    first_category: int = 0
    """Where the environment begins to count them."""
    dtype: Literal["float32", "uint8", "bool", "int32"] = "float32"
    """Type of an observation."""
    first_action: int = 0
    """Where the environment begins to count its actions; agents count from 0."""
    action_low: tuple[float, ...] | None = None
    """Least value of each number of an action; None where an action is one of several."""
    action_high: tuple[float, ...] | None = None
    """Greatest value of each."""
    action_shape: tuple[int, ...] | None = None
    """Shape that the environment gives those numbers, if that is not one row."""
    stack: int = 0
    """How many frames an observation is a stack of, along its first axis, the newest last: an
    episode begins with its first frame repeated, and each step adds one. 0 if it is none."""

    def __post_init__(self) -> None:
        whole("stack", self.stack, at_least=0)
        fits = not self.stack or self.observation_shape[:1] == (self.stack,)
        require(fits, "stack", self.stack, f"the first size of {self.observation_shape}, or 0")
        if self.action_low is None and self.action_high is None:
            return
        low, high = self.action_low or (), self.action_high or ()
        fits = len(low) == len(high) == self.num_actions > 0
        require(fits, "action_high", high, f"{self.num_actions} bounds, and so action_low")
        shape = (self.num_actions,) if self.action_shape is None else self.action_shape
        fits = math.prod(shape) == self.num_actions
        require(fits, "action_shape", shape, f"{self.num_actions} numbers")
        for pair in zip(low, high, strict=True):
            require(is_box(*pair), "action_high", pair, "finite bounds, the lower one first")

    def __str__(self) -> str:
        """In a few words, however many numbers there are."""
        seen = f"shape {self.observation_shape}, {self.dtype}{_range(self.low, self.high)}"
        if self.categories is not None:
            seen = f"one of {self.categories}"
        action = f"one of {self.num_actions}"
        if self.continuous:
            action = f"{self.num_actions} numbers{_range(self.action_low, self.action_high)}"
        return f"observations: {seen}; actions: {action}"

    @property
    def continuous(self) -> bool:
        """Whether an action is a vector of numbers, rather than one of several."""
        return self.action_low is not None

    def an_action(self) -> Shaped[Array, "..."]:
        """Some action, to know its shape and type by."""
        shape: tuple[int, ...] = (self.num_actions,) if self.continuous else ()
        return jnp.zeros(shape, jnp.float32 if self.continuous else jnp.int32)

    def chosen(self, output: Float[Array, "... n"]) -> Shaped[Array, "..."]:
        """The action that an agent's output stands for: the best-scored, or the numbers as such."""
        if self.continuous:
            return output.astype(jnp.float32)
        return jnp.argmax(output, axis=-1).astype(jnp.int32)


def _range(low: tuple[float | None, ...] | None, high: tuple[float | None, ...] | None) -> str:
    """From which number to which, if all of them have bounds."""
    lows, highs = ([x for x in bound or () if x is not None] for bound in (low, high))
    full = len(lows) == len(highs) == len(low or ()) > 0
    return f" from {min(lows):g} to {max(highs):g}" if full else ""


def is_box(low: float, high: float) -> bool:
    """Whether two bounds are bounds: those that are huge stand for none."""
    return math.isfinite(low) and math.isfinite(high) and 0 < high - low < 1e6


class Transition(NamedTuple):
    """One step, or with a leading axis a batch of them."""

    observation: PyTree
    action: Shaped[Array, "..."]
    """An integer, or as many numbers as an action is."""
    reward: Float32[Array, "..."]
    next_observation: PyTree
    terminated: Bool[Array, "..."]
    """Nothing to bootstrap from; never set by a time limit alone."""
    masks: Float[Array, "... members"]
    """Which members of an ensemble learn from it."""
    discount: Float32[Array, "..."] | None = None
    """What the value of the next observation counts, where that is several steps ahead; None: as
    much as after one step."""


__all__ = [
    "Array",
    "Batch",
    "Bool",
    "Float",
    "Float32",
    "Int",
    "Int32",
    "Key",
    "OneHot",
    "PyTree",
    "Scalar",
    "Shaped",
    "Spaces",
    "Transition",
    "is_box",
]
