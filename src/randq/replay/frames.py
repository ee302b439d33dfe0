"""A replay for observations that are stacks of frames: one copy of each frame.

A *row* is the newest frame of an observation, and what was done there. A transition's next frame
goes to the row after it, which is then either overwritten by the next transition of the episode,
with the same frame, or left as a *border*: a row without a transition at the end of an episode. An
observation is rebuilt from its row and those before it, of which the row knows how many belong to
the same episode; where they are too few, the first frame is repeated.

Each environment has a ring of its own, as a stack must come from one of them. There is room for a
few rows more than can be sampled: the older frames of the oldest stack, and the newest frame.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from randq import threefry
from randq.config import require, whole, within
from randq.replay.base import Replay
from randq.types import Array, Bool, Float32, Int32, Key, Shaped, Transition


class Row(NamedTuple):
    """A frame and what was done there: arrays with a leading axis, such as one of slots."""

    frame: Shaped[Array, "rows ..."]
    action: Shaped[Array, "rows ..."]
    reward: Float32[Array, " rows"]
    masks: Bool[Array, "rows members"]
    age: Shaped[Array, " rows"]
    """Rows before it that are of the same episode; what is more than a stack is not counted."""
    acted: Bool[Array, " rows"]
    """Whether it is a transition, and not a border."""
    terminated: Bool[Array, " rows"]


class FramesState(NamedTuple):
    """The rings of all environments, one after another, and where each of them is."""

    items: Row
    written: Int32[Array, " envs"]
    """Rows that were ever written, the newest frame not counted."""
    age: Shaped[Array, " envs"]
    """The age of the row that comes next."""


@dataclass(frozen=True)
class Frames(Replay):
    """The last `capacity` rows: frames, of which each end of an episode takes one."""

    capacity: int
    example: Transition
    """Of the shapes and types that transitions have; the first axis of an observation is that of
    its frames, the newest last."""
    num_envs: int = 1
    n_step: int = 1
    """Rewards that a sampled transition adds up ..."""
    gamma: float = 1.0
    """... with this discount."""

    def __post_init__(self) -> None:
        whole("replay capacity", self.capacity, at_least=1)
        whole("num_envs", self.num_envs, at_least=1)
        whole("n_step", self.n_step, at_least=1)
        within("gamma", self.gamma, 0.0, 1.0)
        require(1 <= self.stack <= 255, "frame_stack", self.stack, "a number from 1 to 255")

    @property
    def stack(self) -> int:
        return int(self.example.observation.shape[0])

    @property
    def share(self) -> int:
        """Rows of one environment that can be sampled: one of any two is a transition."""
        return max(2, -(-self.capacity // self.num_envs))

    @property
    def slots(self) -> int:
        return self.share + self.stack

    def init(self) -> FramesState:
        def empty(shape: tuple[int, ...], dtype: Any) -> Array:
            return jnp.zeros((self.num_envs * self.slots, *shape), dtype)

        one = self.example
        items = Row(
            frame=empty(one.observation.shape[1:], one.observation.dtype),
            action=empty(one.action.shape, one.action.dtype),
            reward=empty((), one.reward.dtype),
            masks=empty(one.masks.shape, bool),
            age=empty((), jnp.uint8),
            acted=empty((), bool),
            terminated=empty((), bool),
        )
        none = jnp.zeros(self.num_envs, jnp.int32)
        return FramesState(items, none, none.astype(jnp.uint8))

    def add(
        self,
        state: FramesState,
        item: Transition,
        taken: Bool[Array, " envs"],
        ended: Bool[Array, " envs"],
    ) -> FramesState:
        # Where nothing was done in the midst of an episode, it was given up: its last frame, which
        # is that of the observation, becomes a border.
        given_up = ~taken & (state.age > 0)
        here = Row(
            frame=item.observation[:, -1],
            action=item.action,
            reward=item.reward,
            masks=item.masks != 0,
            age=state.age,
            acted=taken,
            terminated=item.terminated,
        )
        border = jax.tree.map(jnp.zeros_like, here)._replace(frame=item.next_observation[:, -1])
        envs = jnp.arange(self.num_envs, dtype=jnp.int32)
        nowhere = self.num_envs * self.slots
        index = jnp.concatenate(
            [
                jnp.where(taken | given_up, self._slot(envs, state.written), nowhere),
                jnp.where(taken, self._slot(envs, state.written + 1), nowhere),
            ]
        )

        def write(slots: Array, a: Array, b: Array) -> Array:
            return slots.at[index].set(jnp.concatenate([a, b]), mode="drop")

        done = ended & taken
        rows = (taken | given_up).astype(jnp.int32) + done.astype(jnp.int32)
        older = jnp.minimum(state.age + jnp.uint8(1), jnp.uint8(self.stack))
        return FramesState(
            items=jax.tree.map(write, state.items, here, border),
            written=state.written + rows,
            age=jnp.where(taken & ~done, older, jnp.uint8(0)),
        )

    def sample(self, state: FramesState, key: Key, count: int) -> Transition:
        """Transitions drawn uniformly with replacement from those that are held.

        With `n_step` they lead over so many steps, or fewer where the episode stops sooner or is
        not further yet, and have a discount for that.
        """
        env, number = self._draw(state, key, count)
        slot = self._slot(env, number)
        items = state.items
        reward, terminated = items.reward[slot], items.terminated[slot]
        steps, goes_on = jnp.ones(count, jnp.int32), ~terminated
        for i in range(1, self.n_step):
            then = self._slot(env, number + i)
            goes_on = goes_on & (number + i < state.written[env]) & items.acted[then]
            reward = reward + jnp.where(goes_on, self.gamma**i * items.reward[then], 0.0)
            terminated = terminated | (goes_on & items.terminated[then])
            steps = steps + goes_on.astype(jnp.int32)
            goes_on = goes_on & ~items.terminated[then]
        age = items.age[slot].astype(jnp.int32)
        discount = jnp.float32(self.gamma) ** steps.astype(jnp.float32)
        return Transition(
            observation=self._stacks(state, env, number, age),
            action=items.action[slot],
            reward=reward,
            next_observation=self._stacks(state, env, number + steps, age + steps),
            terminated=terminated,
            masks=items.masks[slot].astype(self.example.masks.dtype),
            discount=discount if self.n_step > 1 else None,
        )

    def span(self, state: FramesState) -> tuple[int, int]:
        """The newest frame is not among them: it is written again with the next step."""
        require(self.num_envs == 1, "num_envs", self.num_envs, "1, for a checkpoint of frames")
        written = int(state.written[0])
        return max(0, written - self.slots + 1), written

    def _slot(self, env: Int32[Array, "..."], number: Int32[Array, "..."]) -> Int32[Array, "..."]:
        return env * self.slots + number % self.slots

    def _draw(
        self, state: FramesState, key: Key, count: int
    ) -> tuple[Int32[Array, " count"], Int32[Array, " count"]]:
        """Whose transitions, and which: drawn among all rows, and anew where that was a border."""
        sizes = jnp.minimum(state.written, self.share)
        ends = jnp.cumsum(sizes, dtype=jnp.int32)
        total = ends[-1]

        def draw(carry: tuple[Key, Array, Array, Array]) -> tuple[Key, Array, Array, Array]:
            key, env, number, found = carry
            # A remainder of 32 random bits is uniform but for a share of total / 2^32.
            bits = threefry.bits(key, (count,))
            at = (bits % jnp.maximum(total, 1).astype(jnp.uint32)).astype(jnp.int32)
            whose = jnp.searchsorted(ends, at, side="right").astype(jnp.int32)
            which = state.written[whose] - 1 - (at - (ends - sizes)[whose])
            env, number = jnp.where(found, env, whose), jnp.where(found, number, which)
            acted = state.items.acted[self._slot(env, number)]
            return threefry.fold_in(key, 0), env, number, acted

        none = jnp.zeros(count, jnp.int32)
        start = key, none, none, none.astype(bool)
        _, env, number, _ = jax.lax.while_loop(
            lambda carry: (total > 0) & ~jnp.all(carry[3]), draw, start
        )
        return env, number

    def _stacks(
        self,
        state: FramesState,
        env: Int32[Array, " count"],
        number: Int32[Array, " count"],
        age: Int32[Array, " count"],
    ) -> Shaped[Array, "count stack ..."]:
        back = jnp.arange(self.stack - 1, -1, -1, dtype=jnp.int32)
        numbers = number[:, None] - jnp.minimum(age[:, None], back[None])
        return state.items.frame[self._slot(env[:, None], numbers)]
