"""Train many seeds of one agent in chunks, watch them, and stop when all have solved the task."""

import csv
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from randq.agents.dqn import DQN
from randq.config import require, whole
from randq.envs.base import Environment
from randq.evaluation import GoodShare, Streak
from randq.loops.compiled import Compiled, Record


@dataclass(frozen=True)
class Progress:
    """Where a run is. A budget is in episodes, of the seed that is furthest behind, or in steps."""

    done: int
    budget: int
    unit: str
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
    episodes: tuple[int, ...]
    final_return: tuple[float | None, ...]
    """The last evaluation; None where there was none."""
    first_good: tuple[int | None, ...]
    """The first training episode that was a success; None where there was none."""
    returns: tuple[tuple[float, ...], ...]
    """Of each training episode."""
    evaluations: tuple[tuple[tuple[int, float], ...], ...]
    """Each as the episode after which it was made, and its return."""
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
        rows = zip(
            self.seeds,
            self.solved_at,
            self.solved_training,
            self.episodes,
            self.final_return,
            strict=True,
        )
        return {
            "agent": agent,
            "env": env,
            "seeds": [
                {
                    "seed": seed,
                    "solved_at": at,
                    "solved_training": training,
                    "episodes": episodes,
                    "final_return": final,
                }
                for seed, at, training, episodes, final in rows
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


class EpisodeRow(NamedTuple):
    """One episode of one seed, as it stands in `episodes.csv`."""

    episode: int
    seed: int
    length: int
    train_return: float
    eval_return: float | None
    """None where no evaluation followed this episode."""
    loss: float
    cost: float


@dataclass
class SeedLog:
    """What has come of one seed so far."""

    seed: int
    evaluated: Streak
    trained: GoodShare = field(default_factory=GoodShare)
    episodes: int = 0
    first_good: int | None = None
    returns: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    @property
    def final_return(self) -> float | None:
        return self.evaluations[-1][1] if self.evaluations else None

    def add(
        self, record: Record, column: int, budget: int | None
    ) -> Iterator[tuple[int, EpisodeRow]]:
        """Take a chunk: its episodes up to the budget, each with the step at which it ended."""
        blocks = len(record.loss)
        ended, good, total, length = (x[..., column].reshape(-1) for x in record.steps)
        ends = np.flatnonzero(ended)
        per_block = len(ended) // blocks
        for step, following in zip(ends, [*ends[1:], len(ended)], strict=True):
            if self.episodes == budget:
                return
            self.episodes += 1
            self.trained.add(self.episodes, bool(good[step]))
            self.returns.append(float(total[step]))
            if good[step] and self.first_good is None:
                self.first_good = self.episodes
            block, value = step // per_block, None
            # An evaluation follows the last episode that ended in its block.
            if record.evaluated[block, column] and following // per_block > block:
                value = float(record.eval_return[block, column])
                self.evaluations.append((self.episodes, value))
                self.evaluated.add(self.episodes, bool(record.eval_good[block, column]))
            loss, cost = float(record.loss[block, column]), float(record.cost[block, column])
            row = (self.episodes, self.seed, int(length[step]), float(total[step]), value)
            yield int(step), EpisodeRow(*row, loss, cost)


def train(
    agent: DQN,
    env: Environment[Any, Any],
    seeds: Sequence[int],
    *,
    episodes: int | None = None,
    steps: int | None = None,
    evaluate_every: int = 1,
    streak: int = 100,
    until_solved: bool = True,
    chunk: int | None = None,
    out: Path | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Train all seeds at once, for a budget of episodes or of steps, or until all have solved it.

    With `until_solved` it stops when every seed has had a streak of successful evaluations.

    Seeds that are ahead of others play on, unrecorded, until the last one has had its episodes. A
    `chunk` is what runs between two looks: so many episodes of the greatest length. With `out`,
    every episode goes to `out/episodes.csv`.
    """
    budget = {"episodes": episodes, "steps": steps}
    require((episodes is None) != (steps is None), "budget", budget, "either episodes or steps")
    for name, value in budget.items():
        if value is not None:
            whole(name, value, at_least=1)
    whole("seeds", len(seeds), at_least=1)
    logs = [SeedLog(seed, Streak(streak)) for seed in seeds]
    chunk = chunk if chunk is not None else 100 if env.fixed_length else 10
    whole("chunk", chunk, at_least=1)
    block, longest = Compiled(agent, env).steps_per_block, env.max_steps
    assert longest is not None
    program = Compiled(agent, env, max(1, chunk * longest // block), evaluate_every)

    def left(done: int) -> int:
        """The blocks that are needed at most."""
        if steps is not None:
            return -(-steps // block) - done
        assert episodes is not None
        return -(-(episodes - min(log.episodes for log in logs)) * longest // block)

    start = time.perf_counter()
    state = program.init(jnp.asarray(seeds, jnp.int32))
    done = 0
    with ExitStack() as stack:
        write = _writer(stack, out)
        while True:
            state, record = program.run(state, min(program.chunk, left(done)))
            done += len(record.loss)
            rows = [row for i, log in enumerate(logs) for row in log.add(record, i, episodes)]
            write(row for _, row in sorted(rows, key=lambda entry: (entry[0], entry[1].seed)))
            seconds = time.perf_counter() - start
            solved = sum(log.evaluated.solved_at is not None for log in logs)
            at = min(log.episodes for log in logs) if steps is None else done * block
            unit, total = ("steps", steps) if steps is not None else ("episodes", episodes)
            assert total is not None
            speed = done * block * len(seeds) / seconds
            watch(Progress(min(at, total), total, unit, solved, len(seeds), speed))
            if (until_solved and solved == len(seeds)) or left(done) <= 0:
                break

    return Outcome(
        seeds=tuple(seeds),
        solved_at=tuple(log.evaluated.solved_at for log in logs),
        solved_training=tuple(log.trained.solved_at for log in logs),
        episodes=tuple(log.episodes for log in logs),
        final_return=tuple(log.final_return for log in logs),
        first_good=tuple(log.first_good for log in logs),
        returns=tuple(tuple(log.returns) for log in logs),
        evaluations=tuple(tuple(log.evaluations) for log in logs),
        steps_per_second=speed,
        seconds=seconds,
    )


def _writer(stack: ExitStack, out: Path | None) -> Callable[[Iterable[EpisodeRow]], None]:
    if out is None:
        return lambda rows: None
    out.mkdir(parents=True, exist_ok=True)
    file = stack.enter_context((out / "episodes.csv").open("w", newline=""))
    writer = csv.writer(file)
    writer.writerow(EpisodeRow._fields)

    def write(rows: Iterable[EpisodeRow]) -> None:
        for row in rows:
            writer.writerow(f"{x:.6g}" if isinstance(x, float) else x for x in row)
        file.flush()

    return write


def write_summary(out: Path, summary: dict[str, Any]) -> None:
    """Keep what a run came to, beside its episodes."""
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
