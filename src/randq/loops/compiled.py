"""The whole training loop as one XLA program, for many seeds at once.

A *block* is a fixed number of steps followed by a fixed number of updates: `update_every` steps and
one update, or a whole episode and `updates_per_episode` updates. Nothing in the program branches on
a single seed's data: a seed whose episode ends begins the next one at once, in the midst of a block
if need be, so that seeds may be in different episodes. The replay holds states, which are a few
bytes; what a network takes is made of them when they are sampled.

Every seed has its own keys, made from its number and the block's alone: how seeds are batched, and
how blocks are grouped into chunks, changes nothing.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from randq import threefry
from randq.agents import LOOK, Agent, AgentState, Metrics, Spread
from randq.config import replay_fits, require, whole
from randq.envs.base import Environment
from randq.evaluation import Episode, rollout
from randq.loops.keys import StepKeys, UpdateKeys, block_keys, run_keys
from randq.replay.ring import Ring, RingState
from randq.types import Array, Bool, Float32, Int32, Key, PyTree, Shaped, Transition

# For small programs compiling takes longer than running.
ONCE = {"xla_backend_optimization_level": 0}
"""How to compile what runs once: it is not optimised at all."""
OFTEN = {"xla_backend_optimization_level": 1}
"""What runs often is optimised a little less, which costs no speed that was measured."""


class RunState(NamedTuple):
    """All seeds: arrays have a leading axis of seeds, but for the count of blocks."""

    key: Key
    eval_key: Key
    world: PyTree
    env: PyTree
    total: Float32[Array, " seeds"]
    """Rewards of the episode so far."""
    length: Int32[Array, " seeds"]
    """Steps of the episode so far."""
    agent: AgentState
    replay: RingState
    block: Int32[Array, ""]


class Steps(NamedTuple):
    """What the steps have to say of each seed; an episode's numbers stand where it ended."""

    ended: Bool[Array, "..."]
    good: Bool[Array, "..."]
    """Whether the environment calls the episode that ended a success."""
    total: Float32[Array, "..."]
    """Return of the episode so far."""
    length: Int32[Array, "..."]
    """Steps of the episode so far."""


class Record(NamedTuple):
    """What a block has to say of each seed, and its steps, an axis more."""

    steps: Steps
    evaluated: Bool[Array, "... seeds"]
    """Whether an evaluation was due after this block; where not, the next two mean nothing."""
    eval_return: Float32[Array, "... seeds"]
    eval_good: Bool[Array, "... seeds"]
    loss: Float32[Array, "... seeds"]
    cost: Float32[Array, "... seeds"]


