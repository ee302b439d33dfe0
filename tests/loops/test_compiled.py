"""The compiled loop: what it does is what a plain loop would do, seed by seed and step by step."""

import functools
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from randq.envs import DeepSea, NChain
from randq.envs.base import Environment, Step
from randq.evaluation import Episode, rollout
from randq.exploration import Epsilon
from randq.loops.compiled import Compiled
from randq.posteriors import Bootstrap, MeanField
from randq.presets import PRESETS
from randq.types import Transition

# Small networks, a replay that wraps around, a target that lags behind, and steps that are large
# enough to change what the agent does.
TINY = {
    "hidden": (4,),
    "batch_size": 8,
    "replay_capacity": 30,
    "learning_starts": 13,
    "target_every": 20,
    "learning_rate": 0.05,
    "gamma": 0.9,
}
CHAIN = NChain(length=4, features="one_hot", action_map="random")


class WalkState(NamedTuple):
    position: jax.Array
    steps: jax.Array


@dataclass(frozen=True)
class Walk(Environment):
    """Steps left and right until one of the ends, with pushes by the wind, or until it is late."""

    def world(self, key):
        return ()

    def observe(self, state):
        return jax.nn.one_hot(state.position, 5, dtype=jnp.float32)

    def reset(self, world, key):
        state = WalkState(jnp.int32(2), jnp.int32(0))
        return state, self.observe(state)

    def step(self, world, state, action, key):
        wind = jax.random.bernoulli(key, 0.3).astype(jnp.int32)
        position = jnp.clip(state.position + 2 * action - 1 + wind, 0, 4)
        state = WalkState(position, state.steps + 1)
        over = (position == 0) | (position == 4)
        late = ~over & (state.steps >= self.max_steps)
        return state, Step(self.observe(state), position.astype(jnp.float32), over, late)

    def optimal_return(self, world):
        return None

    observation_shape, observation_bounds = (5,), (0.0, 1.0)
    num_actions, max_steps, fixed_length = 2, 7, False


WALK = Walk()
LENGTH = 12
AGENT = replace(PRESETS["bbqn"], **TINY, posterior=MeanField(initial_std=0.5))
EPISODES = 6
TEN = jnp.arange(10, dtype=jnp.int32)
SEVEN = jnp.array([7], jnp.int32)
FAST = {"xla_backend_optimization_level": 0}


