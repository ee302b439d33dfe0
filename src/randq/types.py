"""The few types that everything shares."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, PRNGKeyArray, PyTree, Shaped

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


class Transition(NamedTuple):
    """One step, or with a leading axis a batch of them."""

    observation: PyTree
    action: Int32[Array, "..."]
    reward: Float32[Array, "..."]
    next_observation: PyTree
    terminated: Bool[Array, "..."]
    """Nothing to bootstrap from; never set by a time limit alone."""
    masks: Float[Array, "... members"]
    """Which members of an ensemble learn from it."""


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
]