@dataclass(frozen=True)
class Compiled:
    """An agent and an environment, as a program."""

    agent: Agent
    env: Environment[Any, Any]
    chunk: int = 100
    """The most blocks that one call can run."""
    evaluate_every: int = 1
    """Episodes between evaluations."""

    def __post_init__(self) -> None:
        whole("chunk", self.chunk, at_least=1)
        whole("evaluate_every", self.evaluate_every, at_least=1)
        takes = "one whose episodes have a limit of steps"
        require(self.env.max_steps is not None, "environment", self.env, takes)
        takes = "a number of steps where episodes differ in length"
        known = self.agent.update_every is not None or self.env.fixed_length
        require(known, "update_every", None, takes)
        takes = "1 in an environment of this package, which has no stacks of frames"
        require(self.agent.n_step == 1, "n_step", self.agent.n_step, takes)

    @property
    def steps_per_block(self) -> int:
        if self.agent.update_every is not None:
            return self.agent.update_every
        assert self.env.max_steps is not None
        return self.env.max_steps

    @property
    def updates_per_block(self) -> int:
        return 1 if self.agent.update_every is not None else self.agent.updates_per_episode

    @property
    def ring(self) -> Ring:
        return Ring(self.agent.replay_capacity, self.steps_per_block)

    def init(self, seeds: Int32[Array, " seeds"]) -> RunState:
        """The state of every seed before the first step."""
        return self._start(seeds)

    def run(self, state: RunState, blocks: int) -> tuple[RunState, Record]:
        """Further blocks, the leading axis of the records. The old state is used up."""
        whole("blocks", blocks, at_least=1)
        require(blocks <= self.chunk, "blocks", blocks, f"at most chunk = {self.chunk}")
        state, records = self._program(state, jnp.int32(blocks))
        return state, jax.tree.map(lambda x: np.asarray(x)[:blocks], records)

    def spread(self, state: RunState) -> Spread:
        """For each seed, how far draws differ for observations from its replay."""
        return self._spread(state)

    def shape(self, seeds: int) -> RunState:
        """The shapes of the state of so many seeds."""
        shape: RunState = jax.eval_shape(self._start, jnp.zeros(seeds, jnp.int32))
        return shape

    def check_fits(self, seeds: int) -> int:
        """The bytes that the replays take; refused if this machine does not have them."""
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(self.shape(seeds).replay))
        replay_fits(size, self.agent.replay_capacity)
        return size

    @cached_property
    def _start(self) -> Any:
        return jax.jit(self._init, compiler_options=ONCE)

    @cached_property
    def _program(self) -> Any:
        return jax.jit(self._run, donate_argnums=0, compiler_options=OFTEN)

    @cached_property
    def _spread(self) -> Any:
        def one(state: RunState) -> Spread:
            # Keys of its own, so that to look changes nothing.
            sample_key, key = threefry.split(threefry.fold_in(state.eval_key, -1 - state.block))
            items = self.ring.sample(state.replay, sample_key, LOOK)
            return self.agent.spread(state.agent, jax.vmap(self.env.encode)(items.observation), key)

        axes = RunState._make([*[0] * (len(RunState._fields) - 1), None])
        over_seeds = jax.vmap(one, in_axes=(axes,))
        return jax.jit(over_seeds, compiler_options=OFTEN)

    def _init(self, seeds: Int32[Array, " seeds"]) -> RunState:
        def one(seed: Int32[Array, ""]) -> RunState:
            keys = run_keys(seed)
            agent = self.agent.init(self.env.spaces, keys.agent)
            world = self.env.world(keys.world)
            env, _ = self.env.reset(world, keys.env)
            zero = jnp.zeros((), jnp.int32)
            reward = jnp.zeros((), jnp.float32)
            masks = jnp.zeros(agent.posterior.num_members, self.agent.precision)
            action = self.env.spaces.an_action()
            item = Transition(env, action, reward, env, jnp.zeros((), bool), masks)
            replay = self.ring.init(item)
            counts = reward, zero
            return RunState(keys.run, keys.evaluation, world, env, *counts, agent, replay, zero)

        return jax.vmap(one)(seeds)._replace(block=jnp.zeros((), jnp.int32))

    def _run(self, state: RunState, blocks: Int32[Array, ""]) -> tuple[RunState, Record]:
        # How many blocks is a number and not a shape: one program serves a last, shorter chunk.
        def body(i: Int32[Array, ""], carry: tuple[RunState, Record]) -> tuple[RunState, Record]:
            state, records = carry
            state, record = self._block(state)
            return state, jax.tree.map(lambda all, new: all.at[i].set(new), records, record)

        def empty(*shape: int) -> tuple[Array, Array]:
            shape = (self.chunk, *shape, state.length.size)
            return jnp.zeros(shape, jnp.float32), jnp.zeros(shape, bool)

        number, flag = empty(self.steps_per_block)
        steps = Steps(flag, flag, number, number.astype(jnp.int32))
        number, flag = empty()
        records = Record(steps, flag, number, flag, number, number)
        return jax.lax.fori_loop(0, blocks, body, (state, records))

    def _block(self, state: RunState) -> tuple[RunState, Record]:
        make_keys = partial(block_keys, steps=self.steps_per_block, updates=self.updates_per_block)
        over_seeds = jax.vmap(make_keys, in_axes=(0, None), out_axes=2)
        step_keys, update_keys = over_seeds(state.key, state.block)

        before = state.agent
        state, (items, steps) = jax.lax.scan(self._step, state, step_keys)
        items = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), items)
        replay = jax.vmap(self.ring.add)(state.replay, items)
        # The predicates span all seeds, here and below, so these are branches and not computations
        # thrown away.
        agent = jax.lax.cond(
            self.agent.target_due(state.agent.steps[0], before.steps[0]),
            jax.vmap(self.agent.move_target),
            lambda agent: agent,
            state.agent,
        )
        agent, metrics = self._learn(agent, replay, update_keys)
        state = state._replace(agent=agent, replay=replay, block=state.block + 1)

        every = self.evaluate_every
        due = agent.episodes // every > before.episodes // every
        nothing = Episode(jnp.zeros_like(state.total), jnp.zeros_like(due))
        evaluation = jax.lax.cond(
            jnp.any(due),
            lambda: jax.vmap(self._evaluate, in_axes=(0, 0, 0, None))(
                agent, state.world, state.eval_key, state.block
            ),
            lambda: nothing,
        )
        returns, good = evaluation
        loss, cost = (x.astype(jnp.float32) for x in (metrics.loss, metrics.cost))
        return state, Record(steps, due, returns, good, loss, cost)

    def _step(
        self, state: RunState, raw_keys: Shaped[Array, "fields seeds"]
    ) -> tuple[RunState, tuple[Transition, Steps]]:
        keys = StepKeys(*raw_keys)
        env, agent = self.env, state.agent
        agent = jax.lax.cond(
            jnp.any(agent.stale), jax.vmap(self.agent.refresh), lambda a, _: a, agent, keys.refresh
        )
        observation = jax.vmap(env.encode)(state.env)
        action = jax.vmap(self.agent.act)(agent, observation, keys.act)
        after, result = jax.vmap(env.step)(state.world, state.env, action, keys.env)
        ended = result.terminated | result.truncated
        terminated = ended if self.agent.truncation_terminates else result.terminated
        masks = jax.vmap(lambda p, k: p.masks(k, 1)[:, 0])(agent.posterior, keys.mask)
        stored = self.agent.stored(result.reward)
        item = Transition(state.env, action, stored, after, terminated, masks)

        total, length = state.total + result.reward, state.length + 1
        good = ended & jax.vmap(env.good)(state.world, after, total)
        fresh, _ = jax.vmap(env.reset)(state.world, keys.reset)
        following = jax.tree.map(lambda a, b: jnp.where(_expand(ended, a), a, b), fresh, after)
        state = state._replace(
            env=following,
            total=jnp.where(ended, 0, total),
            length=jnp.where(ended, 0, length),
            agent=jax.vmap(self.agent.stepped)(agent, ended),
        )
        return state, (item, Steps(ended, good, total, length))

    def _learn(
        self, agent: AgentState, replay: RingState, keys: Shaped[Array, "updates fields seeds"]
    ) -> tuple[AgentState, Metrics]:
        def sample(replay: RingState, key: Key, count: int) -> Transition:
            items: Transition = self.ring.sample(replay, key, count)
            encode = jax.vmap(self.env.encode)
            return items._replace(
                observation=encode(items.observation),
                next_observation=encode(items.next_observation),
            )

        def update(agent: AgentState, replay: RingState, keys: UpdateKeys) -> Any:
            return self.agent.update(
                agent, sample(replay, keys.sample, self.agent.batch_size), keys.learn
            )

        def condition(agent: AgentState, replay: RingState, keys: UpdateKeys) -> AgentState:
            return self.agent.condition(
                agent, sample(replay, keys.condition, self.agent.condition_batch)
            )

        def body(
            agent: AgentState, raw_keys: Shaped[Array, "fields seeds"]
        ) -> tuple[AgentState, Metrics]:
            keys = UpdateKeys(*raw_keys)
            agent, metrics = jax.vmap(update)(agent, replay, keys)
            agent = jax.lax.cond(
                agent.updates[0] % self.agent.condition_every == 0,
                lambda: jax.vmap(condition)(agent, replay, keys),
                lambda: agent,
            )
            return agent, metrics

        def learn(agent: AgentState) -> tuple[AgentState, Metrics]:
            agent, metrics = jax.lax.scan(body, agent, keys)
            return agent, jax.tree.map(lambda x: x[-1], metrics)

        def wait(agent: AgentState) -> tuple[AgentState, Metrics]:
            nothing = jnp.full(agent.steps.shape, jnp.nan, self.agent.precision)
            return agent, Metrics(*[nothing] * len(Metrics._fields))

        return jax.lax.cond(agent.steps[0] >= self.agent.learning_starts, learn, wait, agent)

    def _evaluate(
        self, agent: AgentState, world: PyTree, key: Key, block: Int32[Array, ""]
    ) -> Episode:
        key = threefry.fold_in(key, block)
        return rollout(self.env, world, self.agent.evaluator(agent), key)


def _expand(flag: Array, like: Array) -> Array:
    """A flag per seed, with axes added so that it broadcasts against an array per seed."""
    return flag.reshape(flag.shape + (1,) * (like.ndim - flag.ndim))
