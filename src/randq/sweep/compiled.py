"""The job of the compiled loop: some seeds of an agent in an environment of this package."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np

from randq.agents import Agent, AgentState
from randq.config import field_names, one_of, override, require, tuples, whole
from randq.envs import ENVIRONMENTS, Environment
from randq.evaluation import rollout
from randq.loops.compiled import OFTEN, Compiled, RunState
from randq.presets import preset
from randq.runs.train import train
from randq.sweep.jobs import Found, Job, Result, Watch
from randq.types import Array, Key, PyTree

Kind = Literal["train", "untrained"]


@dataclasses.dataclass(frozen=True)
class CompiledJob(Job):
    """One agent in one environment with some seeds. It is checked when it is made."""

    agent: str
    """Name of a preset."""
    env: str
    """Name of an environment."""
    seeds: tuple[int, ...]
    env_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the agent that differ from its preset, by dotted name."""
    episodes: int = 0
    """Budget of a training run."""
    kind: Kind = "train"
    """Train, or ask of untrained networks whether their evaluation is optimal already."""
    evaluate_every: int = 1
    """Episodes between evaluations."""
    curves: bool = False
    """Train to the end of the budget, and keep every episode's return and every evaluation."""
    batch: int = 10
    """Untrained networks made at once: best as many as a training run has seeds, because then
    the program that makes them has been compiled for that."""

    def __post_init__(self) -> None:
        one_of("kind", self.kind, get_args(Kind))
        whole("seeds", len(self.seeds), at_least=1)
        for seed in self.seeds:
            whole("seeds", seed, at_least=0)
            require(seed < 2**31, "seeds", seed, "integers below 2**31")
        whole("batch", self.batch, at_least=1)
        whole("evaluate_every", self.evaluate_every, at_least=1)
        whole("episodes", self.episodes, at_least=1 if self.kind == "train" else 0)
        _ = self.settings

    @property
    def resolved(self) -> tuple[Agent, Environment[Any, Any]]:
        """The agent and the environment behind the names."""
        one_of("env", self.env, ENVIRONMENTS)
        settings = {name: tuples(value) for name, value in self.env_settings.items()}
        cls = ENVIRONMENTS[self.env]
        for name in settings:
            one_of(f"{self.env} setting", name, field_names(cls))
        return override(preset(self.agent, self.env), self.overrides), cls(**settings)

    @property
    def agent_settings(self) -> Agent:
        return self.resolved[0]

    @property
    def settings(self) -> str:
        agent, env = self.resolved
        return f"{agent} in {env}"

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "seeds": list(self.seeds)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "seeds": tuple(data["seeds"])})

    def __str__(self) -> str:
        changed = {**self.env_settings, **self.overrides}
        words = [self.agent, self.env, *(f"{name}={value}" for name, value in changed.items())]
        words.append(f"{self.kind} seeds {self.seeds[0]}..{self.seeds[-1]}")
        return " ".join(words)

    def check(self, folder: Path) -> None:
        """It was checked when it was made."""

    def found(self, folder: Path) -> Found | None:
        """It keeps nothing but its result."""
        return None

    def perform(self, folder: Path, watch: Watch = lambda share, note: None) -> Result:
        agent, env = self.resolved
        if self.kind == "untrained":
            optimal = untrained_optimal(agent, env, self.seeds, self.batch)
            return {"optimal": int(np.sum(optimal)), "networks": len(optimal)}
        outcome = train(
            agent,
            env,
            self.seeds,
            episodes=self.episodes,
            evaluate_every=self.evaluate_every,
            until_solved=not self.curves,
        )
        result = outcome.as_json(self.agent, self.env)
        if self.curves:
            rows = zip(outcome.first_good, outcome.returns, outcome.evaluations, strict=True)
            for row, (first, returns, evaluations) in zip(result["seeds"], rows, strict=True):
                row |= {
                    "first_good": first,
                    "returns": [round(value, 4) for value in returns],
                    "evaluations": [[episode, round(value, 4)] for episode, value in evaluations],
                }
        return result


def untrained_optimal(
    agent: Agent, env: Environment[Any, Any], seeds: Sequence[int], batch: int
) -> np.ndarray:
    """For each seed, whether the network that training would begin with is optimal already."""
    program = Compiled(agent, env)
    optimum = env.optimal_return(env.world(jax.random.key(0)))
    require(optimum is not None, "env", env, "one whose best return is known")

    def evaluate(state: RunState) -> Array:
        def one(agent_state: AgentState, world: PyTree, key: Key) -> Array:
            return rollout(env, world, agent.evaluator(agent_state), key).good

        return jax.vmap(one)(state.agent, state.world, state.key)

    good = jax.jit(evaluate, compiler_options=OFTEN)
    padded = [*seeds, *(seeds[-1],) * (-len(seeds) % batch)]
    optimal = []
    for start in range(0, len(padded), batch):
        state = program.init(jnp.asarray(padded[start : start + batch], jnp.int32))
        optimal.append(np.asarray(good(state)))
    return np.concatenate(optimal)[: len(seeds)]
