"""The whole training loop as one XLA program, for many seeds at once.

A *block* is a fixed number of steps followed by a fixed number of updates: `update_every` steps and
one update, or a whole episode and `updates_per_episode` updates. An episode is a whole number of
blocks, and an evaluation follows it. So nothing in the program branches on a single seed's data;
the price is that all episodes of an environment must have the same length. The replay holds
states, which are a few bytes; observations are made of them when they are sampled.

Every seed has its own keys, made from its number and the block's alone: how seeds are batched, and
how blocks are grouped into chunks, changes nothing.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from randq.agents.dqn import DQN, DQNState, Metrics
from randq.config import require, whole
from randq.envs.base import Environment
from randq.evaluate import Episode, rollout
from randq.replay.ring import Ring, RingState
from randq.types import Array, Bool, Float32, Int32, Key, PyTree, Shaped, Transition


class RunState(NamedTuple):
    """All seeds: arrays have a leading axis of seeds, but for the count of blocks."""

    key: Key
    eval_key: Key
    """Evaluation has a key of its own, so that it changes nothing in training."""
    world: PyTree
    env: PyTree
    agent: DQNState
    replay: RingState
    block: Int32[Array, ""]


class Record(NamedTuple):
    """What one episode has to say of each seed."""

    train_return: Float32[Array, " seeds"]
    """Return of the training episode."""
    train_good: Bool[Array, " seeds"]
    """Whether the environment calls the training episode a success."""
    eval_return: Float32[Array, " seeds"]
    eval_good: Bool[Array, " seeds"]
    """Whether the evaluation is optimal."""
    loss: Float32[Array, " seeds"]
    cost: Float32[Array, " seeds"]


class StepKeys(NamedTuple):
    """The keys of one step."""

    refresh: Key
    act: Key
    env: Key
    reset: Key
    mask: Key


class UpdateKeys(NamedTuple):
    """The keys of one update."""

    sample: Key
    learn: Key
    condition: Key


@dataclass(frozen=True)
class Compiled:
    """An agent and an environment, as a program."""

    agent: DQN
    env: Environment[Any, Any]
    chunk: int = 100
    """The most episodes that one call can run."""

    def __post_init__(self) -> None:
        whole("chunk", self.chunk, at_least=1)
        takes = "one whose episodes all have the same length"
        require(self.env.fixed_length, "environment of the compiled loop", self.env, takes)
        every = self.agent.update_every
        takes = f"a divisor of the {self.episode_length} steps of an episode"
        require(every is None or self.episode_length % every == 0, "update_every", every, takes)

    @property
    def episode_length(self) -> int:
        assert self.env.max_steps is not None
        return self.env.max_steps

    @property
    def steps_per_block(self) -> int:
        return self.agent.update_every or self.episode_length

    @property
    def blocks_per_episode(self) -> int:
        return self.episode_length // self.steps_per_block

    @property
    def updates_per_block(self) -> int:
        return 1 if self.agent.update_every is not None else self.agent.updates_per_episode

    @property
    def ring(self) -> Ring:
        return Ring(self.agent.replay_capacity, self.steps_per_block)

    def init(self, seeds: Int32[Array, " seeds"]) -> RunState:
        """The state of every seed before the first step."""
        return self._start(seeds)

    def run(self, state: RunState, episodes: int) -> tuple[RunState, Record]:
        """Further episodes, the leading axis of the records. The old state is used up."""
        whole("episodes", episodes, at_least=1)
        require(episodes <= self.chunk, "episodes", episodes, f"at most chunk = {self.chunk}")
        state, records = self._program(state, jnp.int32(episodes))
        return state, jax.tree.map(lambda x: np.asarray(x)[:episodes], records)

    # For small programs compiling takes longer than running. What runs once is not optimised at
    # all; what runs for long is optimised a little less, which costs no speed that was measured.

    @cached_property
    def _start(self) -> Any:
        return jax.jit(self._init, compiler_options={"xla_backend_optimization_level": 0})

    @cached_property
    def _program(self) -> Any:
        options = {"xla_backend_optimization_level": 1}
        return jax.jit(self._run, donate_argnums=0, compiler_options=options)

    def _init(self, seeds: Int32[Array, " seeds"]) -> RunState:
        def one(seed: Int32[Array, ""]) -> RunState:
            keys = jax.random.split(jax.random.key(seed), 5)
            key, eval_key, agent_key, world_key, env_key = keys
            agent = self.agent.init(self.env.observation_shape, self.env.num_actions, agent_key)
            world = self.env.world(world_key)
            env, _ = self.env.reset(world, env_key)
            zero = jnp.zeros((), jnp.int32)
            masks = jnp.zeros(agent.posterior.num_members)
            item = Transition(env, zero, jnp.zeros(()), env, jnp.zeros((), bool), masks)
            return RunState(key, eval_key, world, env, agent, self.ring.init(item), zero)

        return jax.vmap(one)(seeds)._replace(block=jnp.zeros((), jnp.int32))

    def _run(self, state: RunState, episodes: Int32[Array, ""]) -> tuple[RunState, Record]:
        # How many episodes is a number and not a shape: one program serves a last, shorter chunk.
        def body(i: Int32[Array, ""], carry: tuple[RunState, Record]) -> tuple[RunState, Record]:
            state, records = carry
            state, record = self._episode(state)
            return state, jax.tree.map(lambda all, new: all.at[i].set(new), records, record)

        numbers = jnp.zeros((self.chunk, state.agent.steps.size), jnp.float32)
        flags = numbers.astype(bool)
        records = Record(numbers, flags, numbers, flags, numbers, numbers)
        return jax.lax.fori_loop(0, episodes, body, (state, records))

    def _episode(self, state: RunState) -> tuple[RunState, Record]:
        state, (rewards, ends, metrics) = jax.lax.scan(
            lambda s, _: self._block(s), state, None, length=self.blocks_per_episode
        )
        total = jnp.sum(rewards, axis=0)
        end, last = jax.tree.map(lambda x: x[-1], (ends, metrics))
        good = jax.vmap(self.env.good)(state.world, end, total)
        key = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.eval_key, state.block)
        evaluation = jax.vmap(self._evaluate)(state.agent, state.world, key)
        return state, Record(total, good, *evaluation, last.loss, last.cost)

    def _block(
        self, state: RunState
    ) -> tuple[RunState, tuple[Float32[Array, " seeds"], PyTree, Metrics]]:
        """Steps and updates: the sum of the rewards, the last state, and the last metrics."""
        block_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.key, state.block)
        for_steps = self.steps_per_block * len(StepKeys._fields)
        total = for_steps + self.updates_per_block * len(UpdateKeys._fields)
        keys = jnp.moveaxis(jax.vmap(partial(jax.random.split, num=total))(block_keys), 1, 0)
        step_keys = keys[:for_steps].reshape(self.steps_per_block, len(StepKeys._fields), -1)
        update_keys = keys[for_steps:].reshape(self.updates_per_block, len(UpdateKeys._fields), -1)

        before = state.agent.steps[0]
        state, items = jax.lax.scan(self._step, state, step_keys)
        reward = jnp.sum(items.reward, axis=0)
        end = jax.tree.map(lambda x: x[-1], items.next_observation)
        items = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), items)
        replay = jax.vmap(self.ring.add)(state.replay, items)
        agent = jax.lax.cond(
            self.agent.target_due(state.agent.steps[0], before),
            jax.vmap(self.agent.move_target),
            lambda agent: agent,
            state.agent,
        )
        agent, metrics = self._learn(agent, replay, update_keys)
        state = state._replace(agent=agent, replay=replay, block=state.block + 1)
        return state, (reward, end, metrics)

    def _step(
        self, state: RunState, raw_keys: Shaped[Array, "fields seeds"]
    ) -> tuple[RunState, Transition]:
        keys = StepKeys(*raw_keys)
        env, agent = self.env, state.agent
        # The predicate spans all seeds, so this is a branch and not a computation thrown away.
        agent = jax.lax.cond(
            jnp.any(agent.stale), jax.vmap(self.agent.refresh), lambda a, _: a, agent, keys.refresh
        )
        observation = jax.vmap(env.encode)(state.env)
        action = jax.vmap(self.agent.act)(agent, observation, keys.act)
        after, result = jax.vmap(env.step)(state.world, state.env, action, keys.env)
        ended = result.terminated | result.truncated
        terminated = ended if self.agent.truncation_terminates else result.terminated
        masks = jax.vmap(lambda p, k: p.masks(k, 1)[:, 0])(agent.posterior, keys.mask)
        item = Transition(state.env, action, result.reward, after, terminated, masks)

        fresh, _ = jax.vmap(env.reset)(state.world, keys.reset)
        following = jax.tree.map(lambda a, b: jnp.where(_expand(ended, a), a, b), fresh, after)
        agent = jax.vmap(self.agent.stepped)(agent, ended)
        return state._replace(env=following, agent=agent), item

    def _learn(
        self, agent: DQNState, replay: RingState, keys: Shaped[Array, "updates fields seeds"]
    ) -> tuple[DQNState, Metrics]:
        def sample(replay: RingState, key: Key, count: int) -> Transition:
            items: Transition = self.ring.sample(replay, key, count)
            encode = jax.vmap(self.env.encode)
            return items._replace(
                observation=encode(items.observation),
                next_observation=encode(items.next_observation),
            )

        def update(agent: DQNState, replay: RingState, keys: UpdateKeys) -> Any:
            return self.agent.update(
                agent, sample(replay, keys.sample, self.agent.batch_size), keys.learn
            )

        def condition(agent: DQNState, replay: RingState, keys: UpdateKeys) -> DQNState:
            return self.agent.condition(
                agent, sample(replay, keys.condition, self.agent.condition_batch)
            )

        def body(
            agent: DQNState, raw_keys: Shaped[Array, "fields seeds"]
        ) -> tuple[DQNState, Metrics]:
            keys = UpdateKeys(*raw_keys)
            agent, metrics = jax.vmap(update)(agent, replay, keys)
            agent = jax.lax.cond(
                agent.updates[0] % self.agent.condition_every == 0,
                lambda: jax.vmap(condition)(agent, replay, keys),
                lambda: agent,
            )
            return agent, metrics

        def learn(agent: DQNState) -> tuple[DQNState, Metrics]:
            agent, metrics = jax.lax.scan(body, agent, keys)
            return agent, jax.tree.map(lambda x: x[-1], metrics)

        def wait(agent: DQNState) -> tuple[DQNState, Metrics]:
            nothing = jnp.full(agent.steps.shape, jnp.nan)
            return agent, Metrics(nothing, nothing, nothing)

        return jax.lax.cond(agent.steps[0] >= self.agent.learning_starts, learn, wait, agent)

    def _evaluate(self, agent: DQNState, world: PyTree, key: Key) -> Episode:
        return rollout(self.env, world, self.agent.evaluator(agent), key)


def _expand(flag: Array, like: Array) -> Array:
    """A flag per seed, with axes added so that it broadcasts against an array per seed."""
    return flag.reshape(flag.shape + (1,) * (like.ndim - flag.ndim))
