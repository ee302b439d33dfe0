"""The n-chain of the paper (section 6.1): a small reward nearby, a large one at the far end."""

import dataclasses
from typing import Literal, NamedTuple, final, get_args

import jax.numpy as jnp

from randq import config
from randq.envs.base import Environment, Step, check_mapping_seed, random_action_map
from randq.types import Array, Float32, Int32, Key, OneHot

Features = Literal["thermometer", "one_hot"]
ActionMap = Literal["fixed", "random"]

SMALL, LARGE = 0.001, 1.0


class ChainState(NamedTuple):
    """Where the agent is, and for how long it has been on its way."""

    position: Int32[Array, ""]
    """0 for s1, length - 1 for sN."""
    steps: Int32[Array, ""]
    """Steps taken in this episode."""


@final
@dataclasses.dataclass(frozen=True)
class NChain(Environment[Array, ChainState]):
    """N states in a row; every episode starts at s2 and takes exactly N + 8 steps.

    The reward is that of the state a step *stays* in: 0.001 for pushing left in s1, 1 for pushing
    right in sN, 0 for every step that moves. That is what the authors' released code does, and it
    makes the optimum exactly 10: of the N + 8 steps, the first N - 2 walk from s2 to sN, and each
    of the other 10 pays 1. (Paid for the state a step *leads to*, the last step of the walk would
    pay as well, and the optimum would be 11.)

    The end is a time limit, so it truncates and never terminates.
    """

    length: int = 10
    """Number of states N."""
    features: Features = "thermometer"
    """Observation of state s: thermometer (ones up to s, as published) or one_hot (a one at s)."""
    action_map: ActionMap = "fixed"
    """fixed: action 1 is right everywhere, as published; random: a coin decides in each state."""
    mapping_seed: int | None = None
    """Seed of the random action map; by default every run draws its own."""

    def __post_init__(self) -> None:
        config.whole("length", self.length, at_least=2)
        config.one_of("features", self.features, get_args(Features))
        config.one_of("action_map", self.action_map, get_args(ActionMap))
        check_mapping_seed(self.mapping_seed, self.action_map == "random", "action_map is random")

    def world(self, key: Key) -> Int32[Array, " n"]:
        """For each state, which action means "right"."""
        if self.action_map == "fixed":
            return jnp.ones(self.length, jnp.int32)
        return random_action_map(key, (self.length,), self.mapping_seed)

    def observe(self, state: ChainState) -> Float32[Array, " n"]:
        if self.features == "one_hot":
            return OneHot(state.position, self.length).dense(jnp.float32)
        return (jnp.arange(self.length, dtype=jnp.int32) <= state.position).astype(jnp.float32)

    def encode(self, state: ChainState) -> Float32[Array, " n"] | OneHot:
        one_hot = self.features == "one_hot"
        return OneHot(state.position, self.length) if one_hot else self.observe(state)

    def reset(self, world: Int32[Array, " n"], key: Key) -> tuple[ChainState, Float32[Array, " n"]]:
        start = ChainState(position=jnp.ones((), jnp.int32), steps=jnp.zeros((), jnp.int32))
        return start, self.observe(start)

    def step(
        self,
        world: Int32[Array, " n"],
        state: ChainState,
        action: Int32[Array, ""],
        key: Key,
    ) -> tuple[ChainState, Step]:
        last = self.length - 1
        right = action == world[state.position]
        wanted = state.position + jnp.where(right, jnp.int32(1), jnp.int32(-1))
        # A wish to leave the chain is a push against its end: it stays there, and is paid.
        reward = jnp.where(wanted < 0, jnp.float32(SMALL), jnp.float32(0.0))
        reward = jnp.where(wanted > last, jnp.float32(LARGE), reward)
        state = ChainState(position=jnp.clip(wanted, 0, last), steps=state.steps + 1)
        return state, Step(
            observation=self.observe(state),
            reward=reward,
            terminated=jnp.zeros((), bool),
            truncated=state.steps >= self.max_steps,
        )

    def optimal_return(self, world: Int32[Array, " n"]) -> Float32[Array, ""]:
        # One step back to s1 and N + 7 small rewards only win when N is above 9993.
        best = max(10 * LARGE, (self.length + 7) * SMALL)
        return jnp.asarray(best, jnp.float32)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def observation_bounds(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def max_steps(self) -> int:
        return self.length + 8

    @property
    def fixed_length(self) -> bool:
        return True