def copied(tree):
    """In numpy, with keys as plain numbers; the loop may then use up the original."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    plain = jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)
    return jax.tree.map(np.array, plain)


@functools.cache
def program_of(agent, env):
    return Compiled(agent, env)


def run(seeds, chunks, change=lambda state: state, program=None):
    """State and records after some chunks of blocks, and the state at the beginning."""
    program = program or program_of(AGENT, CHAIN)
    state = change(program.init(seeds))
    start = copied(state)
    records = []
    for blocks in chunks:
        state, record = program.run(state, blocks)
        records.append(record)
    record = jax.tree.map(lambda *x: np.concatenate(x), *records)
    return SimpleNamespace(start=start, end=copied(state), record=record)


@functools.cache
def ten():
    return run(TEN, [EPISODES])


def identical(a, b):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(a) == len(b) > 0
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def close(a, b, **tolerance):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(a) == len(b) > 0
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, **({"rtol": 1e-3, "atol": 1e-4} | tolerance))


def of_seed(index, state):
    return jax.tree.map(lambda x: x[index], state._replace(block=None))


def held(state, index):
    """The transitions in the replay of one seed, oldest first."""
    written = int(state.replay.written[index])
    slots = len(state.replay.items.action[index])
    order = np.arange(max(0, written - slots), written) % slots
    return jax.tree.map(lambda x: x[index][order], state.replay.items)


# --- seeds -------------------------------------------------------------------------------------


def test_a_seed_does_not_depend_on_its_company():
    alone = run(SEVEN, [EPISODES])
    # Initial weights, action map and keys, bit for bit.
    identical(of_seed(0, alone.start), of_seed(7, ten().start))
    # Matrices of another size may be multiplied in another order, so weights are only close; what
    # was seen and done is the same.
    identical(held(alone.end, 0), held(ten().end, 7))
    identical(alone.record.steps.total[..., 0], ten().record.steps.total[..., 7])
    identical(alone.record.eval_return[:, 0], ten().record.eval_return[:, 7])
    close(of_seed(0, alone.end).agent, of_seed(7, ten().end).agent)


def test_the_same_call_twice_is_bit_identical():
    again = run(TEN, [EPISODES])
    identical(again.end, ten().end)
    identical(again.record, ten().record)


def test_chunks_change_nothing():
    chunked = run(TEN, [4, 2])
    identical(chunked.end, ten().end)
    identical(chunked.record, ten().record)


def test_one_program_serves_chunks_of_every_length():
    program = Compiled(AGENT, CHAIN, chunk=3)
    state = program.init(SEVEN)
    for episodes in (3, 1, 2):
        state, record = program.run(state, episodes)
        assert {len(values) for values in jax.tree.leaves(record)} == {episodes}
    assert program._program._cache_size() == 1
    for wrong, takes in {4: "at most chunk = 3", 0: "an integer >= 1"}.items():
        with pytest.raises(ValueError, match=f"blocks: got {wrong}, takes {takes}"):
            program.run(state, wrong)


def test_seeds_differ_in_weights_world_and_behaviour():
    start, end = ten().start, ten().end
    for i in range(10):
        for j in range(i):
            weights = [of_seed(k, start).agent.posterior for k in (i, j)]
            leaves = [np.concatenate([x.ravel() for x in jax.tree.leaves(w)]) for w in weights]
            assert np.mean(leaves[0] != leaves[1]) > 0.4  # the others are constants at first
            assert (start.key[i] != start.key[j]).any()
            assert (start.eval_key[i] != start.eval_key[j]).any()
    assert len({tuple(world) for world in start.world}) > 3
    # With one action map for all, only weights and noise are left to make a difference.
    alike = run(TEN, [EPISODES], lambda s: s._replace(world=jnp.ones_like(s.world))).end
    for state in (end, alike):
        assert len({held(state, i).action.tobytes() for i in range(10)}) >= 8


# --- evaluation --------------------------------------------------------------------------------


def test_evaluation_changes_nothing_in_training(monkeypatch):
    assert (ten().record.eval_return != 0).any()
    nothing = Episode(jnp.zeros(()), jnp.zeros((), bool))
    monkeypatch.setattr(Compiled, "_evaluate", lambda self, agent, world, key, block: nothing)
    without = run(TEN, [EPISODES], program=Compiled(AGENT, CHAIN))
    assert (without.record.eval_return == 0).all()
    identical(without.end, ten().end)
    for field in ("steps", "evaluated", "loss", "cost"):
        identical(getattr(without.record, field), getattr(ten().record, field))


# --- what is stored ----------------------------------------------------------------------------


def test_the_replay_holds_the_transitions_that_were_taken():
    for seed in range(10):
        items, world = held(ten().end, seed), ten().end.world[seed]
        assert len(items.action) == 48  # 30 are asked for; there is room for four episodes
        for t in range(48):
            position, steps = (x[t] for x in items.observation)
            assert steps == t % LENGTH
            if steps == 0:
                assert position == 1
            wanted = position + (1 if items.action[t] == world[position] else -1)
            expected = {-1: 0.001, 4: 1.0}.get(int(wanted), 0.0)
            assert items.reward[t] == np.float32(expected)
            # The true next state, also at the end of an episode: never that of the next reset.
            assert items.next_observation.position[t] == np.clip(wanted, 0, 3)
            assert items.next_observation.steps[t] == steps + 1
            if t + 1 < 48 and steps + 1 < LENGTH:
                assert items.observation.position[t + 1] == items.next_observation.position[t]
            assert not items.terminated[t], "a time limit is not an end"
        returns = items.reward.reshape(4, LENGTH).sum(axis=1)
        np.testing.assert_allclose(returns, ten().record.steps.total[2:, -1, seed], rtol=1e-6)
    assert (ten().record.steps.total > 0).any()


def test_counters():
    agent = ten().end.agent
    assert (agent.steps == EPISODES * LENGTH).all()
    assert (agent.episodes == EPISODES).all()
    assert (agent.updates == EPISODES - 1).all()  # not after the first 12 of 13 steps
    assert ten().end.block == EPISODES
    assert (ten().end.replay.written == EPISODES * LENGTH).all()
    assert np.isnan(ten().record.loss[0]).all()
    assert np.isfinite(ten().record.loss[1:]).all()
    assert (ten().record.cost[1:] > 0).all()


def test_where_episodes_differ_in_length_updates_go_by_steps():
    with pytest.raises(ValueError, match="update_every: got None, takes a number of steps") as e:
        Compiled(AGENT, WALK)
    assert str(e.value).count("\n") == 0
    Compiled(replace(AGENT, update_every=4), WALK)


def test_an_episode_without_a_limit_is_refused(monkeypatch):
    monkeypatch.setattr(NChain, "max_steps", None)
    with pytest.raises(ValueError, match="takes one whose episodes have a limit of steps"):
        Compiled(AGENT, CHAIN)


# --- step for step -----------------------------------------------------------------------------


def plain_run(agent, env, seed, blocks, evaluate_every):
    """Algorithm 1 as a plain loop over the same functions and keys, for one seed."""

    def compiled(function):
        return jax.jit(function, compiler_options=FAST)

    refresh, act, stepped = (compiled(f) for f in (agent.refresh, agent.act, agent.stepped))
    update, condition = (compiled(f) for f in (agent.update, agent.condition))
    move = compiled(agent.move_target)
    step, reset, observe = (compiled(f) for f in (env.step, env.reset, env.observe))
    masks_of = compiled(lambda posterior, key: posterior.masks(key, 1)[:, 0])
    score = compiled(lambda s, world, key: rollout(env, world, agent.evaluator(s), key).total)

    key, eval_key, agent_key, world_key, env_key = jax.random.split(jax.random.key(seed), 5)
    init = compiled(lambda k: agent.init(env.spaces, k))
    state = init(agent_key)
    world = env.world(world_key)
    at, _ = reset(world, env_key)
    memory, finished, evaluations, block, before = [], [], [], 0, 0
    total, length, evaluate = 0.0, 0, False

    every = agent.update_every or env.max_steps
    updates = 1 if agent.update_every else agent.updates_per_episode
    for t in range(1, blocks * every + 1):
        if (t - 1) % every == 0:
            keys = iter(jax.random.split(jax.random.fold_in(key, block), 5 * every + 3 * updates))
            before = t - 1
        refresh_key, act_key, step_key, reset_key, mask_key = (next(keys) for _ in range(5))
        if state.stale:
            state = refresh(state, refresh_key)
        action = act(state, observe(at), act_key)
        after, result = step(world, at, action, step_key)
        ended = result.terminated | result.truncated
        final = ended if agent.truncation_terminates else result.terminated
        masks = masks_of(state.posterior, mask_key)
        seen = Transition(observe(at), action, result.reward, observe(after), final, masks)
        memory = [*memory, jax.device_get(seen)][-agent.replay_capacity :]
        at = reset(world, reset_key)[0] if ended else after
        state = stepped(state, ended)
        total, length = total + float(result.reward), length + 1
        if ended:
            finished.append((t - 1, total, length))
            evaluate |= len(finished) % evaluate_every == 0
            total, length = 0.0, 0

        if t % every == 0:
            block += 1
            if t // agent.target_every > before // agent.target_every:
                state = move(state)
            for _ in range(updates) if t > agent.learning_starts else ():
                sample_key, learn_key, condition_key = (next(keys) for _ in range(3))
                state, _ = update(state, sample(memory, sample_key, agent.batch_size), learn_key)
                if state.updates % agent.condition_every == 0:
                    batch = sample(memory, condition_key, agent.condition_batch)
                    state = condition(state, batch)
            if evaluate:
                value = score(state, world, jax.random.fold_in(eval_key, block))
                evaluations.append((block - 1, float(value)))
            evaluate = False
    return SimpleNamespace(
        state=copied(state), memory=memory, finished=finished, evaluations=evaluations
    )


def sample(memory, key, count):
    ages = np.asarray(jax.random.bits(key, (count,))) % len(memory)
    return jax.tree.map(lambda *x: np.stack(x), *[memory[-1 - int(age)] for age in ages])


# What differs between the cases: family, environment, when to update, when to redraw, masks, ...
CASES = {
    "mnf-dqn": ({"update_every": 4, "target_rate": 0.5, "target_every": 4}, CHAIN),
    "ddqn": (
        {"updates_per_episode": 2, "epsilon": Epsilon(0.8, 0.2, 4), "random_steps": 5},
        DeepSea(size=4, deterministic=False),
    ),
    # Blocks that episodes of many lengths begin and end within, even twice.
    "noisy-dqn": ({"update_every": 5}, WALK),
    "boot-dqn-prior": (
        {
            "posterior": Bootstrap(3, "torso", mask_probability=0.5, prior_scale=2.0),
            "truncation_terminates": True,
            "redraw_update": True,
        },
        CHAIN,
    ),
    "bdqn": ({"update_every": 3, "condition_every": 2, "redraw_every": 5}, CHAIN),
}


@pytest.mark.parametrize("name", ["bbqn", *CASES])
def test_is_a_plain_loop(name):
    changes, env = CASES.get(name, ({}, CHAIN))
    agent = AGENT
    if name != "bbqn":
        agent = replace(PRESETS[name], **(TINY | {"condition_batch": 20} | changes))
    every = 2 if env is WALK else 1
    if name == "bbqn":
        result, blocks = ten(), EPISODES
    else:
        blocks = 12
        program = Compiled(agent, env, blocks, every)
        compiled = jax.jit(program._run, compiler_options=FAST)
        state, record = compiled(program.init(TEN), jnp.int32(blocks))
        result = SimpleNamespace(end=copied(state), record=jax.device_get(record))
    # The seed whose actions vary most, so that there is something to see.
    variety = [np.sum(np.diff(held(result.end, seed).action) != 0) for seed in range(10)]
    index = int(np.argmax(variety))
    assert variety[index] >= 3
    plain = plain_run(agent, env, index, blocks, every)

    taken, observe = held(result.end, index), jax.jit(env.observe)
    count = len(plain.memory)
    assert count == min(30, blocks * program_of(agent, env).steps_per_block)
    for t, expected in enumerate(plain.memory, start=len(taken.action) - count):
        for field in ("action", "reward", "terminated", "masks"):
            np.testing.assert_array_equal(getattr(taken, field)[t], getattr(expected, field))
        for field in ("observation", "next_observation"):
            stored = jax.tree.map(lambda x: x[t], getattr(taken, field))  # noqa: B023
            np.testing.assert_array_equal(observe(stored), getattr(expected, field))

    record = jax.tree.map(lambda x: x[..., index], result.record)
    ended, _, total, length = (x.reshape(-1) for x in record.steps)
    ends = np.flatnonzero(ended)
    found = list(zip(ends, total[ends], length[ends], strict=True))
    np.testing.assert_allclose(found, plain.finished, rtol=1e-5)
    if env is WALK:
        assert len(set(length[ends])) > 2, "episodes of many lengths"
    at = np.flatnonzero(record.evaluated)
    found = list(zip(at, record.eval_return[at], strict=True))
    np.testing.assert_allclose(found, plain.evaluations, rtol=1e-5)
    ours = of_seed(index, result.end).agent
    for counter in ("steps", "episodes", "updates", "stale"):
        assert getattr(ours, counter) == getattr(plain.state, counter)
    for part in ("posterior", "target", "draw", "optimiser"):
        close(getattr(ours, part), getattr(plain.state, part))
