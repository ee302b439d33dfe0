"""Train many seeds of one agent in chunks, watch them, and stop when all have solved the task."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from randq.agents import Agent
from randq.config import require, whole
from randq.envs.base import Environment
from randq.evaluation import GoodShare, Streak
from randq.loops.compiled import Compiled, Record, RunState


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
    """One episode of one seed."""

    episode: int
    step: int
    """Steps of the seed when it ended."""
    length: int
    train_return: float
    eval_step: int
    """Steps of the seed when an evaluation followed ..."""
    eval_return: float | None
    """... and its return; None where none did."""


@dataclass
class SeedLog:
    """What has come of one seed so far."""

    seed: int
    evaluated: Streak
    trained: GoodShare = field(default_factory=GoodShare)
    episodes: int = 0
    first_good: int | None = None
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    @property
    def final_return(self) -> float | None:
        return self.evaluations[-1][1] if self.evaluations else None

    def add(
        self, record: Record, column: int, budget: int | None, before: int
    ) -> Iterator[EpisodeRow]:
        """Take a chunk, which begins after so many steps: its episodes up to the budget."""
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
            self.lengths.append(int(length[step]))
            if good[step] and self.first_good is None:
                self.first_good = self.episodes
            block, value = step // per_block, None
            # An evaluation follows the last episode that ended in its block.
            if record.evaluated[block, column] and following // per_block > block:
                value = float(record.eval_return[block, column])
                self.evaluations.append((self.episodes, value))
                self.evaluated.add(self.episodes, bool(record.eval_good[block, column]))
            yield EpisodeRow(
                episode=self.episodes,
                step=before + int(step) + 1,
                length=self.lengths[-1],
                train_return=self.returns[-1],
                eval_step=before + int(block + 1) * per_block,
                eval_return=value,
            )


@dataclass
class Training:
    """Many seeds of one agent under way."""

    program: Compiled
    seeds: tuple[int, ...]
    logs: list[SeedLog]
    state: RunState
    blocks: int = 0
    """Blocks that were run."""
    elapsed: float = 0.0
    """Seconds that this took."""

    @property
    def steps(self) -> int:
        """Steps of each seed."""
        return self.blocks * self.program.steps_per_block


@runtime_checkable
class Keeper(Protocol):
    """Who keeps what a run comes to."""

    def begin(self, training: Training) -> None:
        """Before the first chunk: perhaps put the run to where it was once."""

    def chunk(self, training: Training, record: Record, rows: list[list[EpisodeRow]]) -> None:
        """After each chunk, with the episodes of each seed."""


def train(
    agent: Agent,
    env: Environment[Any, Any],
    seeds: Sequence[int],
    *,
    episodes: int | None = None,
    steps: int | None = None,
    evaluate_every: int = 1,
    streak: int = 100,
    until_solved: bool = True,
    chunk: int | None = None,
    keeper: Keeper | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Train all seeds at once, for a budget of episodes or of steps, or until all have solved it.

    With `until_solved` it stops when every seed has had a streak of successful evaluations.

    Seeds that are ahead of others play on, unrecorded, until the last one has had its episodes. A
    `chunk` is what runs between two looks: so many episodes of the greatest length.
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

    before = time.perf_counter()
    state = program.init(jnp.asarray(seeds, jnp.int32))
    run = Training(program, tuple(seeds), logs, state)
    if keeper is not None:
        keeper.begin(run)

    def left() -> int:
        """The blocks that are needed at most."""
        if until_solved and all(log.evaluated.solved_at is not None for log in logs):
            return 0
        if steps is not None:
            return -(-steps // block) - run.blocks
        assert episodes is not None
        return -(-(episodes - min(log.episodes for log in logs)) * longest // block)

    while (count := min(program.chunk, left())) > 0:
        run.state, record = program.run(run.state, count)
        rows = [list(log.add(record, i, episodes, run.steps)) for i, log in enumerate(logs)]
        run.blocks += count
        run.elapsed += -before + (before := time.perf_counter())
        if keeper is not None:
            keeper.chunk(run, record, rows)
        at = min(log.episodes for log in logs) if steps is None else run.steps
        unit, total = ("steps", steps) if steps is not None else ("episodes", episodes)
        assert total is not None
        solved = sum(log.evaluated.solved_at is not None for log in logs)
        speed = run.steps * len(seeds) / run.elapsed
        watch(Progress(min(at, total), total, unit, solved, len(seeds), speed))

    return Outcome(
        seeds=tuple(seeds),
        solved_at=tuple(log.evaluated.solved_at for log in logs),
        solved_training=tuple(log.trained.solved_at for log in logs),
        episodes=tuple(log.episodes for log in logs),
        final_return=tuple(log.final_return for log in logs),
        first_good=tuple(log.first_good for log in logs),
        returns=tuple(tuple(log.returns) for log in logs),
        evaluations=tuple(tuple(log.evaluations) for log in logs),
        steps_per_second=run.steps * len(seeds) / max(run.elapsed, 1e-9),
        seconds=run.elapsed,
    )
