"""A replay of whole transitions, for observations that have little in common with the next."""

import math
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp

from randq.packing import Packing
from randq.replay.base import Replay
from randq.replay.ring import Ring, RingState
from randq.types import Array, Bool, Key, Transition


@dataclass(frozen=True)
class Transitions(Replay):
    """The last `capacity` transitions; those of several environments share one ring."""

    capacity: int
    example: Transition
    """Of the shapes and types that transitions have."""
    num_envs: int = 1

    @cached_property
    def ring(self) -> Ring:
        return Ring(self.capacity, self.num_envs)

    @cached_property
    def packing(self) -> Packing:
        """How a transition becomes a row: one array of each type, so that writing is quick."""
        return Packing(self.example, large=math.inf)

    @property
    def slots(self) -> int:
        return self.ring.slots

    def init(self) -> RingState:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.example)
        return self.ring.init(self.packing.pack(zeros))

    def add(
        self,
        state: RingState,
        item: Transition,
        taken: Bool[Array, " envs"],
        ended: Bool[Array, " envs"],
    ) -> RingState:
        return self.ring.add_some(state, self.packing.pack(item, axes=1), taken)

    def sample(self, state: RingState, key: Key, count: int) -> Transition:
        items: Transition = self.packing.unpack(self.ring.sample(state, key, count), axes=1)
        return items

    def span(self, state: RingState) -> tuple[int, int]:
        written = int(state.written)
        return max(0, written - self.capacity), written
