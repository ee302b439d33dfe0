"""Sweeps: many independent jobs, each result kept as soon as it is there.

A *job* is a record of plain data: some seeds in one compiled program (`randq.sweep.compiled`), or
one seed in an environment of Gymnasium, kept as a run (`randq.sweep.gym`). An *engine* performs
jobs somewhere and yields what comes of each (`randq.sweep.local`: on the cores of this machine). A
*store* is the file that keeps the results. A sweep that was killed, at any moment and in any way,
is resumed by starting it again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from randq.config import one_of
from randq.sweep.compiled import CompiledJob
from randq.sweep.gym import GymJob
from randq.sweep.jobs import Finished, Found, Job, Result, Underway
from randq.sweep.store import Store, read

J = TypeVar("J", bound=Job)

KINDS: Mapping[str, type[Job]] = {"train": CompiledJob, "untrained": CompiledJob, "gym": GymJob}
"""The jobs that data can stand for, by their `kind`."""

Engine = Callable[[Sequence[Job], Path], Iterator[Finished | Underway]]
"""Performs jobs in any order in a folder; closing the iterator stops all that is under way."""


def read_job(data: Mapping[str, Any]) -> Job:
    """The job that plain data stand for."""
    one_of("kind", data.get("kind"), KINDS)
    return KINDS[data["kind"]].from_json(data)


@dataclass(frozen=True)
class Progress:
    """Where a sweep is."""

    done: int
    jobs: int
    failed: int
    last: str
    """What was finished last, or how many jobs were there already."""
    underway: tuple[Underway, ...] = ()
    """How far those are that say it."""


@dataclass(frozen=True)
class Results:
    """What came of a sweep, in the order of its jobs."""

    done: tuple[tuple[Job, Result], ...]
    failed: tuple[Finished, ...] = ()
    unfinished: tuple[tuple[Job, Result], ...] = ()
    """What there is of jobs that are not at their end."""

    def of(self, kind: type[J]) -> list[tuple[J, Result]]:
        """What came of the finished jobs of one kind."""
        return [(job, result) for job, result in self.done if isinstance(job, kind)]

    def so_far(self, kind: type[J]) -> list[tuple[J, Result]]:
        """The same, and after it what there is of unfinished ones."""
        begun = [(job, result) for job, result in self.unfinished if isinstance(job, kind)]
        return [*self.of(kind), *begun]


def sweep(
    jobs: Sequence[Job],
    out: Path,
    engine: Engine,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Results:
    """Perform the jobs whose results are not yet in `out/results.jsonl`, and keep them there.

    A job that fails is reported and not kept, so that it is tried again the next time.
    """
    failed: list[Finished] = []
    underway: dict[str, Underway] = {}
    with Store(out / "results.jsonl") as store:
        todo = [job for job in jobs if store.get(job) is None]
        done = len(jobs) - len(todo)
        last = f"{done} done before" if done else "starting"
        watch(Progress(done, len(jobs), 0, last))
        for event in engine(todo, out) if todo else iter(()):
            if isinstance(event, Underway):
                underway[str(event.job)] = event
            else:
                underway.pop(last := str(event.job), None)
                if event.result is None:
                    failed.append(event)
                else:
                    store.add(event.job, event.result)
                    done += 1
            watch(Progress(done, len(jobs), len(failed), last, tuple(underway.values())))
    return gather(jobs, out, failed)


def gather(jobs: Sequence[Job], out: Path, failed: Sequence[Finished] = ()) -> Results:
    """What a folder has of these jobs. Nothing is run."""
    done: list[tuple[Job, Result]] = []
    unfinished: list[tuple[Job, Result]] = []
    kept = read(out / "results.jsonl")
    for job in jobs:
        if (result := kept.get(job.key)) is not None:
            done.append((job, result))
        elif (found := job.found(out)) is not None:
            (done if found.finished else unfinished).append((job, found.result))
    return Results(tuple(done), tuple(failed), tuple(unfinished))


__all__ = [
    "CompiledJob",
    "Engine",
    "Finished",
    "Found",
    "GymJob",
    "Job",
    "Progress",
    "Result",
    "Results",
    "Store",
    "Underway",
    "gather",
    "read_job",
    "sweep",
]
