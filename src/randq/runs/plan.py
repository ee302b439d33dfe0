"""What a run is to do, in full: the settings that `randq train` resolves, keeps and takes back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from randq.agents import Agent
from randq.config import one_of, require, whole, within
from randq.envs import ENVIRONMENTS, Environment
from randq.envs.gym import find
from randq.envs.gym.stepper import Stepper
from randq.loops.compiled import Compiled
from randq.loops.host import Host
from randq.presets import AGENTS, domain, preset
from randq.settings import from_json, to_json

MAX_SEEDS = 100_000
EPISODES = 2000
"""The budget where none is given."""


@dataclass(frozen=True)
class CompiledPlan:
    """Some seeds of an agent in an environment of this package, all at once."""

    name: str
    """The agent's name."""
    agent: Agent
    """Settings of the agent."""
    env: Environment[Any, Any]
    """Settings of the environment."""
    seeds: int = 10
    """How many seeds."""
    seed: int = 0
    """The first seed."""
    episodes: int | None = None
    """Budget in episodes (2000 if neither budget is given)."""
    steps: int | None = None
    """Budget in steps of the environment."""
    evaluate_every: int = 1
    """Episodes between evaluations."""
    checkpoint_every: float = 60.0
    """Seconds between checkpoints; 0: whenever there can be one."""
    tensorboard: bool = False
    """Also write TensorBoard events."""
    wandb: bool = False
    """Also log to Weights & Biases."""

    def __post_init__(self) -> None:
        _check(self)
        both = self.episodes is not None and self.steps is not None
        require(not both, "steps", self.steps, "a budget only if --episodes is not given")
        for setting in ("episodes", "steps"):
            if getattr(self, setting) is not None:
                whole(setting, getattr(self, setting), at_least=1)
        whole("evaluate_every", self.evaluate_every, at_least=1)
        one_of("name", self.name, AGENTS)
        Compiled(self.agent, self.env)
        assert self.env.max_steps is not None
        _learns(self.agent, self.steps or (self.episodes or EPISODES) * self.env.max_steps)

    @property
    def env_name(self) -> str:
        return next(name for name, cls in ENVIRONMENTS.items() if cls is type(self.env))

    def check_fits(self) -> int:
        """The bytes that its replays take; refused if this machine cannot hold them."""
        return Compiled(self.agent, self.env).check_fits(self.seeds)

    @property
    def resolved(self) -> "CompiledPlan":
        """With the budget that it has."""
        given = self.episodes is not None or self.steps is not None
        return self if given else replace(self, episodes=EPISODES)


