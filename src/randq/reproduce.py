"""`randq reproduce`: a figure of the paper from nothing, by one command that can be resumed."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

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
from randq.experiments import FIGURE1_SCALES, figure1_results
from randq.report import figure1, verdict
from randq.sweep import local

Figure = Literal["figure1"]
Scale = Literal["smoke", "quick", "paper"]


@dataclass(frozen=True)
class ReproduceCommand:
    """Run a figure of the paper, or resume it: the picture, and which of its claims hold."""

    figure: tyro.conf.Positional[Figure] = "figure1"
    """Which figure."""
    scale: Scale = "quick"
    """smoke: shows that it works, decides nothing; quick: minutes; paper: every chain length."""
    out: Path | None = None
    """Folder for results and picture; by default results/FIGURE-SCALE."""
    workers: int | None = None
    """Worker processes; by default one for each core."""

    def check(self) -> None:
        """Refuse what cannot work, before anything runs."""
        one_of("figure", self.figure, get_args(Figure))
        one_of("scale", self.scale, get_args(Scale))
        if self.workers is not None:
            whole("workers", self.workers, at_least=1)
        writable_folder("out", self.folder)

    @property
    def folder(self) -> Path:
        return self.out or Path("results") / f"{self.figure}-{self.scale}"

    @property
    def command(self) -> str:
        """What to type to get this again."""
        where = f" --out {self.out}" if self.out else ""
        return f"randq reproduce {self.figure} --scale {self.scale}{where}"

    def run(self, console: Console) -> None:
        scale = FIGURE1_SCALES[self.scale]
        jobs = scale.jobs()
        workers = self.workers or local.default_workers()
        console.print(f"{self.command}: {scale.about}")
        start = time.perf_counter()
        try:
            with _progress(console) as progress:
                task = progress.add_task("", total=len(jobs), last="")

                def watch(at: sweep.Progress) -> None:
                    progress.update(task, completed=at.done + at.failed, last=at.last)

                engine = partial(local.run, workers=workers)
                swept = sweep.sweep(jobs, self.folder, engine, watch)
        except KeyboardInterrupt:
            kept = f"Stopped; what is done is kept, and {self.command} resumes"
            console.print(kept, soft_wrap=True)
            raise SystemExit(130) from None
        seconds = time.perf_counter() - start

        for failure in swept.failed:
            console.print(f"[red]failed[/red] {failure.job}: {failure.error}", soft_wrap=True)
        if swept.done:
            self._report(console, swept)
            console.print(f"{len(swept.done)} jobs in {seconds:.0f} s on {workers} processes")
        if swept.failed:
            console.print(f"{len(swept.failed)} jobs failed; to try them again: {self.command}")
            raise SystemExit(1)

    def _report(self, console: Console, swept: sweep.Results) -> None:
        results = figure1_results(swept.done)
        picture = self.folder / "figure1.png"
        figure1.draw(results, picture)
        verdicts = verdict.judge(results)
        about = FIGURE1_SCALES[self.scale].about
        if swept.failed:
            about += f"; {len(swept.failed)} jobs are missing"
        verdict.write_verdict(self.folder, results, verdicts, about, self.command)
        console.print(verdict.verdict_table(verdicts))
        rules = self.folder / "verdict.md"
        console.print(f"The picture is {picture}, the rules are in {rules}", soft_wrap=True)


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
