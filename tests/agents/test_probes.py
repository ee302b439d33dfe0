"""Every preset learns the known values of tiny problems, with its posterior's mean."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import ACTION, DELAYED, KINDS, Probe, known_values

from randq.exploration import Epsilon
from randq.loops.compiled import Compiled
from randq.presets import PRESETS

GAMMA = 0.6
SEEDS = 5
EPISODES = 450
# The only settings that are changed, and for all presets alike: to be fast, and to see all actions.
QUICK = {
    "gamma": GAMMA,
    "hidden": (32,),
    "learning_rate": 0.02,
    "update_every": 1,
    "target_every": 20,
    "replay_capacity": 300,
    "cost_scale": 1e-4,
    "condition_batch": 300,
    "epsilon": Epsilon(start=0.5, end=0.5),
}
TOLERANCE = 0.2
FAST = {"xla_backend_optimization_level": 0}


def learnt_values(name, **changes):
    """All kinds x seeds in one program: mean values of all positions, and evaluations."""
    program = Compiled(replace(PRESETS[name], **QUICK, **changes), Probe(), chunk=2 * EPISODES)
    seeds = jnp.arange(len(KINDS) * SEEDS, dtype=jnp.int32)
    kinds = jnp.repeat(jnp.arange(len(KINDS), dtype=jnp.int32), SEEDS)

    @functools.partial(jax.jit, compiler_options=FAST)
    def run(seeds, kinds):
        state = program._init(seeds)._replace(world=kinds)
        state, record = program._run(state, jnp.int32(2 * EPISODES))
        mean = lambda posterior: jax.vmap(posterior.mean())(2 * jnp.eye(3))  # noqa: E731
        return jax.vmap(mean)(state.agent.posterior), record.eval_return[-1]

    values, returns = jax.device_get(run(seeds, kinds))
    return values.reshape(len(KINDS), SEEDS, 3, 2), returns.reshape(len(KINDS), SEEDS)


def reached(values, expected):
    """For each seed, whether all values that are known are met."""
    known = [np.abs(values[:, at] - np.asarray(known)).max(1) for at, known in expected.items()]
    return np.max(known, axis=0) < TOLERANCE


@pytest.mark.parametrize("name", PRESETS)
def test_known_values(name):
    values, returns = learnt_values(name)
    for index, expected in enumerate(known_values(GAMMA)):
        success = reached(values[index], expected)
        assert success.mean() >= 0.8, (KINDS[index], values[index].round(2).tolist())
    # And evaluation takes the better action.
    for kind in (ACTION, DELAYED):
        assert (returns[kind] == 1).mean() >= 0.8


def test_a_time_limit_is_an_end_where_the_settings_say_so():
    values, _ = learnt_values("ddqn", truncation_terminates=True)
    for index, expected in enumerate(known_values(GAMMA, truncation_terminates=True)):
        assert reached(values[index], expected).mean() >= 0.8, KINDS[index]


def test_the_probes_can_tell():
    """The values of a wrong treatment are further away than what is tolerated."""
    right, wrong = known_values(GAMMA), known_values(GAMMA, truncation_terminates=True)
    assert abs(right[-1][1][0] - wrong[-1][1][0]) > 2 * TOLERANCE
    assert 1 - GAMMA >= 2 * TOLERANCE - 1e-9
