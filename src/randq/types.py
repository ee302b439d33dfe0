"""The few types that everything shares."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Float32, Int, Int32, PRNGKeyArray, PyTree, Shaped

Key = PRNGKeyArray
"""A typed random key, as `jax.random.key` makes it."""

Scalar = Float[Array, ""]
"""One number as an array, for example a cost."""

Batch = PyTree[Shaped[Array, "batch ..."]]
"""What a network takes, with a leading batch axis on every array."""


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
    "PyTree",
    "Scalar",
    "Shaped",
    "Transition",
]
