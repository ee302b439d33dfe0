"""What it costs to keep a run: the share of its time that goes to records and checkpoints.

    python benchmarks/runs.py

Runs of both loops with their default settings, each long enough for several checkpoints. What is
timed is every call that writes, and the look at the posterior that a record takes; not compiling.
Nothing else should run meanwhile.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.pop(0)  # this folder, whose mujoco.py is not the package of that name

import tyro
from rich.console import Console
from rich.table import Table

from randq.config import number
from randq.runs.compiled import Keeping
from randq.runs.directory import RunDirectory
from randq.runs.gym import GymRun
from randq.runs.plan import CompiledPlan, GymPlan, default_plan
from randq.runs.train import train
from randq.settings import to_json


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    runs: tuple[str, ...] = (
        "mnf-dqn nchain",
        "mnf-dqn CartPole-v1",
        "mnf-ddpg HalfCheetah-v5",
        "mnf-dqn atari-paper/Breakout",
    )
    """An agent and an environment each; the last two take the extras `mujoco` and `atari`."""
    seconds: float = 130.0
    """How long each runs."""


class Stopped(Exception):  # noqa: N818, it is no error
    """The time is over."""


class Clock:
    """Adds up the time that some methods of an object take, from a moment on."""

    def __init__(self, settings: Benchmark) -> None:
        self.spent, self.calls, self._settings = 0.0, 0, settings
        self._start: float | None = None

    def start(self) -> None:
        if self._start is None:
            self._start = time.perf_counter()
            self.spent, self.calls = 0.0, 0
        elif self.elapsed > self._settings.seconds:
            raise Stopped

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - (self._start or 0.0)

    def watch(self, thing: Any, *names: str) -> None:
        for name in names:
            setattr(thing, name, self._timed(getattr(thing, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            before = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self.spent += time.perf_counter() - before
                self.calls += 1

        return timed


def measure(settings: Benchmark, agent: str, env: str, root: Path) -> Clock:
    """Run an agent for a while, and time what keeps it."""
    plan, clock = default_plan(agent, env).resolved, Clock(settings)
    seeds = range(plan.seed, plan.seed + plan.seeds)
    directories = [RunDirectory(root / f"seed-{seed}") for seed in seeds]
    for seed, directory in zip(seeds, directories, strict=True):
        directory.lock()
        directory.create(seed, to_json(plan), "benchmark")
    try:
        if isinstance(plan, CompiledPlan):
            keeping = Keeping(plan, directories)
            clock.watch(keeping, "chunk")
            train(
                plan.agent,
                replace(plan.env, length=100) if env == "nchain" else plan.env,  # type: ignore[call-arg]
                seeds,
                episodes=10**9,
                until_solved=False,
                keeper=keeping,
                watch=lambda progress: clock.start(),
            )
        elif isinstance(plan, GymPlan):
            run = GymRun(replace(plan, steps=10**9, evaluate_every=10**9), 0, directories[0])
            clock.watch(run, "_log", "_save_checkpoint")
            clock.watch(run.recorder, "episodes")
            run.run(lambda counts: clock.start() if counts.steps >= 2000 else None)
    except Stopped:
        return clock
    finally:
        for directory in directories:
            directory.close()
    raise AssertionError("it ended before its time")


def main(settings: Benchmark) -> None:
    """Measure, and print a table."""
    number("seconds", settings.seconds)
    table = Table(title=f"what it costs to keep a run, {settings.seconds:g} s each")
    for column in ("run", "calls", "seconds", "share"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for run in settings.runs:
        with tempfile.TemporaryDirectory() as root:
            clock = measure(settings, *run.split(), Path(root))
        share = clock.spent / clock.elapsed
        table.add_row(run, str(clock.calls), f"{clock.spent:.2f}", f"{share:.2%}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
