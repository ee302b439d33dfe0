"""A tiny environment with known values, in several kinds: each fails for one sort of mistake."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from randq.envs.base import Environment, Step

KINDS = ("immediate", "discount", "context", "action", "delayed", "truncation")
IMMEDIATE, DISCOUNT, CONTEXT, ACTION, DELAYED, TRUNCATION = range(len(KINDS))
PAY = 0.4
"""Reward of each step of the kind that is cut off."""


def known_values(gamma, truncation_terminates=False):
    """For each kind: {position: values of both actions}. Other positions are never seen."""
    g = gamma
    # A third of the steps from there are not the last ones of an episode.
    endless = PAY / (1 - g / 3) if truncation_terminates else PAY / (1 - g)
    return (
        # Wrong if a reward goes to the wrong step, or a terminal state is bootstrapped from: it
        # looks like the start.
        {0: (1.0, 1.0), 1: (0.0, 0.0)},
        # Wrong if nothing is handed back, or undiscounted.
        {0: (g, g), 1: (1.0, 1.0)},
        # Wrong if the observation is not looked at. A coin decides where the first step leads (so
        # the value of the start is 0, but only as exactly as the coins in the replay are fair).
        {1: (-1.0, -1.0), 2: (1.0, 1.0)},
        # Wrong if the action is not looked at, or without the maximum over next actions.
        {0: (g, g), 1: (-1.0, 1.0)},
        # Wrong if the reward is not handed back to the action that led to it.
        {0: (0.0, g), 1: (0.0, 0.0), 2: (1.0, 1.0)},
        # Wrong if a time limit is taken for an end, or the next start for what follows.
        {0: (g * endless, g * endless), 1: (endless, endless)},
    )


class ProbeState(NamedTuple):
    """Where it is, and for how long."""

    position: jax.Array
    steps: jax.Array


@dataclasses.dataclass(frozen=True)
class Probe(Environment):
    """Two steps. The world is the kind of the probe, so that one program runs all kinds at once."""

    def world(self, key):
        return jnp.int32(IMMEDIATE)  # tests put in what they want

    def observe(self, state):
        return 2 * jax.nn.one_hot(state.position, 3, dtype=jnp.float32)

    def reset(self, world, key):
        coin = jax.random.bernoulli(key, 0.5).astype(jnp.int32)
        start = ProbeState(jnp.where(world == TRUNCATION, coin, 0), jnp.zeros((), jnp.int32))
        return start, self.observe(start)

    def step(self, world, state, action, key):
        position, zero, one = state.position, jnp.float32(0), jnp.float32(1)
        last = state.steps == 1
        rewards = [
            jnp.where(last, zero, one),
            jnp.where(last, one, zero),
            jnp.where(last, jnp.where(position == 2, one, -one), zero),
            jnp.where(last, jnp.where(action == 1, one, -one), zero),
            jnp.where(position == 2, one, zero),
            jnp.where(position == 1, jnp.float32(PAY), zero),
        ]
        coin = 1 + jax.random.bernoulli(key, 0.5).astype(jnp.int32)
        middle = jnp.where(world == CONTEXT, coin, jnp.where(world == DELAYED, 1 + action, 1))
        terminated = last & (world != TRUNCATION)
        after = ProbeState(jnp.where(terminated, 0, middle).astype(jnp.int32), state.steps + 1)
        reward = jnp.stack(rewards)[world]
        return after, Step(self.observe(after), reward, terminated, last & ~terminated)

    def optimal_return(self, world):
        return None

    @property
    def observation_shape(self):
        return (3,)

    @property
    def observation_bounds(self):
        return 0.0, 2.0

    @property
    def num_actions(self):
        return 2

    @property
    def max_steps(self):
        return 2

    @property
    def fixed_length(self):
        return True
