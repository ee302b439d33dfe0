"""`randq reproduce` and `randq search`: an experiment from nothing, by one resumable command."""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from randq import sweep
from randq.config import one_of, replay_fits, require, whole, writable_folder
from randq.experiments import EXPERIMENTS, SEARCHES, Experiment, piece, shown
from randq.report import atari, deep_sea, figure2, figure5, search, verdict
from randq.report.page import Page
from randq.sweep import local

Report = Callable[[Page, sweep.Results], None]
"""Shows what came of an experiment, and keeps it in the experiment's folder."""

REPORTS: dict[str, Report] = {
    "figure1": verdict.report,
    "figure2": figure2.report,
    "figure3": partial(atari.report, "figure3"),
    "figure4": partial(atari.report, "figure4"),
    "figure5": figure5.report,
    "figure6": partial(atari.report, "figure6"),
    "deep_sea": deep_sea.report,
}
"""What each experiment shows at the end."""

Scale = Literal["smoke", "quick", "paper", "full"]


@dataclass(frozen=True)
class ReproduceCommand:
    """Run a figure of the paper, or resume it: the picture, and which of its claims hold."""

    figure: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="|".join(EXPERIMENTS))] = (
        "figure1"
    )
    """Which figure, or deep_sea for a table of all agents."""
    scale: Scale = "quick"
    """smoke: shows that it works, decides nothing; quick: minutes, or hours from figure 3 on; paper
    (deep_sea: full): all; full for figure2: 100 more seeds of two agents."""
    out: Path | None = None
    """Folder for results and picture; by default results/FIGURE-SCALE."""
    workers: int | None = None
    """Worker processes; by default one for each core."""
    agents: tuple[str, ...] = ()
    """Run only these now (figures 3 to 6), and show them with all that is there already."""
    envs: tuple[str, ...] = ()
    """Run only these environments now (figure5)."""
    games: tuple[str, ...] = ()
    """Run these games now, by name or as the sets paper13 and hard8 (figures 3, 4 and 6)."""
    seeds: int | None = None
    """Run only the first so many seeds now (figures 3 to 6)."""
    steps: int | None = None
    """Shorter runs (figure5); they need a folder of their own."""
    frames: int | None = None
    """The same for figures 3, 4 and 6: 4 frames are a step."""
    look: bool = False
    """Run nothing: show what there is, also of runs that are not finished."""

    def check(self) -> None:
        """Refuse what cannot work, before anything runs."""
        one_of("figure", self.figure, EXPERIMENTS)
        one_of("scale", self.scale, get_args(Scale))
        one_of(f"scale of {self.figure}", self.scale, EXPERIMENTS[self.figure])
        _check(self.folder, self.workers, self.look, [*self.part.jobs(), *self.whole.jobs()])
        if not self.look:
            _fit(self.part.jobs(), self.folder, self.workers)

    @property
    def folder(self) -> Path:
        return self.out or Path("results") / f"{self.figure}-{self.scale}"

    @property
    def whole(self) -> Experiment:
        """All that is shown."""
        all_of_it: Experiment = shown(EXPERIMENTS[self.figure][self.scale], self._chosen)
        return all_of_it

    @property
    def part(self) -> Experiment:
        """All that is run."""
        run: Experiment = piece(EXPERIMENTS[self.figure][self.scale], self._chosen)
        return run

    @property
    def _chosen(self) -> dict[str, Any]:
        names = ("agents", "envs", "games", "seeds", "steps", "frames")
        return {name: value for name in names if (value := getattr(self, name)) not in ((), None)}

    @property
    def command(self) -> str:
        """What to type to get this again."""
        words = ["randq", "reproduce", self.figure, "--scale", self.scale]
        for name, value in self._chosen.items():
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
        return shlex.join(words + (["--out", str(self.out)] if self.out else []))

    def run(self, console: Console) -> None:
        page = Page(self.folder, self.whole.about, self.command, console)
        jobs = [] if self.look else self.part.jobs()
        _perform(jobs, self.whole.jobs(), page, REPORTS[self.figure], self.workers)


