"""Train many seeds of one agent in chunks, watch them, and stop when all have solved the task."""

import csv
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from randq.agents.dqn import DQN
from randq.config import require, whole
from randq.envs.base import Environment
from randq.evaluate import GoodShare, Streak
from randq.loops.compiled import Compiled, Record


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    episodes: int
    budget: int
    solved: int
    seeds: int
    steps_per_second: float


@dataclass(frozen=True)
class Outcome:
    """What came of a run. A seed that did not solve the task within its budget is censored."""

    seeds: tuple[int, ...]
    solved_at: tuple[int | None, ...]
    """First episode of the first streak of optimal evaluations, as in Figure 1; None: censored."""
    solved_training: tuple[int | None, ...]
    """bsuite's definition: when more than a tenth of all training episodes were good."""
    episodes: int
    final_return: tuple[float, ...]
    steps_per_second: float
    seconds: float

    @property
    def median_solved_at(self) -> float | None:
        return censored_median(self.solved_at)

    @property
    def solved_fraction(self) -> float:
        return sum(at is not None for at in self.solved_at) / len(self.seeds)

    def as_json(self, agent: str, env: str) -> dict[str, Any]:
        """The stable form for scripts."""
        rows = zip(self.seeds, self.solved_at, self.solved_training, self.final_return, strict=True)
        return {
            "agent": agent,
            "env": env,
            "seeds": [
                {
                    "seed": seed,
                    "solved_at": at,
                    "solved_training": training,
                    "episodes": self.episodes,
                    "final_return": final,
                }
                for seed, at, training, final in rows
            ],
            "median_solved_at": self.median_solved_at,
            "solved_fraction": self.solved_fraction,
            "steps_per_second": self.steps_per_second,
            "seconds": self.seconds,
        }


def censored_median(values: Sequence[int | None]) -> float | None:
    """The median when None stands for "later than all others"; None if it is one of those."""
    ordered = sorted(float("inf") if value is None else float(value) for value in values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return None if median == float("inf") else median


def train(
    agent: DQN,
    env: Environment[Any, Any],
    seeds: Sequence[int],
    *,
    episodes: int | None = None,
    steps: int | None = None,
    streak: int = 100,
    chunk: int = 100,
    out: Path | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Train all seeds at once, for a budget of episodes or of steps, or until all have solved it.

    With `out`, the returns of every episode go to `out/episodes.csv` as they come.
    """
    budget = {"episodes": episodes, "steps": steps}
    require((episodes is None) != (steps is None), "budget", budget, "either episodes or steps")
    whole("seeds", len(seeds), at_least=1)
    evaluated, trained = Streak(len(seeds), streak), GoodShare(len(seeds))
    program = Compiled(agent, env, chunk)
    if episodes is None:
        assert steps is not None
        whole("steps", steps, at_least=1)
        episodes = -(-steps // program.episode_length)
    whole("episodes", episodes, at_least=1)

    start = time.perf_counter()
    state = program.init(jnp.asarray(seeds, jnp.int32))
    done = 0
    with ExitStack() as stack:
        write = _writer(stack, out, seeds)
        while True:
            state, record = program.run(state, min(chunk, episodes - done))
            write(done, record)
            evaluated.add(np.asarray(record.eval_good))
            trained.add(np.asarray(record.train_good))
            done += len(record.eval_return)
            seconds = time.perf_counter() - start
            speed = done * program.episode_length * len(seeds) / seconds
            solved = int(np.sum(evaluated.solved_at > 0))
            watch(Progress(done, episodes, solved, len(seeds), speed))
            if done >= episodes or solved == len(seeds):
                break

    def censored(at: np.ndarray) -> tuple[int | None, ...]:
        return tuple(int(episode) or None for episode in at)

    return Outcome(
        seeds=tuple(seeds),
        solved_at=censored(evaluated.solved_at),
        solved_training=censored(trained.solved_at),
        episodes=done,
        final_return=tuple(float(value) for value in record.eval_return[-1]),
        steps_per_second=speed,
        seconds=seconds,
    )


def _writer(
    stack: ExitStack, out: Path | None, seeds: Sequence[int]
) -> Callable[[int, Record], None]:
    if out is None:
        return lambda done, record: None
    out.mkdir(parents=True, exist_ok=True)
    file = stack.enter_context((out / "episodes.csv").open("w", newline=""))
    rows = csv.writer(file)
    columns = ("train_return", "eval_return", "loss", "cost")
    rows.writerow(["episode", "seed", *columns])

    def write(done: int, record: Record) -> None:
        chosen = (getattr(record, column) for column in columns)
        for i, values in enumerate(zip(*chosen, strict=True)):
            for j, seed in enumerate(seeds):
                rows.writerow([done + i + 1, seed, *(f"{value[j]:.6g}" for value in values)])
        file.flush()

    return write


def write_summary(out: Path, summary: dict[str, Any]) -> None:
    """Keep what a run came to, beside its episodes."""
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
