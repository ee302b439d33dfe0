"""A tiny environment whose actions are numbers, in several kinds: each fails for one mistake."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from randq.envs.base import Environment, Step

KINDS = ("immediate", "context", "delayed", "second", "truncation")
IMMEDIATE, CONTEXT, DELAYED, SECOND, TRUNCATION = range(len(KINDS))
PAY = 0.4
"""Reward of each step of the kind that is cut off."""
BEST = 0.5
"""The best action, or minus it, in units of [-1, 1]."""
LOW, HIGH = -1.0, 3.0


def known(gamma, truncation_terminates=False):
    """For each kind: {position: (best action in units, its value)}; None where all are as good.

    The value of another action u is less by a factor times (u - best)^2.
    """
    g = gamma
    # A third of the steps from there are not the last ones of an episode.
    endless = PAY / (1 - g / 3) if truncation_terminates else PAY / (1 - g)
    return (
        # Wrong if a terminal state is bootstrapped from: it looks like the start.
        {0: (BEST, 1.0), 1: (None, 0.0)},
        # Wrong if the observation is not looked at.
        {1: (-BEST, 1.0), 2: (BEST, 1.0)},
        # Wrong if the reward is not handed back to the action that led to it.
        {0: (BEST, g)},
        # Wrong if the value handed back is not that of the actor's action.
        {0: (None, g), 1: (-BEST, 1.0)},
        # Wrong if a time limit is taken for an end, or the next start for what follows.
        {0: (None, g * endless), 1: (None, endless)},
    )


class ProbeState(NamedTuple):
    """Where it is, for how long, and what was done before."""

    position: jax.Array
    steps: jax.Array
    carried: jax.Array


@dataclasses.dataclass(frozen=True)
class ContinuousProbe(Environment):
    """Two steps. The world is the kind of the probe, so that one program runs all kinds at once."""

    def world(self, key):
        return jnp.int32(IMMEDIATE)  # tests put in what they want

    def observe(self, state):
        place = 2 * jax.nn.one_hot(state.position, 3, dtype=jnp.float32)
        return jnp.concatenate([place, 2 * state.carried[None]])

    def reset(self, world, key):
        coin = jax.random.bernoulli(key, 0.5).astype(jnp.int32)
        position = jnp.where(world == TRUNCATION, coin, 0)
        start = ProbeState(position, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))
        return start, self.observe(start)

    def step(self, world, state, action, key):
        unit = (action[0] - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
        last, zero = state.steps == 1, jnp.float32(0)
        wanted = jnp.where(state.position == 2, jnp.float32(BEST), jnp.float32(-BEST))
        rewards = [
            jnp.where(last, zero, 1 - (unit - BEST) ** 2),
            jnp.where(last, 1 - (unit - wanted) ** 2, zero),
            jnp.where(last, 1 - (state.carried - BEST) ** 2, zero),
            jnp.where(last, 1 - (unit + BEST) ** 2, zero),
            jnp.where(state.position == 1, jnp.float32(PAY), zero),
        ]
        coin = 1 + jax.random.bernoulli(key, 0.5).astype(jnp.int32)
        middle = jnp.where(world == CONTEXT, coin, 1)
        terminated = last & (world != TRUNCATION)
        position = jnp.where(terminated, 0, middle).astype(jnp.int32)
        carried = jnp.where((world == DELAYED) & ~terminated, unit, zero)
        after = ProbeState(position, state.steps + 1, carried)
        reward = jnp.stack(rewards)[world]
        return after, Step(self.observe(after), reward, terminated, last & ~terminated)

    def optimal_return(self, world):
        return None

    observation_shape, observation_bounds = (4,), (-2.0, 2.0)
    num_actions, action_bounds = 1, ((LOW,), (HIGH,))
    max_steps, fixed_length = 2, True
