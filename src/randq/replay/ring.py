"""A ring of items in JAX arrays, written a block at a time and sampled uniformly."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from randq import threefry
from randq.config import whole
from randq.types import Array, Bool, Int32, Key, PyTree


class RingState(NamedTuple):
    """Arrays with a leading axis of slots, and how many items were ever written."""

    items: PyTree
    written: Int32[Array, ""]


@dataclass(frozen=True)
class Ring:
    """The last `capacity` items.

    There is room for one block more than that, in whole blocks: a block then never wraps around,
    so that writing it is one contiguous copy, and it never overwrites an item that can be sampled.
    """

    capacity: int
    block: int

    def __post_init__(self) -> None:
        whole("replay capacity", self.capacity, at_least=1)
        whole("replay block", self.block, at_least=1)

    @property
    def slots(self) -> int:
        return self.block * (-(-self.capacity // self.block) + 1)

    def init(self, example: PyTree) -> RingState:
        """An empty ring for items of the example's shapes and dtypes."""
        items = jax.tree.map(lambda x: jnp.zeros((self.slots, *x.shape), x.dtype), example)
        return RingState(items, jnp.zeros((), jnp.int32))

    def add(self, state: RingState, items: PyTree) -> RingState:
        """Write one block of items, in order."""
        start = state.written % self.slots

        def write(slots: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(slots, new, start, axis=0)

        return RingState(jax.tree.map(write, state.items, items), state.written + self.block)

    def add_some(self, state: RingState, items: PyTree, chosen: Bool[Array, " block"]) -> RingState:
        """Write the chosen items of a block, in order."""
        # The others come last and are not counted: the next block overwrites them.
        first = jnp.argsort(~chosen, stable=True)
        index = (state.written + jnp.arange(self.block, dtype=jnp.int32)) % self.slots

        def write(slots: Array, new: Array) -> Array:
            return slots.at[index].set(new[first], unique_indices=True)

        written = state.written + jnp.sum(chosen, dtype=jnp.int32)
        return RingState(jax.tree.map(write, state.items, items), written)

    def size(self, state: RingState) -> Int32[Array, ""]:
        return jnp.minimum(state.written, self.capacity)

    def sample(self, state: RingState, key: Key, count: int) -> PyTree:
        """Items drawn uniformly with replacement from those that are held."""
        # A remainder of 32 random bits is uniform but for a share of size / 2^32, and compiles in
        # a fraction of the time that randint takes.
        age = threefry.bits(key, (count,)) % self.size(state).astype(jnp.uint32)
        index = (state.written - 1 - age.astype(jnp.int32)) % self.slots
        return jax.tree.map(lambda x: x[index], state.items)
