"""The few types that everything shares."""

from jaxtyping import Array, Bool, Float, Float32, Int, Int32, PRNGKeyArray, PyTree, Shaped

Key = PRNGKeyArray
"""A typed random key, as `jax.random.key` makes it."""

Scalar = Float[Array, ""]
"""One number as an array, for example a cost."""

Batch = PyTree[Shaped[Array, "batch ..."]]
"""What a network takes, with a leading batch axis on every array."""

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
]
