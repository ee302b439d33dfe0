"""What every environment must do, for each one in `ENVIRONMENTS`."""

import dataclasses
import functools
import inspect
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.envs import ENVIRONMENTS, DeepSea, MountainCar, NChain
from randq.types import OneHot

# Beside the defaults of every environment: settings, and what two keys must (not) change in them.
VARIANTS = [
    (NChain(), {"world": False, "rewards": False}),
    (NChain(length=2, features="one_hot"), {"world": False, "rewards": False}),
    (NChain(length=30, action_map="random"), {"world": True, "rewards": False}),
    (NChain(action_map="random", mapping_seed=3), {"world": False, "rewards": False}),
    (DeepSea(), {"world": True, "rewards": False}),
    (DeepSea(size=2, mapping_seed=3), {"world": False, "rewards": False}),
    (DeepSea(randomize_actions=False), {"world": False, "rewards": False}),
    (DeepSea(size=7, deterministic=False), {"world": True, "rewards": True}),
    (MountainCar(max_episode_steps=50), {"world": False, "rewards": False}),
]
EVERY = [cls() for cls in ENVIRONMENTS.values()]
EVERY += [env for env, _ in VARIANTS if env not in EVERY]
every = pytest.mark.parametrize("env", EVERY, ids=repr)


KEYS = jax.random.split(jax.random.key(0), 10)


def actions_and_keys(env, key):
    """Random actions for one episode, and the keys of its steps."""
    actions = jax.random.randint(key, (env.max_steps,), 0, env.num_actions, jnp.int32)
    if env.action_bounds is not None:
        low, high = (jnp.array(bound, jnp.float32)[None] for bound in env.action_bounds)
        shape = (env.max_steps, env.num_actions)
        actions = low + (high - low) * jax.random.uniform(key, shape, jnp.float32)
    return actions, jax.random.split(key, env.max_steps)


@functools.cache
def episodes(env):
    """Compiled and vmapped over ten keys: worlds, first observations and steps of an episode."""
    assert env.max_steps is not None, "an environment without a limit needs tests of its own"

    def run(key):
        world = env.world(key)
        state, first = env.reset(world, key)
        body = lambda state, inputs: env.step(world, state, *inputs)  # noqa: E731
        return world, first, jax.lax.scan(body, state, actions_and_keys(env, key))[1]

    return jax.device_get(jax.jit(jax.vmap(run))(KEYS))


@every
def test_a_network_is_given_what_is_observed(env):
    """A `OneHot` stands for the same vector, also at the end of an episode."""

    def both(key):
        world = env.world(key)

        def body(state, inputs):
            after, result = env.step(world, state, *inputs)
            given = env.encode(after)
            dense = given.dense(jnp.float32) if isinstance(given, OneHot) else given
            return after, (dense.reshape(-1), result.observation.reshape(-1))

        start, _ = env.reset(world, key)
        return jax.lax.scan(body, start, actions_and_keys(env, key))[1]

    given, observed = jax.jit(jax.vmap(both))(KEYS)
    np.testing.assert_array_equal(given, observed)


@every
def test_is_a_documented_static_argument(env):
    twin = dataclasses.replace(env)
    assert twin == env
    assert hash(twin) == hash(env)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(env, dataclasses.fields(env)[0].name, 5)
    source = inspect.getsource(type(env))
    for field in dataclasses.fields(env):
        after = source.split(f"    {field.name}: ", 1)[1].splitlines()[1]
        assert after.strip().startswith('"""'), f"{field.name} has no help line"


@every
def test_shapes_and_dtypes_of_every_output(env):
    world = env.world(jax.random.key(0))
    state, first = env.reset(world, jax.random.key(1))
    after, step = env.step(world, state, env.spaces.an_action(), jax.random.key(2))

    for observation in (first, step.observation):
        assert observation.shape == env.observation_shape
        assert observation.dtype == jnp.float32
    assert step.reward.shape == ()
    assert step.reward.dtype == jnp.float32
    assert step.terminated.shape == ()
    assert step.terminated.dtype == bool
    assert step.truncated.shape == ()
    assert step.truncated.dtype == bool
    # A scan carries the state, so its structure, shapes, dtypes and weak types must not change.
    assert jax.eval_shape(lambda: state) == jax.eval_shape(lambda: after)
    best = env.optimal_return(world)
    assert best is None or (best.shape == () and best.dtype == jnp.float32)


@every
def test_jit_vmap_and_plain_calls_agree(env):
    worlds, firsts, steps = episodes(env)
    actions, keys = actions_and_keys(env, KEYS[7])
    world = env.world(KEYS[7])
    state, first = env.reset(world, KEYS[7])
    same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
    same(world, jax.tree.map(lambda leaf: leaf[7], worlds))
    same(first, firsts[7])
    for t in range(2):
        state, plain = env.step(world, state, actions[t], keys[t])
        compiled = jax.tree.map(lambda leaf, t=t: leaf[7, t], steps)
        # Compiled arithmetic may differ from the plain one in the last bit.
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
        jax.tree.map(close, plain, compiled)


@every
def test_an_episode_ends_once_and_stays_in_bounds(env):
    low, high = env.observation_bounds
    _, first, steps = episodes(env)
    for i, over in enumerate(steps.terminated | steps.truncated):
        assert over.any()
        # What follows the first end is not part of the contract.
        played = steps.observation[i, : np.argmax(over) + 1]
        for observation in (first[i], *played):
            assert np.all(observation >= np.float32(low))
            assert np.all(observation <= np.float32(high))


@pytest.mark.parametrize(("env", "differs"), VARIANTS, ids=repr)
def test_two_keys_differ_exactly_where_there_is_chance(env, differs):
    a, b = jax.random.key(0), jax.random.key(1)
    worlds = [jax.tree.leaves(env.world(key)) for key in (a, b, a)]
    assert all(map(np.array_equal, worlds[0], worlds[2]))
    assert differs["world"] != all(map(np.array_equal, worlds[0], worlds[1]))

    # Action 0 throughout, in many episodes, so that only the step's own key can make a difference.
    def total(key):
        state, _ = env.reset(world, key)
        return jax.lax.scan(
            lambda state, key: env.step(world, state, env.spaces.an_action(), key),
            state,
            jax.random.split(key, env.max_steps),
        )[1].reward.sum()

    world = env.world(a)
    totals = jax.jit(jax.vmap(total))(jax.random.split(b, 20))
    assert differs["rewards"] == (np.unique(totals).size > 1)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_unknown_settings_are_refused(name):
    with pytest.raises(TypeError):
        ENVIRONMENTS[name](no_such_setting=1)


def test_importing_the_environments_does_not_import_gymnasium():
    code = "import sys, randq.envs; sys.exit('gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