@dataclass(frozen=True)
class GymPlan:
    """Some seeds of an agent in an environment of Gymnasium, one after another."""

    name: str
    """The agent's name."""
    agent: Agent
    """Settings of the agent."""
    env: str
    """Id of the environment."""
    env_kwargs: str = "{}"
    """What the environment is made with, as a JSON object."""
    seeds: int = 1
    """How many seeds."""
    seed: int = 0
    """The first seed."""
    steps: int = 100_000
    """Steps of the environment for each seed."""
    evaluate_every: int | None = None
    """Steps between evaluations; None for a tenth of the budget."""
    evaluation_episodes: int = 10
    """Episodes of an evaluation, which has all randomness of the agent disabled."""
    log_every: int = 1000
    """Steps between records of metrics."""
    checkpoint_every: float = 60.0
    """Seconds between checkpoints; 0: at every step."""
    tensorboard: bool = False
    """Also write TensorBoard events."""
    wandb: bool = False
    """Also log to Weights & Biases."""

    def __post_init__(self) -> None:
        _check(self)
        for setting in ("steps", "evaluation_episodes", "log_every"):
            whole(setting, getattr(self, setting), at_least=1)
        if self.evaluate_every is not None:
            whole("evaluate_every", self.evaluate_every, at_least=1)
        _ = self.kwargs
        one_of("name", self.name, AGENTS)
        _learns(self.agent, self.steps)

    @property
    def kwargs(self) -> dict[str, Any]:
        return json_object("env_kwargs", self.env_kwargs)

    @property
    def env_name(self) -> str:
        return self.env

    def check_fits(self) -> int:
        """The bytes that its replay takes; refused if this machine cannot hold them, or the agent
        cannot play the environment."""
        env = self.make_env()
        try:
            return Host(self.agent, Stepper(env).spaces).check_fits()
        finally:
            env.close()

    @property
    def resolved(self) -> "GymPlan":
        """With the evaluations that it makes."""
        every = self.evaluate_every or max(1, self.steps // 10)
        return replace(self, evaluate_every=every)

    def make_env(self) -> Any:
        return find(self.env, **self.kwargs)


Plan = CompiledPlan | GymPlan


def _check(plan: Plan) -> None:
    whole("seeds", plan.seeds, at_least=1)
    require(plan.seeds <= MAX_SEEDS, "seeds", plan.seeds, f"at most {MAX_SEEDS}")
    whole("seed", plan.seed, at_least=0)
    last = plan.seed + plan.seeds - 1
    require(last < 2**31, "seed", plan.seed, "seeds below 2**31")
    within("checkpoint_every", plan.checkpoint_every, 0.0, 1e9)


def _learns(agent: Agent, steps: int) -> None:
    """Refuse a run that would end before the agent learns anything."""
    takes = f"fewer than the {steps} steps that the run has"
    require(agent.learning_starts < steps, "agent.learning_starts", agent.learning_starts, takes)


def json_object(setting: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    require(isinstance(value, dict), setting, text, 'a JSON object such as {"render_mode": null}')
    return dict(value)


def default_plan(name: str, env: str, env_kwargs: str = "{}") -> Plan:
    """An agent in an environment, ours or Gymnasium's, with all settings as they come."""
    one_of("agent", name, AGENTS)
    settings = preset(name, find_domain(env, env_kwargs))
    if env in ENVIRONMENTS:
        return CompiledPlan(name, settings, ENVIRONMENTS[env]())
    return GymPlan(name, settings, env, env_kwargs)


def find_domain(env: str, env_kwargs: str = "{}") -> str:
    """Which settings suit an environment, ours or Gymnasium's; it may have to be made."""
    if env in ENVIRONMENTS:
        return env
    made = find(env, **json_object("env_kwargs", env_kwargs))
    try:
        return domain(env, Stepper(made).spaces)
    finally:
        made.close()


def read_plan(data: Mapping[str, Any], trust: bool = False) -> Plan:
    """The plan that the data of a settings file stand for, or a line for each problem.

    What the file leaves out is as it comes. An id such as `module:Env-v0` makes Gymnasium import a
    module, which is code of somebody's choice: it takes `trust`.
    """
    name, env = data.get("name"), data.get("env", "nchain")
    known = name if isinstance(name, str) and name in AGENTS else "mnf-dqn"
    problems: list[str] = []
    if isinstance(env, str) and env not in ENVIRONMENTS:
        kind: type[Plan] = GymPlan
        begin: Plan = GymPlan(known, AGENTS[known], env)
        try:
            takes = "an id without a module to import, or --trust if you trust that module"
            require(trust or ":" not in env, "env", env, takes)
            kwargs = data.get("env_kwargs", "{}")
            begin = default_plan(known, env, kwargs if isinstance(kwargs, str) else "{}")
        except ValueError as error:
            problems.append(str(error))
    else:
        kind = CompiledPlan
        which = env.get("kind") if isinstance(env, dict) else env
        begin = default_plan(known, which if which in ENVIRONMENTS else "nchain")
        data = {**data, "env": env if isinstance(env, dict) else {"kind": env}}
    try:
        # Not the default name: a file must say which agent it is for.
        plan: Plan = from_json(kind, {"name": name, **_merged(to_json(begin), data)})
    except ValueError as error:
        problems += [line for line in str(error).splitlines() if line not in problems]
    if problems:
        raise ValueError("\n".join(problems))
    return plan


def _merged(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The base with what the data say; of a record of another kind nothing is left."""
    merged = dict(base)
    for key, value in data.items():
        before = base.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            same = value.get("kind", before.get("kind")) == before.get("kind")
            value = _merged(before, value) if same else value
        merged[key] = value
    if "name" not in data:
        merged.pop("name", None)
    return merged
