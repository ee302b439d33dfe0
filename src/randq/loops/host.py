"""The training loop around an environment that is not JAX: one compiled call for each step.

Python does nothing but step the environment, and knows when it is time to learn. The call takes
what the step led to, stores it, learns then, and chooses the next actions; where several updates
are due it is made in parts. Several environments may step at once, and each holds a draw of its
own. With one environment the keys are those of the compiled loop.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from randq import storage, threefry
from randq.agents import LOOK, Agent, AgentState, Metrics, Spread
from randq.config import replay_fits, whole
from randq.envs.gym.stepper import Arrived
from randq.large import LARGE
from randq.loops.keys import StepKeys, UpdateKeys, block_keys, run_keys
from randq.packing import Packing, message, read
from randq.posteriors.base import Function
from randq.replay import Replay, ReplayState, replay_for
from randq.settings import to_json
from randq.types import (
    Array,
    Bool,
    Float,
    Float32,
    Int32,
    Key,
    OneHot,
    PyTree,
    Scalar,
    Shaped,
    Spaces,
    Transition,
)


class HostState(NamedTuple):
    """Everything that changes in training. What is held per environment has a leading axis."""

    key: Key
    agent: AgentState
    """Its draw, and whether that is stale, are held per environment."""
    replay: ReplayState
    observation: Shaped[Array, "envs ..."]
    """What was acted on last ..."""
    action: Shaped[Array, "envs ..."]
    """... and how."""
    masks: Float[Array, "envs members"]
    update_keys: UpdateKeys
    calls: Int32[Array, ""]
    largest_reward: Float32[Array, ""]
    metrics: Metrics
    """Of the last update."""
    healthy: Bool[Array, ""]
    """No update went wrong so far; a gradient that is not finite was not applied."""


COMPILED = {
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_cpu_prefer_vector_width": 512,
}
"""How a program is compiled for a CPU. With XLA's own convolutions, which run on all cores and have
gradients as fast as they are; those of YNNPACK, the default, run on one. Products stay there. In an
order that needs little memory, which XLA keeps to: it hands no operation to another thread to do
two at a time, since waking that one takes longer than most of them. With vectors as long as the
processor has them, where XLA stops at 256 bits: random numbers then take half the time."""

CHUNK = 256
"""Rows of a replay that are put back at once."""

Packed = list[Array]
"""A state as a program takes it."""


class Memory(NamedTuple):
    """What is worth keeping of an agent: all but the replay, and what was under way."""

    key: Key
    agent: AgentState
    calls: Int32[Array, ""]
    largest_reward: Float32[Array, ""]

    @classmethod
    def of(cls, state: HostState) -> "Memory":
        return cls(*(getattr(state, name) for name in cls._fields))

    def held(self, agent: Agent) -> Function:
        """What the first environment explores with, or what will replace that."""
        state = self.agent._replace(
            draw=jax.tree.map(lambda x: x[0], self.agent.draw), stale=self.agent.stale[0]
        )
        return agent.explorer(agent.refresh(state, threefry.fold_in(self.key, self.calls)))


class Vitals(NamedTuple):
    """How learning goes."""

    steps: Int32[Array, ""]
    metrics: Metrics
    """Of the last update; NaN before the first."""
    limit: Scalar
    """Q-values beyond this have exploded."""
    healthy: Bool[Array, ""]


class DivergedError(RuntimeError):
    """Learning went wrong; what was learnt until then is kept."""


@dataclass(frozen=True)
class Host:
    """An agent, as a program that is called once for each step of the environments."""

    agent: Agent
    spaces: Spaces
    num_envs: int = 1

    def __post_init__(self) -> None:
        whole("num_envs", self.num_envs, at_least=1)
        # On a CPU a program then runs in the thread that calls it: a loop that waits for actions
        # has no use for another. JAX looks at this when it starts; later it changes nothing.
        jax.config.update("jax_cpu_enable_async_dispatch", False)

    def init(self, seed: int, memory: Memory | None = None) -> Packed:
        """The state before the first step, of a new agent or of one that has learnt before."""
        return self._init(jnp.int32(seed), memory)

    def memory(self, packed: Packed) -> Memory:
        """What is worth keeping; a copy."""
        return self._remember(packed)

    def spread(self, packed: Packed) -> Spread:
        """How far draws differ for observations from the replay."""
        return self._spread(packed)

    def policy(self, agent: AgentState) -> Callable[[np.ndarray], np.ndarray]:
        """What an agent does with all randomness disabled: actions for observations, both with a
        leading axis and counted from 0 where they are categories."""
        best = self._best(agent)
        return lambda observations: np.asarray(self._chosen(best, observations))

    def save(self, path: Path, memory: Memory) -> None:
        """Write an agent to one file of plain arrays and settings, whole or not at all."""
        storage.save(path, memory, to_json(self))

    def unpacked(self, packed: Packed) -> HostState:
        """The state, to look at before the next step uses it up: nothing is copied."""
        state: HostState = self._packing.unpack([np.asarray(x) for x in packed])
        return state

    def packed(self, state: HostState) -> Packed:
        """A state as `step` takes it."""
        return self._packing.pack(state)

    def check_fits(self) -> int:
        """The bytes that the replay takes; refused if this machine does not have them."""
        replay_fits(self.replay.size, self.agent.replay_capacity)
        return self.replay.size

    def step(self, state: Packed, arrived: Arrived) -> tuple[Packed, Array]:
        """Take in what a step led to, learn, and choose actions. The old state is used up.

        If an update went wrong there are none (`refuses`), and `check` says how.
        """
        # Several programs, and no branch or loop in one: XLA optimises the body of a program more
        # than those, where it computes gradients of convolutions twenty times as slowly, and
        # copies what a branch may hand on.
        before = self._packing.number(state, lambda state: state.agent.steps)
        after = before + int(np.count_nonzero(arrived.taken))
        if self.agent.target_due(after, before):
            state = self._move(state)
        updates = self._updates(before, after, arrived)
        if updates == 0 or self._at_most_one_update:
            keeps = updates == 0 and self._keeps(before, after, arrived)
            return self._step(state, message(arrived), learns=updates > 0, keeps=keeps)
        state = self._take_in(state, message(arrived))
        for i in range(updates):
            state = self._learn_more(state, np.int32(i))
        return self._choose(state, arrived.observation)

    def refuses(self, actions: np.ndarray) -> bool:
        """Whether these stand for no action at all, because an update went wrong."""
        first = actions.item(0)
        return math.isnan(first) if self.spaces.continuous else first < 0

    def vitals(self, packed: Packed) -> Vitals:
        """How learning goes."""
        return self._vitals(packed)

    @property
    def memory_shape(self) -> Memory:
        """The shapes of what is worth keeping."""
        return Memory.of(self.shape())

    def check(self, packed: Packed) -> None:
        """Raise an error that says what went wrong in learning."""
        steps, metrics, limit, healthy = self.vitals(packed)
        if not bool(healthy):
            raise DivergedError(
                f"step {int(steps)}: learning diverged, the loss is {float(metrics.loss):g} and the"
                f" largest Q-value {float(metrics.q_max):g}, where {float(limit):g} is far more"
                " than the rewards can explain; lower learning_rate or gamma, or scale the rewards."
                " What was learnt until then is kept."
            )

    @cached_property
    def replay(self) -> Replay:
        agent = self.agent
        return replay_for(
            self.spaces,
            jax.eval_shape(self._transition),
            agent.replay_capacity,
            self.num_envs,
            agent.n_step,
            agent.gamma,
        )

    def shape(self) -> HostState:
        """The shapes of a state."""
        shape: HostState = jax.eval_shape(self.start, jnp.int32(0))
        return shape

    # A large replay is never in memory twice: it comes back into the arrays that are there.

    def put(self, packed: Packed, rows: list[np.ndarray], start: int) -> Packed:
        """Put rows of the replay back, from this number on. The old state is used up."""
        for i in range(0, len(rows[0]), CHUNK):
            part = [_filled(x[i : i + CHUNK], CHUNK) for x in rows]
            numbers = np.arange(start + i, start + i + CHUNK, dtype=np.int32)
            numbers[len(rows[0]) - i :] = -1
            packed = self._put(packed, part, numbers)
        return packed

    def rebuilt(self, packed: Packed, state: HostState) -> Packed:
        """A state without the rows of its replay, with those of another, which is used up."""
        return self._rebuilt(packed, state)

    @cached_property
    def _put(self) -> Any:
        def put(packed: Packed, rows: list[Array], numbers: Int32[Array, " rows"]) -> Packed:
            state = self._packing.unpack(packed)
            replay = self.replay.put(state.replay, rows, numbers)
            return self._packing.pack(state._replace(replay=replay))

        return jax.jit(put, donate_argnums=0)

    @cached_property
    def _rebuilt(self) -> Any:
        def rebuilt(packed: Packed, state: HostState) -> Packed:
            items = self._packing.unpack(packed).replay.items
            return self._packing.pack(state._replace(replay=state.replay._replace(items=items)))

        return jax.jit(rebuilt, donate_argnums=0)

    @cached_property
    def _packing(self) -> Packing:
        return Packing(self.shape())

    @cached_property
    def _init(self) -> Any:
        def init(seed: Int32[Array, ""], memory: Memory | None) -> Packed:
            state = self.start(seed)
            if memory is not None:
                # It may have played in another number of environments: all get a new draw.
                agent = memory.agent._replace(draw=state.agent.draw, stale=state.agent.stale)
                state = state._replace(**memory._replace(agent=agent)._asdict())
            return self._packing.pack(state)

        return jax.jit(init)

    @cached_property
    def _step(self) -> Any:
        """All of a step, with an update or without one, and without one maybe with the same draws
        as before."""

        def step(packed: Packed, message: Array, learns: bool, keeps: bool) -> tuple[Packed, Array]:
            arrived = self._read(message)
            state = self._store(self._packing.unpack(packed), arrived)
            if learns:
                state = self._update(state, state.update_keys)
            state, action = self._act(state, arrived.observation, keeps)
            return self._packing.pack(state), action

        return jax.jit(
            step,
            donate_argnums=0,
            static_argnames=("learns", "keeps"),
            compiler_options=COMPILED,
        )

    @cached_property
    def _move(self) -> Any:
        """Move the target network, before the step that makes it due."""

        def move(packed: Packed) -> Packed:
            state = self._packing.unpack(packed)
            state = state._replace(agent=self.agent.move_target(state.agent))
            return self._packing.pack(state)

        return jax.jit(move, donate_argnums=0)

    # The same in parts, where any number of updates may be due.

    @cached_property
    def _take_in(self) -> Any:
        def take_in(packed: Packed, message: Array) -> Packed:
            state = self._store(self._packing.unpack(packed), self._read(message))
            return self._packing.pack(state)

        return jax.jit(take_in, donate_argnums=0, compiler_options=COMPILED)

    @cached_property
    def _learn_more(self) -> Any:
        def learn_more(packed: Packed, i: Int32[Array, ""]) -> Packed:
            state: HostState = self._packing.unpack(packed)
            keys = UpdateKeys(*(threefry.fold_in(key, i) for key in state.update_keys))
            return self._packing.pack(self._update(state, keys))

        return jax.jit(learn_more, donate_argnums=0, compiler_options=COMPILED)

    @cached_property
    def _choose(self) -> Any:
        def choose(packed: Packed, observation: Array) -> tuple[Packed, Array]:
            state, action = self._act(self._packing.unpack(packed), observation)
            return self._packing.pack(state), action

        return jax.jit(choose, donate_argnums=0, compiler_options=COMPILED)

    @cached_property
    def _vitals(self) -> Any:
        def vitals(packed: Packed) -> Vitals:
            state = self._packing.unpack(packed)
            found = Vitals(state.agent.steps, state.metrics, self._limit(state), state.healthy)
            return _copied(found)

        return jax.jit(vitals)

    @cached_property
    def _spread(self) -> Any:
        def spread(packed: Packed) -> Spread:
            state = self._packing.unpack(packed)
            # Keys of its own, so that to look changes nothing.
            sample_key, key = threefry.split(threefry.fold_in(state.key, -1 - state.calls))
            seen = self._sample(state.replay, sample_key, LOOK).observation
            return self.agent.spread(state.agent, seen, key)

        return jax.jit(spread, compiler_options=COMPILED)

    @cached_property
    def _evaluator(self) -> Packing:
        """How an evaluator becomes a few arrays: it is made once, and then called for each step."""
        return Packing(jax.eval_shape(self.agent.evaluator, self.shape().agent))

    @cached_property
    def _best(self) -> Any:
        def best(agent: AgentState) -> list[Array]:
            return _copied(self._evaluator.pack(self.agent.evaluator(agent)))

        return jax.jit(best, compiler_options=COMPILED)

    @cached_property
    def _chosen(self) -> Any:
        def chosen(best: list[Array], observations: Array) -> Array:
            evaluator = self._evaluator.unpack(best)
            return self.spaces.chosen(jax.vmap(evaluator)(self.encode(observations)))

        return jax.jit(chosen, compiler_options=COMPILED)

    @cached_property
    def _remember(self) -> Any:
        def remember(packed: Packed) -> Memory:
            return _copied(Memory.of(self._packing.unpack(packed)))

        return jax.jit(remember)

    def _transition(self) -> Transition:
        """An example."""
        observation = jnp.zeros(self.spaces.observation_shape, self.spaces.dtype)
        reward = jnp.zeros((), jnp.float32)
        posterior = jax.eval_shape(
            partial(self.agent.init, self.spaces), jax.random.key(0)
        ).posterior
        masks = jnp.zeros(posterior.num_members, self.agent.precision)
        action, no = self.spaces.an_action(), jnp.zeros((), bool)
        return Transition(observation, action, reward, observation, no, masks)

    def start(self, seed: Int32[Array, ""]) -> HostState:
        """A new agent before the first step, as a pure function."""
        keys = run_keys(seed)
        agent = self.agent.init(self.spaces, keys.agent)

        def per_env(x: Array) -> Array:
            return jnp.broadcast_to(x, (self.num_envs, *x.shape))

        agent = agent._replace(draw=jax.tree.map(per_env, agent.draw), stale=per_env(agent.stale))
        item = self._transition()
        none = jnp.full((), jnp.nan, self.agent.precision)
        return HostState(
            key=keys.run,
            agent=agent,
            replay=self.replay.init(),
            observation=per_env(item.observation),
            action=per_env(item.action),
            masks=per_env(item.masks),
            update_keys=UpdateKeys(*threefry.split(keys.run, len(UpdateKeys._fields))),
            calls=jnp.zeros((), jnp.int32),
            largest_reward=jnp.zeros((), jnp.float32),
            metrics=Metrics(*[none] * len(Metrics._fields)),
            healthy=jnp.ones((), bool),
        )

    def _updates(self, before: int, steps: int, arrived: Arrived) -> int:
        """How many are due when this has arrived."""
        every = self.agent.update_every
        if steps < self.agent.learning_starts:
            return 0
        if every is not None:
            return steps // every - before // every
        ended = (arrived.terminated | arrived.truncated) & arrived.taken
        return int(np.count_nonzero(ended)) * self.agent.updates_per_episode

    def _keeps(self, before: int, steps: int, arrived: Arrived) -> bool:
        """Whether draws that are worth it stay as they are when this has arrived, if nothing is
        learnt: a step in which no environment was reset, and that outdates no draw."""
        if not (self._large_draws and arrived.taken.all()):
            return False
        ended = arrived.terminated | arrived.truncated
        return not np.any(self.agent.outdates(steps, before, ended, arrived.taken))

    @cached_property
    def _large_draws(self) -> bool:
        return any(x.size > LARGE for x in jax.tree.leaves(self.shape().agent.draw))

    @property
    def _at_most_one_update(self) -> bool:
        return self.num_envs == 1 and self.agent.update_every is not None

    def _read(self, message: Array) -> Arrived:
        """What an environment said."""
        seen = (self.num_envs, *self.spaces.observation_shape), jnp.dtype(self.spaces.dtype)
        reward, yes_or_no = (((self.num_envs,), jnp.dtype(x)) for x in (jnp.float32, bool))
        parts = (seen, seen, reward, *[yes_or_no] * 4)
        return Arrived(*read(message, [jax.ShapeDtypeStruct(*part) for part in parts]))

    def _store(self, state: HostState, arrived: Arrived) -> HostState:
        """Keep the last transitions."""
        _, final, reward, terminated, truncated, taken, stops = arrived
        ended = (terminated | truncated) & taken
        last = (ended if self.agent.truncation_terminates else terminated) | stops
        reward = self.agent.stored(reward)
        item = Transition(state.observation, state.action, reward, final, last, state.masks)
        return state._replace(
            replay=self.replay.add(state.replay, item, taken, ended),
            agent=self.agent.stepped(state.agent, ended, taken),
            largest_reward=jnp.maximum(state.largest_reward, jnp.max(jnp.abs(reward))),
        )

    def _update(self, state: HostState, keys: UpdateKeys) -> HostState:
        batch = self._sample(state.replay, keys.sample, self.agent.batch_size)
        agent, metrics = self.agent.update(state.agent, batch, keys.learn)
        agent = jax.lax.cond(
            agent.updates % self.agent.condition_every == 0,
            lambda: self.agent.condition(
                agent, self._sample(state.replay, keys.condition, self.agent.condition_batch)
            ),
            lambda: agent,
        )
        finite = jnp.isfinite(metrics.loss) & jnp.isfinite(metrics.gradient)
        healthy = state.healthy & finite & (metrics.q_max.astype(jnp.float32) < self._limit(state))
        return state._replace(agent=agent, metrics=metrics, healthy=healthy)

    def _limit(self, state: HostState) -> Array:
        """A thousand times the greatest value that the rewards so far can add up to."""
        horizon = 1 / max(1 - self.agent.gamma, 1e-4)
        return 1e3 * horizon * jnp.maximum(state.largest_reward, 1.0)

    def _act(
        self, state: HostState, observation: Array, keeps: bool = False
    ) -> tuple[HostState, Array]:
        # A block has as many steps as an update takes, as in the compiled loop. A vector takes
        # several steps in a call and may learn in each: there a call is a block.
        steps = (self.agent.update_every or 1) if self.num_envs == 1 else 1
        step_keys, update_keys = block_keys(state.key, state.calls // steps, steps, 1)
        keys = StepKeys(*(self._per_env(key) for key in step_keys[state.calls % steps]))
        axes = _axes(state.agent)
        agent = state.agent
        if not keeps:
            agent = jax.lax.cond(
                jnp.any(agent.stale),
                jax.vmap(self.agent.refresh, in_axes=(axes, 0), out_axes=axes),
                lambda agent, _: agent,
                agent,
                keys.refresh,
            )
        act = jax.vmap(self.agent.act, in_axes=(axes, 0, 0))
        action = act(agent, self.encode(observation), keys.act)
        state = state._replace(
            agent=agent,
            observation=observation,
            action=action,
            masks=jax.vmap(lambda key: agent.posterior.masks(key, 1)[:, 0])(keys.mask),
            update_keys=UpdateKeys(*update_keys[0]),
            calls=state.calls + 1,
        )
        # An answer that costs no second transfer (see `refuses`).
        none = jnp.full_like(action, jnp.nan if self.spaces.continuous else -1)
        return state, jnp.where(state.healthy, action, none)

    def _per_env(self, key: Key) -> Shaped[Array, " envs"]:
        return key[None] if self.num_envs == 1 else threefry.split(key, self.num_envs)

    def _sample(self, replay: ReplayState, key: Key, count: int) -> Transition:
        # A branch that is always taken, as XLA does not know. Otherwise it would fuse what was just
        # written with what is read here, and copy the whole replay for it.
        sample = partial(self.replay.sample, replay, key, count)
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(sample))
        items: Transition = jax.lax.cond(jnp.all(replay.written >= 0), sample, lambda: nothing)
        return items._replace(
            observation=self.encode(items.observation),
            next_observation=self.encode(items.next_observation),
        )

    def encode(self, observation: Array) -> PyTree:
        """Observations as a network takes them."""
        if self.spaces.categories is not None:
            return OneHot(observation, self.spaces.categories)
        return observation


def _axes(agent: AgentState) -> AgentState:
    """Which parts of an agent's state are held per environment, as `jax.vmap` wants to know it."""
    nothing = agent._replace(**dict.fromkeys(agent._fields))
    return nothing._replace(draw=0, stale=0)


def _filled(rows: np.ndarray, count: int) -> np.ndarray:
    """Rows with zeros after them, so that there are so many."""
    filled = np.zeros((count, *rows.shape[1:]), rows.dtype)
    filled[: len(rows)] = rows
    return filled


def _copied(tree: PyTree) -> PyTree:
    """Never an array that the next step uses up: a program may hand on its input as it is."""
    return jax.tree.map(lambda x: x.copy(), tree)
