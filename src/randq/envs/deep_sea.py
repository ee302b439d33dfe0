"""DeepSea, exactly as in bsuite (Osband et al., 2020), which the tests hold beside it."""

import dataclasses
from typing import NamedTuple, final

import jax.numpy as jnp

from randq import config, threefry
from randq.envs.base import Environment, Step, check_mapping_seed, random_action_map
from randq.types import Array, Bool, Float32, Int32, Key, OneHot


class DeepSeaState(NamedTuple):
    """Where the diver is, and whether it has left the only way to the treasure by itself."""

    row: Int32[Array, ""]
    """Also the number of steps taken: a diver sinks by one row a step."""
    column: Int32[Array, ""]
    bad: Bool[Array, ""]
    """Whether a step went left from the diagonal: bsuite counts such episodes as bad."""


@final
@dataclasses.dataclass(frozen=True)
class DeepSea(Environment[Array, DeepSeaState]):
    """A diver sinks through an N x N grid, going left or right; a treasure is in the far corner.

    Right costs `unscaled_move_cost` / N, left is free. Right in the last row and column pays 1;
    only N rights out of N lead to that. Which action means "right" is drawn for each cell. The
    episode terminates after N steps, and the observation of its end is all zeros.

    Not deterministic: right fails to move (but costs, and pays) with probability 1 / N, and the
    last step pays standard normal noise on top if taken in the first or the last column.
    """

    size: int = 10
    """Side N of the grid, and length of an episode."""
    deterministic: bool = True
    """False for the windy variant: right may fail (1 / N), and the rewards of the end are noisy."""
    unscaled_move_cost: float = 0.01
    """What N moves to the right cost together."""
    randomize_actions: bool = True
    """Draw the meaning of the actions cell by cell; False for action 1 = right everywhere."""
    mapping_seed: int | None = None
    """Seed of bsuite's action map (its sweep uses 42); by default every run draws its own."""

    def __post_init__(self) -> None:
        config.whole("size", self.size, at_least=2)
        config.within("unscaled_move_cost", self.unscaled_move_cost, 0.0, 1.0)
        check_mapping_seed(self.mapping_seed, self.randomize_actions, "randomize_actions is true")

    def world(self, key: Key) -> Int32[Array, "n n"]:
        """For each cell, which action means "right"."""
        if not self.randomize_actions:
            return jnp.ones((self.size, self.size), jnp.int32)
        return random_action_map(key, (self.size, self.size), self.mapping_seed)

    def observe(self, state: DeepSeaState) -> Float32[Array, "n n"]:
        return self.encode(state).dense(jnp.float32).reshape(self.size, self.size)

    def encode(self, state: DeepSeaState) -> OneHot:
        # The cell number of the end lies beyond the grid, where a OneHot is all zeros.
        return OneHot(state.row * self.size + state.column, self.size**2)

    def reset(
        self, world: Int32[Array, "n n"], key: Key
    ) -> tuple[DeepSeaState, Float32[Array, "n n"]]:
        zero = jnp.zeros((), jnp.int32)
        start = DeepSeaState(row=zero, column=zero, bad=jnp.zeros((), bool))
        return start, self.observe(start)

    def draw(self, key: Key) -> tuple[Bool[Array, ""], Float32[Array, ""]]:
        """The luck of one step: whether "right" moves, and the noise of the end rewards."""
        if self.deterministic:
            return jnp.ones((), bool), jnp.zeros((), jnp.float32)
        move_key, noise_key = threefry.split(key)
        moves = threefry.uniform(move_key, (), jnp.float32, 0.0, 1.0) > 1 / self.size
        return moves, threefry.normal(noise_key, (), jnp.float32)

    def step(
        self,
        world: Int32[Array, "n n"],
        state: DeepSeaState,
        action: Int32[Array, ""],
        key: Key,
    ) -> tuple[DeepSeaState, Step]:
        row, column, bad = state
        last = self.size - 1
        cost = self.unscaled_move_cost / self.size
        moves, noise = self.draw(key)

        right = action == world[row, column]
        reward = jnp.where(right, jnp.float32(-cost), jnp.float32(0.0))
        # The treasure is paid for the wish to go right, even if the wind then holds the diver back.
        reward = jnp.where(right & (column == last), jnp.float32(1.0 - cost), reward)
        noisy = (row == last) & ((column == 0) | (column == last))
        reward = reward + jnp.where(noisy, noise, jnp.float32(0.0))

        shift = jnp.where(right, moves.astype(jnp.int32), jnp.int32(-1))
        state = DeepSeaState(
            row=row + 1,
            column=jnp.clip(column + shift, 0, last),
            bad=bad | (~right & (row == column)),
        )
        return state, Step(
            observation=self.observe(state),
            reward=reward,
            terminated=state.row >= self.size,
            truncated=jnp.zeros((), bool),
        )

    def optimal_return(self, world: Int32[Array, "n n"]) -> Float32[Array, ""]:
        # Off the diagonal the treasure is out of reach and going left is free, so the value there
        # is 0; on it, go right. Backwards over the rows, from the corner up to the start.
        cost = self.unscaled_move_cost / self.size
        stays_on_course = 1.0 if self.deterministic else 1.0 - 1.0 / self.size
        value = 1.0 - cost
        for _ in range(self.size - 1):
            value = max(0.0, stays_on_course * value - cost)
        return jnp.asarray(value, jnp.float32)

    def good(
        self, world: Int32[Array, "n n"], state: DeepSeaState, total: Float32[Array, ""]
    ) -> Bool[Array, ""]:
        # As bsuite has it: noise on the rewards does not make an episode better or worse.
        return ~state.bad

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.size, self.size)

    @property
    def observation_bounds(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def max_steps(self) -> int:
        return self.size

    @property
    def fixed_length(self) -> bool:
        return True
