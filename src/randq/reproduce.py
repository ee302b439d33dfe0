"""`randq reproduce` and `randq search`: an experiment from nothing, by one resumable command."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

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
from randq.config import one_of, whole, writable_folder
from randq.experiments import EXPERIMENTS, SEARCHES, Experiment
from randq.report import deep_sea, figure2, search, verdict
from randq.report.page import Page
from randq.sweep import local

Report = Callable[[Page, sweep.Results], None]
"""Shows what came of an experiment, and keeps it in the experiment's folder."""

REPORTS: dict[str, Report] = {
    "figure1": verdict.report,
    "figure2": figure2.report,
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
    """smoke: shows that it works, decides nothing; quick: minutes; paper (deep_sea: full): all."""
    out: Path | None = None
    """Folder for results and picture; by default results/FIGURE-SCALE."""
    workers: int | None = None
    """Worker processes; by default one for each core."""

    def check(self) -> None:
        """Refuse what cannot work, before anything runs."""
        one_of("figure", self.figure, EXPERIMENTS)
        one_of("scale", self.scale, get_args(Scale))
        one_of(f"scale of {self.figure}", self.scale, EXPERIMENTS[self.figure])
        _check(self.folder, self.workers)

    @property
    def folder(self) -> Path:
        return self.out or Path("results") / f"{self.figure}-{self.scale}"

    @property
    def command(self) -> str:
        """What to type to get this again."""
        where = f" --out {self.out}" if self.out else ""
        return f"randq reproduce {self.figure} --scale {self.scale}{where}"

    def run(self, console: Console) -> None:
        experiment = EXPERIMENTS[self.figure][self.scale]
        page = Page(self.folder, experiment.about, self.command, console)
        _perform(experiment, page, REPORTS[self.figure], self.workers)


@dataclass(frozen=True)
class SearchCommand:
    """Try settings, as many for each agent, on seeds that no result is reported for."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="|".join(SEARCHES))]
    """Which search."""
    out: Path | None = None
    """Folder for results and table; by default results/search-NAME."""
    workers: int | None = None
    """Worker processes; by default one for each core."""

    def check(self) -> None:
        one_of("name", self.name, SEARCHES)
        _check(self.folder, self.workers)

    @property
    def folder(self) -> Path:
        return self.out or Path("results") / f"search-{self.name}"

    def run(self, console: Console) -> None:
        command = f"randq search {self.name}" + (f" --out {self.out}" if self.out else "")
        page = Page(self.folder, SEARCHES[self.name].about, command, console)
        _perform(SEARCHES[self.name], page, partial(search.report, self.name), self.workers)


def _check(folder: Path, workers: int | None) -> None:
    if workers is not None:
        whole("workers", workers, at_least=1)
    writable_folder("out", folder)


def _perform(experiment: Experiment, page: Page, report: Report, workers: int | None) -> None:
    jobs, console = experiment.jobs(), page.console
    workers = workers or local.default_workers()
    console.print(f"{page.command}: {experiment.about}")
    start = time.perf_counter()
    try:
        with _progress(console) as progress:
            task = progress.add_task("", total=len(jobs), last="")

            def watch(at: sweep.Progress) -> None:
                progress.update(task, completed=at.done + at.failed, last=at.last)

            engine = partial(local.run, workers=workers)
            swept = sweep.sweep(jobs, page.folder, engine, watch)
    except KeyboardInterrupt:
        kept = f"Stopped; what is done is kept, and {page.command} resumes"
        console.print(kept, soft_wrap=True)
        raise SystemExit(130) from None
    seconds = time.perf_counter() - start

    for failure in swept.failed:
        console.print(f"[red]failed[/red] {failure.job}: {failure.error}", soft_wrap=True)
    if swept.done:
        report(page, swept)
        console.print(f"{len(swept.done)} jobs in {seconds:.0f} s on {workers} processes")
    if swept.failed:
        console.print(f"{len(swept.failed)} jobs failed; to try them again: {page.command}")
        raise SystemExit(1)


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
