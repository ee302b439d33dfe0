"""Agents for Gymnasium environments, in the shape that Stable-Baselines3 made familiar.

agent = randq.make("mnf-dqn", "MountainCar-v0").learn(50_000)
action, _ = agent.predict(observation)
agent.uncertainty(observation)
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from randq import agents, storage
from randq.config import require, whole
from randq.envs.gym import find
from randq.envs.gym.stepper import Arrived, GymEnv, Stepper
from randq.loops.host import Host, Memory
from randq.loops.session import Evaluation, Played, Session, play
from randq.presets import domain, preset
from randq.runs.directory import AGENT
from randq.runs.interrupts import interrupts
from randq.settings import change, from_json
from randq.types import Array, Key, PyTree, Shaped, Spaces


class Progress(NamedTuple):
    """What a callback sees after each step of the environment."""

    steps: int
    total_timesteps: int
    episodes: tuple[Played, ...]
    """The last hundred episodes."""
    arrived: Arrived
    """What the step led to."""

    @property
    def mean_return(self) -> float:
        """Over the last hundred episodes; NaN before the first has ended."""
        returns = [played.episode_return for played in self.episodes]
        return float(np.mean(returns)) if returns else float("nan")


Seed = int | np.integer[Any] | Key
"""What randomness begins with."""

Acts = Callable[[Any], np.ndarray | np.integer[Any]]
"""The action for one observation, or for each of a batch."""

Callback = Callable[["Agent", Progress], bool | None]
"""Called after each step; what it returns stops training if it is `False`."""


class Uncertainty(NamedTuple):
    """How sure an agent is of an observation's values; for a batch, with a leading axis."""

    mean: np.ndarray
    """Mean of the draws' Q-values, for each action."""
    std: np.ndarray
    """Their standard deviation, for each action."""
    disagreement: np.ndarray
    """Share of the draws whose best action is not the most frequent one; NaN where actions are
    numbers."""


@dataclass(frozen=True)
class Policy:
    """One frozen draw of the posterior: always the same network, whatever is learnt since."""

    agent: "Agent"
    draw: PyTree
    state: agents.AgentState
    """The agent as it was: where actions are numbers, its actor is that of all draws."""

    def q_values(self, observation: Any, action: Any = None) -> np.ndarray:
        """Its Q-values for one observation, or for each of a batch."""
        return self.agent.network(self.draw, observation, action, self.state)

    def __call__(self, observation: Any) -> Any:
        """Its best action for one observation, or for each of a batch.

        Where actions are numbers that is the actor's, which is the same for all draws.
        """
        if self.agent.spaces.continuous:
            return self._actor(observation)
        return self.agent.best(self.q_values(observation))

    @cached_property
    def _actor(self) -> "Acts":
        return self.agent.acts(self.state)


