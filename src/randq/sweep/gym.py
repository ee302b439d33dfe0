"""The job of the host loop: one seed of an agent in an environment of Gymnasium, kept as a run.

It is performed in a run's folder, `<folder>/runs/<agent>/<env>/seed-<k>`, with the settings that
differ from the preset before the agent: `<folder>/runs/alpha=0.001/<agent>/...`. So whoever kills
a sweep finds it at the last checkpoint of each of its runs; and a run that `randq train` has made,
with `--out <folder>/runs`, is gone on with, or read if it is finished.
"""

import csv
import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from randq.agents import Agent
from randq.config import one_of, override, require, whole
from randq.envs.gym.atari import describe
from randq.presets import AGENTS
from randq.runs.directory import EPISODES, EVALUATIONS, RESULT, SETTINGS, RunDirectory
from randq.runs.execute import Progress, begin, carry_out, directories_of, go_on, groups
from randq.runs.plan import GymPlan, default_plan
from randq.settings import to_json
from randq.sweep.jobs import Found, Job, Result, Watch

ROWS = 1000
"""Training returns in a result, at most."""
FREE = ("seeds", "checkpoint_every", "tensorboard", "wandb")
"""Settings of a run that change nothing of what comes of one seed."""


@dataclasses.dataclass(frozen=True)
class GymJob(Job):
    """One agent in one environment of Gymnasium with one seed."""

    agent: str
    """Name of a preset."""
    env: str
    """Id of the environment."""
    seed: int
    steps: int
    evaluate_every: int
    """Steps between evaluations."""
    evaluation_episodes: int
    env_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the environment is made with."""
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the agent that differ from its preset, by dotted name."""
    log_every: int = 10_000
    """Steps between records of metrics."""
    kind: Literal["gym"] = "gym"

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ["gym"])
        one_of("agent", self.agent, AGENTS)
        whole("seed", self.seed, at_least=0)
        require(self.seed < 2**31, "seed", self.seed, "an integer below 2**31")
        for setting in ("steps", "evaluate_every", "evaluation_episodes", "log_every"):
            whole(setting, getattr(self, setting), at_least=1)
        override(AGENTS[self.agent], self.overrides)

    @property
    def plan(self) -> GymPlan:
        """What the run is to do. It takes the environment, which may not be installed."""
        preset = _preset_plan(self.agent, self.env, json.dumps(self.env_settings))
        return dataclasses.replace(
            preset,
            agent=override(preset.agent, self.overrides),
            seed=self.seed,
            steps=self.steps,
            evaluate_every=self.evaluate_every,
            evaluation_episodes=self.evaluation_episodes,
            log_every=self.log_every,
        )

    @property
    def agent_settings(self) -> Agent:
        return self.plan.agent

    @property
    def settings(self) -> str:
        return json.dumps(to_json(self.plan))

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)

    def __str__(self) -> str:
        changed = {**self.env_settings, **self.overrides}
        words = [self.agent, self.env, *(f"{name}={value}" for name, value in changed.items())]
        return " ".join([*words, f"seed {self.seed}"])

    # Where it is

    def directory(self, folder: Path) -> RunDirectory:
        """Its run, which may not be there yet."""
        (directory,) = directories_of(self.plan, self._experiment(folder))
        return directory

    def _experiment(self, folder: Path) -> Path:
        changed = ",".join(f"{name}={value}" for name, value in self.overrides.items())
        return folder / "runs" / re.sub(r"[^\w.,=+-]+", "-", changed)

    def check(self, folder: Path) -> None:
        """Refuse an environment that is not there, and a run with other settings in its place."""
        directory = self.directory(folder)
        if not directory.exists:
            return
        wanted = _flat(to_json(self.plan))
        got = {**_flat(directory.read_json(SETTINGS)), "seed": directory.seed}
        # A setting that the run does not know is newer than the run, which had it as it comes.
        names = [n for n in got if n not in FREE and (n not in wanted or got[n] != wanted[n])]
        if names:
            found = f"{directory.path}, a run whose {names[0]} is {got[names[0]]}"
            other = wanted.get(names[0], "something else")
            takes = f"a folder where it is {other}, or where this run is not yet"
            require(False, "out", found, takes)

    @property
    def replay_size(self) -> int:
        return _replay_size(dataclasses.replace(self.plan, seed=0))

    @property
    def notes(self) -> tuple[str, ...]:
        protocol = describe(self.env)
        return () if protocol is None else (protocol,)

    # What comes of it

    def perform(self, folder: Path, watch: Watch = lambda share, note: None) -> Result:
        self.check(folder)
        directory = self.directory(folder)
        if (directory.path / RESULT).exists():
            return self._read(directory)
        self.plan.check_fits()
        if not directory.exists:
            group = begin(self.plan, self._experiment(folder), f"a sweep: {self}")
        else:
            (group,) = groups(directory.path)
            go_on(group)

        def show(at: Progress) -> None:
            watch(at.done / at.budget, at.note)

        carry_out(group, show, lambda sentence: print(sentence, file=sys.stderr))
        return self._read(directory)

    def found(self, folder: Path) -> Found | None:
        self.check(folder)
        directory = self.directory(folder)
        if not directory.exists:
            return None
        return Found(self._read(directory), (directory.path / RESULT).exists())

    def _read(self, directory: RunDirectory) -> Result:
        """What the run's logs say, however far they are."""
        finished = (directory.path / RESULT).exists()
        end = directory.read_json(RESULT) if finished else {}
        records = map(json.loads, _lines(directory.path / EVALUATIONS))
        evaluations = [(record["step"], record["eval/mean_reward"]) for record in records]
        rows = csv.DictReader(_lines(directory.path / EPISODES))
        episodes = [(int(row["step"]), float(row["return"])) for row in rows]
        reached = [step for step, _ in (*evaluations[-1:], *episodes[-1:])]
        return {
            "seed": self.seed,
            "steps": end.get("steps", max(reached, default=0)),
            "final_return": end.get("final_return"),
            "evaluations": [list(row) for row in evaluations],
            "episodes": _thinned(episodes),
            "seconds": end.get("seconds"),
            "fingerprint": end.get("fingerprint"),
        }


@cache
def _replay_size(plan: GymPlan) -> int:
    return plan.check_fits()


@cache
def _preset_plan(agent: str, env: str, env_kwargs: str) -> GymPlan:
    plan = default_plan(agent, env, env_kwargs)
    require(isinstance(plan, GymPlan), "env", env, "an id of Gymnasium")
    assert isinstance(plan, GymPlan)
    return plan


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        inside = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{name}.") if inside else {f"{prefix}{name}": value}
    return flat


def _lines(path: Path) -> list[str]:
    """The whole lines of a log; another process may be writing the last one just now."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def _thinned(rows: list[tuple[int, float]]) -> list[list[Any]]:
    """Of very many, means of as many consecutive ones as needed, each at the last one's step."""
    size = -(-len(rows) // ROWS) or 1
    blocks = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [[b[-1][0], round(float(np.mean([value for _, value in b])), 4)] for b in blocks]
