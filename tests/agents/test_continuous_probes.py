"""Every preset for continuous actions finds the known optimum of tiny problems."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from continuous_probes import HIGH, KINDS, LOW, ContinuousProbe, known

from randq.envs import Pendulum
from randq.loops.compiled import Compiled
from randq.presets import CONTINUOUS

GAMMA = 0.6
SEEDS = 5
STEPS = 3500
# The only settings that are changed, and for all presets alike: to be fast, and to see all actions.
QUICK = {
    "gamma": GAMMA,
    "hidden": (32, 32),
    "learning_rate": 0.01,
    "actor_learning_rate": 0.001,
    "target_rate": 0.05,
    "batch_size": 64,
    "replay_capacity": 3500,
    "cost_scale": 1e-5,
    "random_steps": 10**9,
}
TOLERANCE = 0.2


def learnt(name, **changes):
    """All kinds x seeds in one program: the actor's action at each position, and its value."""
    agent = replace(CONTINUOUS[name], **QUICK, **changes)
    program = Compiled(agent, ContinuousProbe(), chunk=STEPS, evaluate_every=10**6)
    seeds = jnp.arange(len(KINDS) * SEEDS, dtype=jnp.int32)
    kinds = jnp.repeat(jnp.arange(len(KINDS), dtype=jnp.int32), SEEDS)
    places = jnp.concatenate([2 * jnp.eye(3), jnp.zeros((3, 1))], axis=1)

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
    def run(seeds, kinds):
        state = program._init(seeds)._replace(world=kinds)
        state, _ = program._run(state, jnp.int32(STEPS))

        def one(agent_state):
            actions, seen = jax.vmap(agent.evaluator(agent_state))(places), places
            if agent_state.statistics is not None:
                seen = jax.vmap(agent_state.statistics)(places)
            return actions[:, 0], jax.vmap(agent_state.posterior.mean())((seen, actions))[:, 0]

        return jax.vmap(one)(state.agent)

    actions, values = jax.device_get(run(seeds, kinds))
    assert actions.min() >= LOW
    assert actions.max() <= HIGH
    units = (actions - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    return [x.reshape(len(KINDS), SEEDS, 3) for x in (units, values)]


def reached(units, values, expected):
    """For each seed, whether all actions and values that are known are met."""
    met = np.ones(SEEDS, bool)
    for position, (best, value) in expected.items():
        met &= np.abs(values[:, position] - value) < TOLERANCE
        if best is not None:
            met &= np.abs(units[:, position] - best) < TOLERANCE
    return met


@pytest.mark.parametrize("name", CONTINUOUS)
def test_known_optimum(name):
    units, values = learnt(name)
    for index, expected in enumerate(known(GAMMA)):
        success = reached(units[index], values[index], expected)
        found = units[index].round(2).tolist(), values[index].round(2).tolist()
        assert success.mean() >= 0.8, (KINDS[index], *found)


def test_a_time_limit_is_an_end_where_the_settings_say_so():
    units, values = learnt("ddpg", truncation_terminates=True)
    for index, expected in enumerate(known(GAMMA, truncation_terminates=True)):
        assert reached(units[index], values[index], expected).mean() >= 0.8, KINDS[index]


def test_normalised_observations_change_nothing_in_what_is_learnt():
    units, values = learnt("ddpg", normalise_observations=True)
    for index, expected in enumerate(known(GAMMA)):
        assert reached(units[index], values[index], expected).mean() >= 0.8, KINDS[index]


def test_the_probes_can_tell():
    """What a wrong treatment would give is further away than what is tolerated."""
    right, wrong = known(GAMMA), known(GAMMA, truncation_terminates=True)
    assert abs(right[-1][1][1] - wrong[-1][1][1]) > 2 * TOLERANCE
    assert 1 - GAMMA >= 2 * TOLERANCE - 1e-9
    # An actor that ignores where it is, or what it did, stays between the two best actions.
    assert abs(right[1][1][0] - right[1][2][0]) > 4 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddpg", "param-noise-ddpg", "bbqn-ddpg", "mnf-ddpg"])
def test_swings_the_pendulum_up_with_the_papers_settings(name):
    """20,000 steps, three seeds: to hang and swing at random returns about -1300 an episode."""
    program = Compiled(CONTINUOUS[name], Pendulum(), chunk=2000, evaluate_every=2)
    state = program.init(jnp.arange(3, dtype=jnp.int32))
    returns = []
    for _ in range(10):
        state, record = program.run(state, 2000)
        returns.append(record.eval_return[record.evaluated].mean())
    assert returns[0] < -1000
    assert np.mean(returns[-2:]) > -600
