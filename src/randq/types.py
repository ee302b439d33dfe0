"""The few types that everything shares."""

from typing import Any, NamedTuple

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
    "Transition",
]
