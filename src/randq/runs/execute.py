"""Begin a run, or go on with one: its folders, its locks, its signals, and how it ended."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from randq.config import require
from randq.envs.gym.atari import describe
from randq.envs.gym.stepper import BrokenEnvironmentError
from randq.loops.host import DivergedError
from randq.runs.compiled import run_compiled
from randq.runs.directory import (
    FAILURE,
    RESULT,
    SETTINGS,
    RunDirectory,
    find_runs,
    seed_folder,
)
from randq.runs.gym import GymRun
from randq.runs.interrupts import Asked, InterruptedRunError, interrupts
from randq.runs.plan import CompiledPlan, GymPlan, Plan, read_plan
from randq.runs.recorder import require_wandb
from randq.runs.train import censored_median
from randq.settings import to_json
from randq.storage import StorageError

Row = dict[str, Any]
"""What came of a seed: its `result.json`."""


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    done: int
    budget: int
    unit: str
    note: str


Watch = Callable[[Progress], None]
Warn = Callable[[str], None]


@dataclass(frozen=True)
class Group:
    """Seeds that run together, and their folders."""

    plan: Plan
    directories: Sequence[RunDirectory]

    @property
    def is_finished(self) -> bool:
        return all((directory.path / RESULT).exists() for directory in self.directories)

    @property
    def where(self) -> Path:
        """What `randq resume` takes to go on with it."""
        paths = [directory.path for directory in self.directories]
        return paths[0] if len(paths) == 1 else paths[0].parent

    def results(self) -> list[Row]:
        return [directory.read_json(RESULT) for directory in self.directories]


def new_experiment() -> Path:
    """A folder that no other experiment has."""
    return Path("runs") / time.strftime("%Y%m%d-%H%M%S")


def directories_of(plan: Plan, experiment: Path) -> list[RunDirectory]:
    """The folders of a run, one for each seed."""
    seeds = range(plan.seed, plan.seed + plan.seeds)
    return [RunDirectory(seed_folder(experiment, plan.name, plan.env_name, s)) for s in seeds]


def check_free(plan: Plan, experiment: Path, overwrite: bool) -> None:
    """Refuse to begin a run where one is already."""
    for directory in directories_of(plan, experiment):
        takes = f"another folder, --overwrite, or randq resume {directory.path}"
        free = overwrite or not directory.exists
        require(free, "out", f"{experiment}, which has this run already", takes)


def begin(plan: Plan, experiment: Path, command: str) -> Group:
    """Make the folders of a new run. They are locked; `carry_out` lets go of them."""
    plan = plan.resolved
    seeds, directories = range(plan.seed, plan.seed + plan.seeds), directories_of(plan, experiment)
    with _closing_on_error(directories):
        for directory in directories:
            directory.lock()
        for seed, directory in zip(seeds, directories, strict=True):
            directory.create(seed, to_json(plan), command, describe(plan.env_name))
    return Group(plan, directories)


def groups(path: Path, trust: bool = False) -> list[Group]:
    """The runs in a folder, those of one program together. Nothing is locked yet."""
    if not path.is_dir():
        raise StorageError(f"{path}: is not the folder of a run")
    found: dict[tuple[str, ...], Group] = {}
    for directory in find_runs(path):
        try:
            plan = read_plan(directory.read_json(SETTINGS), trust)
        except ValueError as error:
            if isinstance(error, StorageError):
                raise
            lines = "; ".join(str(error).splitlines())
            raise StorageError(f"{directory.path / SETTINGS}: {lines}") from error
        together = [directory]
        if isinstance(plan, CompiledPlan):
            seeds = range(plan.seed, plan.seed + plan.seeds)
            parent = directory.path.absolute().parent
            together = [RunDirectory(parent / f"seed-{seed}") for seed in seeds]
            missing = [other.path.name for other in together if not other.exists]
            if missing:
                raise StorageError(f"{parent}: lacks {missing[0]}, which ran together with this")
            together = [RunDirectory(_short(other.path)) for other in together]
        found[tuple(str(other.path) for other in together)] = Group(plan, together)
    if not found:
        raise StorageError(f"{path}: has no run in it")
    return list(found.values())


def _short(path: Path) -> Path:
    """Relative to where we are, if it is below."""
    with suppress(ValueError):
        return path.relative_to(Path.cwd())
    return path


def go_on(group: Group) -> Group:
    """Lock the folders of a run in order to go on with it."""
    if group.plan.wandb:
        require_wandb()
    with _closing_on_error(group.directories):
        for directory in group.directories:
            directory.lock()
            (directory.path / FAILURE).unlink(missing_ok=True)
            (directory.path / "checkpoints").mkdir(exist_ok=True)
    return group


def carry_out(group: Group, watch: Watch, warn: Warn) -> list[Row]:
    """Run it to the end, whatever that is."""
    try:
        with interrupts(signal.SIGINT, signal.SIGTERM) as asked:
            if isinstance(group.plan, CompiledPlan):
                _compiled(group, asked, watch, warn)
            else:
                for directory in group.directories:
                    if not (directory.path / RESULT).exists():
                        _one_by_one(group.plan, directory, asked, watch, warn)
        return group.results()
    except InterruptedRunError:
        raise
    except Exception as error:
        why = str(error)
        if not isinstance(error, StorageError | BrokenEnvironmentError | DivergedError):
            why = f"{type(error).__name__}: {error}"
        for directory in group.directories:
            if not (directory.path / RESULT).exists():
                with suppress(StorageError):
                    directory.write_json(FAILURE, {"why": why})
        raise
    finally:
        for directory in group.directories:
            directory.close()


def _compiled(group: Group, asked: Asked, watch: Watch, warn: Warn) -> None:
    assert isinstance(group.plan, CompiledPlan)
    run_compiled(
        group.plan,
        group.directories,
        asked,
        warn,
        lambda at: watch(
            Progress(
                at.done,
                at.budget,
                at.unit,
                f"solved {at.solved}/{at.seeds} seeds, {at.steps_per_second:,.0f} steps/s",
            )
        ),
    )


def _one_by_one(
    plan: GymPlan, directory: RunDirectory, asked: Asked, watch: Watch, warn: Warn
) -> None:
    seed = directory.seed
    run, shown = GymRun(plan, seed, directory, asked, warn), 0.0

    def show(counts: Any) -> None:
        nonlocal shown
        if (now := time.perf_counter()) - shown > 0.2:
            shown = now
            mean = f", mean return {counts.mean(0):.1f}" if counts.last else ""
            speed = f"{counts.steps / counts.elapsed:,.0f} steps/s"
            now_what = ", evaluating" if counts.evaluating else ""
            note = f"seed {seed}, {counts.episodes} episodes{mean}, {speed}{now_what}"
            watch(Progress(counts.steps, plan.steps, "steps", note))

    run.run(show)


def summary(plan: Plan, rows: Sequence[Row]) -> dict[str, Any]:
    """The stable form for scripts."""
    solved = [row["solved_at"] for row in rows]
    compiled = isinstance(plan, CompiledPlan)
    # Seeds of one program share its time; those of the host loop come after one another.
    seconds = max(r["seconds"] for r in rows) if compiled else sum(r["seconds"] for r in rows)
    steps = sum(row["steps"] for row in rows)
    return {
        "agent": plan.name,
        "env": plan.env_name,
        "seeds": [
            {key: value for key, value in row.items() if key not in ("agent", "env", "seconds")}
            for row in rows
        ],
        "median_solved_at": censored_median(solved) if compiled else None,
        "solved_fraction": sum(x is not None for x in solved) / len(rows) if compiled else None,
        "steps_per_second": steps / max(seconds, 1e-9),
        "seconds": seconds,
    }


@contextmanager
def _closing_on_error(directories: Sequence[RunDirectory]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for directory in directories:
            directory.close()
        raise
