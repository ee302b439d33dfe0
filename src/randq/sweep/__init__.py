"""Sweeps: many independent jobs, each result kept as soon as it is there.

A *job* is a record of plain data. An *engine* performs jobs somewhere and yields what comes of each
(`randq.sweep.local`: on the cores of this machine). A *store* is the file that keeps the results.
A sweep that was killed, at any moment and in any way, is resumed by starting it again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from randq.sweep.jobs import Finished, Job, Result, perform
from randq.sweep.store import Store

Engine = Callable[[Sequence[Job]], Iterator[Finished]]
"""Performs jobs in any order; closing the iterator stops all that is under way."""


@dataclass(frozen=True)
class Progress:
    """Where a sweep is."""

    done: int
    jobs: int
    failed: int
    last: str
    """What was finished last, or how many jobs were there already."""


@dataclass(frozen=True)
class Results:
    """What came of a sweep, in the order of its jobs."""

    done: tuple[tuple[Job, Result], ...]
    failed: tuple[Finished, ...]


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
    with Store(out / "results.jsonl") as store:
        todo = [job for job in jobs if store.get(job) is None]
        done = len(jobs) - len(todo)
        watch(Progress(done, len(jobs), 0, f"{done} done before" if done else "starting"))
        finishing = engine(todo) if todo else iter(())
        for finished in finishing:
            if finished.result is None:
                failed.append(finished)
            else:
                store.add(finished.job, finished.result)
                done += 1
            watch(Progress(done, len(jobs), len(failed), str(finished.job)))
        results = [(job, store.get(job)) for job in jobs]
    kept = tuple((job, result) for job, result in results if result is not None)
    return Results(kept, tuple(failed))


__all__ = [
    "Engine",
    "Finished",
    "Job",
    "Progress",
    "Result",
    "Results",
    "Store",
    "perform",
    "sweep",
]