@dataclass(frozen=True)
class SearchCommand:
    """Try settings, as many for each agent, on seeds that no result is reported for."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="|".join(SEARCHES))]
    """Which search."""
    out: Path | None = None
    """Folder for results and table; by default results/search-NAME."""
    workers: int | None = None
    """Worker processes; by default one for each core."""
    look: bool = False
    """Run nothing: show what there is."""

    def check(self) -> None:
        one_of("name", self.name, SEARCHES)
        _check(self.folder, self.workers, self.look, SEARCHES[self.name].jobs())
        if not self.look:
            _fit(SEARCHES[self.name].jobs(), self.folder, self.workers)

    @property
    def folder(self) -> Path:
        return self.out or Path("results") / f"search-{self.name}"

    def run(self, console: Console) -> None:
        command = f"randq search {self.name}" + (f" --out {self.out}" if self.out else "")
        page = Page(self.folder, SEARCHES[self.name].about, command, console)
        jobs = SEARCHES[self.name].jobs()
        report = partial(search.report, self.name)
        _perform([] if self.look else jobs, jobs, page, report, self.workers)


def _check(folder: Path, workers: int | None, look: bool, jobs: Sequence[sweep.Job]) -> None:
    if workers is not None:
        whole("workers", workers, at_least=1)
    if look:
        require(folder.is_dir(), "out", str(folder), "a folder with results to look at")
    writable_folder("out", folder)
    for job in jobs:
        job.check(folder)


def _perform(
    jobs: Sequence[sweep.Job],
    shown: Sequence[sweep.Job],
    page: Page,
    report: Report,
    workers: int | None,
) -> None:
    """Run some jobs, and show what there is of all."""
    console = page.console
    failed = _run(jobs, len(shown), page, workers) if jobs else ()
    found = sweep.gather(shown, page.folder, failed)
    if found.done or found.unfinished:
        report(page, found)
    else:
        console.print(f"There is nothing to show in {page.folder}", soft_wrap=True)
    if failed:
        console.print(f"{len(failed)} jobs failed; to try them again: {page.command}")
        raise SystemExit(1)


def _run(
    jobs: Sequence[sweep.Job], all_jobs: int, page: Page, workers: int | None
) -> tuple[sweep.Finished, ...]:
    """Run some of all jobs, show how it goes, and say which have failed."""
    console, workers = page.console, workers or local.default_workers()
    some = f"; now {len(jobs)} of its {all_jobs} runs" if len(jobs) < all_jobs else ""
    console.print(f"{page.command}: {page.about}{some}", soft_wrap=True)
    for note in dict.fromkeys(note for job in jobs for note in job.notes):
        console.print(note, soft_wrap=True)
    start = time.perf_counter()
    try:
        with _progress(console) as progress:
            task = progress.add_task("", total=len(jobs), last="")

            def watch(at: sweep.Progress) -> None:
                begun = sum(each.share for each in at.underway)
                running = [f"{each.share:.0%} of {each.job}" for each in at.underway]
                last = "; ".join(running) or at.last
                progress.update(task, completed=at.done + at.failed + begun, last=last)

            engine = partial(local.run, workers=workers)
            swept = sweep.sweep(jobs, page.folder, engine, watch)
    except KeyboardInterrupt:
        kept = f"Stopped; what is done is kept, and {page.command} resumes"
        console.print(kept, soft_wrap=True)
        raise SystemExit(130) from None
    for failure in swept.failed:
        console.print(f"[red]failed[/red] {failure.job}: {failure.error}", soft_wrap=True)
    seconds = time.perf_counter() - start
    console.print(f"{len(swept.done)} jobs in {seconds:.0f} s on {workers} processes")
    return swept.failed


def _fit(jobs: Sequence[sweep.Job], folder: Path, workers: int | None) -> None:
    """Refuse to run so many at once as do not fit into the memory of this machine."""
    left = [job for job in jobs if (found := job.found(folder)) is None or not found.finished]
    # One of each agent is enough: its replay is as large everywhere, or nearly.
    for job in {type(job.agent_settings.posterior): job for job in left}.values():
        at_once = min(workers or local.default_workers(), len(left))
        replay_fits(job.replay_size, job.agent_settings.replay_capacity, at_once)


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[last]}"),
        console=console,
    )
