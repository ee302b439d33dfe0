"""What the host loop asks of a replay, whatever it is made of.

A replay is a ring of rows with a number each, counted from the first that was ever written: row i
lies in slot i modulo `slots`. A state is a NamedTuple with the rows in `items`, a tree of arrays
with a leading axis of slots, and with what else it has to know, which is small.
"""

import abc
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from randq.types import Array, Bool, Int32, Key, PyTree, Transition

STRETCH = 2**27
"""Bytes of rows that are read at once."""

ReplayState = Any
"""A NamedTuple: at least items."""


class Replay(abc.ABC):
    """The transitions of one or several environments."""

    @property
    @abc.abstractmethod
    def slots(self) -> int:
        """Rows that there is room for, for each ring."""

    @abc.abstractmethod
    def init(self) -> ReplayState:
        """An empty replay."""

    @abc.abstractmethod
    def add(
        self,
        state: ReplayState,
        item: Transition,
        taken: Bool[Array, " envs"],
        ended: Bool[Array, " envs"],
    ) -> ReplayState:
        """Keep a transition of each environment that took one, and know whose episode ended."""

    @abc.abstractmethod
    def sample(self, state: ReplayState, key: Key, count: int) -> Transition:
        """Transitions drawn uniformly with replacement from those that are held."""

    @abc.abstractmethod
    def span(self, state: ReplayState) -> tuple[int, int]:
        """Which rows a checkpoint must have: from the first number up to the second."""

    # The rest is the same for all.

    @cached_property
    def shapes(self) -> ReplayState:
        """Shapes and types of a state."""
        return jax.eval_shape(self.init)

    @property
    def row(self) -> list[Any]:
        """Shapes and types of the arrays of one row."""
        leaves = jax.tree.leaves(self.shapes.items)
        return [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in leaves]

    @property
    def size(self) -> int:
        """Bytes of memory that the rows take."""
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(self.shapes.items))

    def rows(
        self, state: ReplayState, first: int, end: int
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """The rows from one number up to another, to be kept elsewhere: in stretches that take
        little memory, each with the number of its first row."""
        leaves = [np.asarray(x) for x in jax.tree.leaves(state.items)]
        step = max(1, STRETCH * self.slots // self.size)
        for start in range(first, end, step):
            at = np.arange(start, min(start + step, end)) % self.slots
            yield start, [x[at] for x in leaves]

    def put(
        self, state: ReplayState, rows: list[Array], numbers: Int32[Array, " rows"]
    ) -> ReplayState:
        """Put rows back to where they were; those with a negative number are left out."""
        at = jnp.where(numbers < 0, self.slots, numbers % self.slots)

        def put(slots: Array, new: Array) -> Array:
            return slots.at[at].set(new, mode="drop")

        leaves, tree = jax.tree.flatten(state.items)
        items: PyTree = jax.tree.unflatten(tree, list(map(put, leaves, rows)))
        return state._replace(items=items)