class Agent:
    """An agent that learns in a Gymnasium environment; `randq.make` and `randq.load` make one."""

    def __init__(self, settings: agents.Agent, spaces: Spaces) -> None:
        self.settings = settings
        """All settings, resolved."""
        self.spaces = spaces
        """What it knows of environments that it can play in."""
        self.steps = 0
        """Steps that it has learnt from."""
        self.episodes: list[Played] = []
        """Every episode of training."""
        self._host = Host(settings, spaces)
        self._session: Session | None = None
        """None until it gets an environment."""
        self._memory: Memory | None = None
        """What is worth keeping of the state; None where that must be asked for anew."""
        self._policy: tuple[Memory, Acts] | None = None
        """What it does without randomness, and which memory that is made of."""

    # Learning

    def set_env(self, env: GymEnv | str, seed: int | None = None) -> "Agent":
        """Give it an environment to learn in, which must have the spaces that it was made for."""
        stepper = Stepper(find(env) if isinstance(env, str) else env)
        require(
            stepper.spaces == self.spaces,
            "env",
            f"{stepper.observation_space} and {stepper.action_space}",
            f"the spaces that the agent was made for ({self.spaces})",
        )
        known = None if self._session is None and self._memory is None else self._now
        host = Host(self.settings, self.spaces, stepper.num_envs)
        host.check_fits()
        self._host, self._session = host, Session(host, stepper, seed, known)
        self._memory = None
        return self

    def learn(
        self, total_timesteps: int, progress_bar: bool = True, callback: Callback | None = None
    ) -> "Agent":
        """Take so many further steps in the environment, and learn from them.

        Can be called again to go on. Ctrl-C stops after a step, and keeps what was learnt.
        """
        whole("total_timesteps", total_timesteps, at_least=1)
        takes = "an agent that has one: randq.load(path, env), or agent.set_env(env)"
        require(self._session is not None, "env", None, takes)
        assert self._session is not None
        done = 0
        with ExitStack() as stack:
            interrupted = stack.enter_context(interrupts(signal.SIGINT))
            show = stack.enter_context(_bar(total_timesteps)) if progress_bar else None
            while done < total_timesteps:
                self._memory = None
                taken, ended = self._session.advance()
                self.steps += taken
                self.episodes += [
                    Played(self.steps, each.episode_return, each.length) for each in ended
                ]
                done += taken
                if show is not None:
                    show(done, self)
                if callback is not None:
                    last = tuple(self.episodes[-100:])
                    progress = Progress(done, total_timesteps, last, self._session.arrived)
                    if callback(self, progress) is False:
                        break
                if interrupted():
                    raise KeyboardInterrupt
        return self

    # Acting

    def predict(
        self, observation: Any, deterministic: bool = True
    ) -> tuple[np.ndarray | np.integer[Any], None]:
        """The action for one observation, or for each of a batch; and None, for recurrent agents.

        Deterministic: that of the posterior's mean (of the majority, for an ensemble). Otherwise
        that of the draw which the agent holds to explore with.
        """
        if deterministic:
            if self._policy is None or self._policy[0] is not self._now:
                self._policy = self._now, self.acts(self._now.agent)
            return self._policy[1](observation), None
        return self.best(self._on(observation, self._programs.held, self._now)), None

    def acts(self, state: agents.AgentState) -> "Acts":
        """What it does in this state with all randomness disabled, as a function."""
        program = self._host.policy(state)

        def act(observation: Any) -> np.ndarray | np.integer[Any]:
            xs, batched = self._checked(observation)
            actions = program(xs)
            if self.spaces.continuous:
                actions = self._shaped(actions)
            else:
                actions = actions.astype(np.int64) + self.spaces.first_action
            found: np.ndarray | np.integer[Any] = actions if batched else actions[0]
            return found

        return act

    def q_values(self, observation: Any, action: Any = None) -> np.ndarray:
        """Q-values of the posterior's mean, for one observation or for each of a batch.

        Where actions are numbers, that of the action given, or else of the actor's.
        """
        return self._values(observation, action, self._programs.mean, self._now.agent)

    def q_samples(
        self, observation: Any, n: int = 100, key: Seed = 0, action: Any = None
    ) -> np.ndarray:
        """Q-values of n draws: an axis of draws before those of `q_values`."""
        whole("n", n, at_least=1)
        keys = jax.random.split(_key(key), n)
        return self._values(observation, action, self._programs.samples, self._now.agent, keys)

    def uncertainty(
        self, observation: Any, n: int = 100, key: Seed = 0, action: Any = None
    ) -> Uncertainty:
        """How far n draws differ, for one observation or for each of a batch."""
        samples = self.q_samples(observation, n, key, action)
        best = np.argmax(samples, axis=-1)
        votes = np.stack([np.mean(best == a, axis=0) for a in range(samples.shape[-1])])
        disagreement = 1 - votes.max(axis=0)
        if self.spaces.continuous:
            disagreement = np.full_like(disagreement, np.nan)
        return Uncertainty(samples.mean(axis=0), samples.std(axis=0), disagreement)

    def sample(self, key: Seed) -> Policy:
        """One draw of the posterior, as a policy that stays as it is."""
        draw = self._programs.draw(self._now.agent.posterior, _key(key))
        # A program may hand on its input; learning would then use up what the policy holds.
        copied = jax.tree.map(lambda x: jnp.array(x, copy=True), draw)
        return Policy(self, copied, self._now.agent)

    def network(
        self, draw: PyTree, observation: Any, action: Any, state: agents.AgentState
    ) -> np.ndarray:
        """What a network of fixed weights makes of one observation, or of each of a batch, for the
        agent in this state."""
        return self._values(observation, action, self._programs.network, state, draw)

    def best(self, output: np.ndarray) -> np.ndarray | np.integer[Any]:
        """The actions that outputs stand for, as the environment has them."""
        if self.spaces.continuous:
            return self._shaped(output)
        best: np.ndarray | np.integer[Any] = np.argmax(output, axis=-1) + self.spaces.first_action
        return best

    def _shaped(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers in the shape that the environment's actions have."""
        return numbers.reshape(*numbers.shape[:-1], *self._action_shape)

    @property
    def _action_shape(self) -> tuple[int, ...]:
        return self.spaces.action_shape or (self.spaces.num_actions,)

    def _values(self, observation: Any, action: Any, program: Any, *arguments: Any) -> np.ndarray:
        """Q-values of observations, with actions where those are numbers."""
        if action is None:
            return self._on(observation, program, None, *arguments)
        takes = "None where actions are to choose from"
        require(self.spaces.continuous, "action", action, takes)
        xs, size = np.asarray(observation), self.spaces.num_actions
        batch = xs.shape[: xs.ndim - len(self.spaces.observation_shape)]
        shape = (*batch, *self._action_shape)
        actions = np.asarray(action)
        fits = actions.shape == shape and actions.dtype.kind in "fiub"
        require(fits and bool(np.isfinite(actions).all()), "action", action, f"shape {shape}")
        given = jnp.asarray(actions.reshape(-1, size), jnp.float32)
        return self._on(observation, program, given, *arguments)

    def _on(self, observation: Any, program: Any, *arguments: Any) -> np.ndarray:
        """Call a program with observations that are checked and have a batch axis."""
        xs, batched = self._checked(observation)
        values = np.asarray(program(*arguments, self._host.encode(jnp.asarray(xs))))
        return values if batched else values[..., 0, :]

    def _checked(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations with a batch axis, and whether they had one."""
        shape = self.spaces.observation_shape
        takes = f"shape {shape}, or {('batch', *shape)} for a batch, as the environment has it"
        try:
            xs = np.asarray(observation)
        except ValueError:  # such as what `reset` returns, which is an observation and more
            require(False, "observation", observation, takes)
        batched = xs.ndim == len(shape) + 1
        fits = xs.shape[int(batched) :] == shape and xs.ndim - batched == len(shape)
        got = xs.shape if xs.dtype.kind in "fiub" else observation
        require(fits and xs.dtype.kind in "fiub", "observation", got, takes)
        if xs.dtype.kind == "f":
            with np.errstate(over="ignore"):
                finite = bool(np.isfinite(xs.astype(np.float32)).all())
            require(finite, "observation", observation, "finite numbers of single precision")
        if self.spaces.categories is not None:
            xs = xs - self.spaces.first_category
            known = bool(np.all((xs >= 0) & (xs < self.spaces.categories)))
            require(known, "observation", observation, f"one of {self.spaces.categories} numbers")
        return (xs if batched else xs[None]).astype(self.spaces.dtype), batched

    @cached_property
    def _programs(self) -> "_Programs":
        return _Programs(self.settings)

    @property
    def _now(self) -> Memory:
        if self._memory is None:
            assert self._session is not None
            self._memory = self._host.memory(self._session.state)
        return self._memory

    # Keeping

    def save(self, path: str | Path) -> None:
        """Write it to one file of plain arrays and settings, whole or not at all."""
        self._host.save(Path(path), self._now)


class _Programs:
    """What is asked of a posterior, compiled."""

    def __init__(self, settings: agents.Agent) -> None:
        over_batch = jax.vmap

        def values(network: Any, actions: Any, state: Any, xs: Any) -> Array:
            over = (0, None if actions is None else 0)
            query = over_batch(partial(settings.query, state), in_axes=over)
            return over_batch(network)(query(xs, actions))

        def mean(actions: Any, state: Any, xs: Any) -> Array:
            return values(state.posterior.mean(), actions, state, xs)

        def samples(actions: Any, state: Any, keys: Shaped[Array, " n"], xs: Any) -> Array:
            def one(key: Key) -> Array:
                return values(state.posterior.sample(key).network, actions, state, xs)

            return jax.lax.map(one, keys)

        def network(actions: Any, state: Any, draw: Any, xs: Any) -> Array:
            return values(draw, actions, state, xs)

        def held(memory: Memory, xs: Any) -> Array:
            return over_batch(memory.held(settings))(xs)

        self.held = jax.jit(held)
        self.mean = jax.jit(mean)
        self.samples = jax.jit(samples)
        self.network = jax.jit(network)
        self.draw = jax.jit(lambda posterior, key: posterior.sample(key).network)


def make(
    name: str, env: GymEnv | str, *, seed: int | np.integer[Any] = 0, **settings: Any
) -> Agent:
    """An agent by the name of its preset, for an environment or the name of one.

    Settings are those of `DQN` or `DDPG`; one inside another is given by its dotted name:
    `make("mnf-dqn", env, **{"posterior.flow_steps": 2})`.
    """
    seed = int(seed) if isinstance(seed, np.integer) else seed
    whole("seed", seed, at_least=0)
    require(seed < 2**31, "seed", seed, "an integer below 2**31")
    made = find(env) if isinstance(env, str) else env
    stepper = Stepper(made)
    agent = change(preset(name, domain(stepper.env_id, stepper.spaces)), settings)
    return Agent(agent, stepper.spaces).set_env(made, seed)


def load(path: str | Path, env: GymEnv | str | None = None) -> Agent:
    """An agent that was saved; with an environment, it can learn on (with an empty replay).

    The path is that of its file, or of the folder of a run.
    """
    path = Path(path)
    path = path / AGENT if path.is_dir() else path
    header = storage.read_header(path)
    if not {"agent", "spaces"} & set(header):
        holds = ", ".join(header) or "nothing"
        raise storage.StorageError(f"{path}: not a saved agent, but a file with {holds}")
    try:
        host = from_json(Host, header)
        like = host.memory_shape
    except ValueError as error:
        made = storage.made_by(path)
        raise storage.StorageError(f"{path}: not an agent of this randq ({error}){made}") from error
    agent = Agent(host.agent, host.spaces)
    agent._host, agent._memory = host, storage.load(path, like)
    agent.steps = int(agent._now.agent.steps)
    return agent if env is None else agent.set_env(env)


def evaluate(
    agent: Agent | Policy, env: GymEnv | str, episodes: int = 10, seed: int = 0
) -> Evaluation:
    """Play episodes with all randomness of the agent disabled, or with one draw of it.

    Give it an environment of its own: the agent's would lose the episode that it is in.
    """
    whole("episodes", episodes, at_least=1)
    stepper = Stepper(find(env) if isinstance(env, str) else env)
    spaces = (agent.agent if isinstance(agent, Policy) else agent).spaces
    same = _playable(stepper.spaces) == _playable(spaces)
    got = f"{stepper.observation_space} and {stepper.action_space}"
    require(same, "env", got, f"the spaces that the agent was made for ({spaces})")
    act = agent if isinstance(agent, Policy) else lambda xs: agent.predict(xs)[0]
    return play(stepper, act, episodes, seed)


def _playable(spaces: Spaces) -> Spaces:
    """What must be the same to play somewhere else: all but the bounds of observations."""
    return replace(spaces, low=None, high=None, stack=0)


def _key(key: Seed) -> Key:
    if isinstance(key, jax.Array):
        return key
    takes = "a whole number from 0 to 2**31 - 1, or a key of jax.random.key"
    number = isinstance(key, int | np.integer) and not isinstance(key, bool)
    require(number and 0 <= int(key) < 2**31, "key", key, takes)
    return jax.random.key(int(key))


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int, Agent], None]]:
    """A progress bar, redrawn a few times a second."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Bar(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("compiling", total=total)
        start, shown = time.perf_counter(), 0.0

        def show(done: int, agent: Agent) -> None:
            nonlocal shown
            now = time.perf_counter()
            if now - shown > 0.2 or done >= total:
                shown = now
                last = [played.episode_return for played in agent.episodes[-100:]]
                mean = f", mean return {np.mean(last):.1f}" if last else ""
                words = f"{len(agent.episodes)} episodes{mean}, {done / (now - start):,.0f} steps/s"
                bar.update(task, completed=done, description=words)

        yield show
