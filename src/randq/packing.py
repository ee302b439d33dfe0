"""Many small arrays as a few: each that a compiled call takes or returns costs microseconds.

A `Packing` knows the shapes of a tree's leaves. It puts those of one type side by side in one
array, up to a size; larger ones stay as they are. Leading axes, such as one of slots, are kept.
A *message* is arrays of numpy as one, of bytes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from randq.types import Array, PyTree, Shaped

LARGE = 2**14
"""Leaves with more numbers than this are not packed: copying them would cost more than it saves.
It is one number for all, so that what one part of a program packs the next need not take apart."""


class Packing:
    """How a tree of arrays is packed, and unpacked again."""

    def __init__(self, example: PyTree, large: int | float = LARGE) -> None:
        leaves, self._tree = jax.tree.flatten(jax.eval_shape(_plain, example))
        self._keys = jax.tree.map(_is_key, example)
        self._shapes = [leaf.shape for leaf in leaves]
        self._alone = [i for i, x in enumerate(leaves) if x.size > large]
        small = [i for i in range(len(leaves)) if i not in set(self._alone)]
        types = sorted({str(leaves[i].dtype) for i in small})
        self._groups = [[i for i in small if str(leaves[i].dtype) == t] for t in types]

    def number(self, packed: list[Any], find: Callable[[PyTree], Any]) -> int:
        """One small whole number of the tree, the one that `find` picks."""
        group, start = find(self._places)
        return int(np.asarray(packed[group])[start])

    @cached_property
    def _places(self) -> PyTree:
        """The tree, with the group of each leaf that is packed and where it begins there."""
        places: list[Any] = [None] * len(self._shapes)
        for number, group in enumerate(self._groups):
            start = 0
            for i in group:
                places[i] = number, start
                start += math.prod(self._shapes[i])
        return jax.tree.unflatten(self._tree, places)

    def pack(self, tree: PyTree, axes: int = 0) -> list[Array]:
        """The tree as a few arrays; each of its leaves has so many leading axes."""
        leaves = jax.tree.leaves(_plain(tree))
        rows = [x.reshape(*x.shape[:axes], -1) for x in leaves]
        groups = [jnp.concatenate([rows[i] for i in group], axis=axes) for group in self._groups]
        return [*groups, *(leaves[i] for i in self._alone)]

    def unpack(self, packed: list[Any], axes: int = 0) -> PyTree:
        """The tree again, of JAX's arrays or of views of numpy's."""
        leaves: list[Any] = [None] * len(self._shapes)
        for group, row in zip(self._groups, packed, strict=False):
            start = 0
            for i in group:
                size = math.prod(self._shapes[i])
                part = row[..., start : start + size]
                leaves[i] = part.reshape((*row.shape[:axes], *self._shapes[i]))
                start += size
        for i, leaf in zip(self._alone, packed[len(self._groups) :], strict=True):
            leaves[i] = leaf
        plain = jax.tree.unflatten(self._tree, leaves)
        wrap = jax.random.wrap_key_data
        return jax.tree.map(lambda is_key, x: wrap(x) if is_key else x, self._keys, plain)


def message(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """The bytes of arrays, one after the other."""
    return np.frombuffer(b"".join([x.tobytes() for x in arrays]), np.uint8)


def read(message: Shaped[Array, " bytes"], shapes: Sequence[jax.ShapeDtypeStruct]) -> list[Array]:
    """Arrays of these shapes and types from a message, inside a program."""
    arrays, start = [], 0
    for one in shapes:
        width = one.dtype.itemsize
        part = message[start : start + one.size * width]
        start += one.size * width
        if one.dtype == bool:
            part = part != 0
        elif width > 1:
            part = jax.lax.bitcast_convert_type(part.reshape(-1, width), one.dtype)
        arrays.append(part.reshape(one.shape).astype(one.dtype))
    assert start == message.size, "these are not the arrays that it was made of"
    return arrays


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(tree: PyTree) -> PyTree:
    """With random keys as plain numbers."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)
