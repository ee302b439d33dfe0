"""The table of DeepSea: how many seeds of each agent solve each size."""

from randq.report.page import Page, episodes, markdown, terminal
from randq.report.statistics import as_times, quantile
from randq.sweep import CompiledJob, Result, Results

COLUMNS = (
    "agent",
    "size",
    "solved",
    "median (quartiles)",
    "solved, bsuite",
    "median (quartiles), bsuite",
    "seconds",
)


def report(page: Page, swept: Results) -> None:
    """Print the table, and keep it as `deep_sea.md`."""
    rows = [_row(job, result) for job, result in swept.of(CompiledJob)]
    missing = f"; {len(swept.failed)} jobs are missing" if swept.failed else ""
    lines = [
        "# DeepSea",
        "",
        f"`{page.command}`: {page.about}{missing}.",
        "",
        "A seed has solved it where the first streak of 100 optimal evaluations begins, and by",
        "bsuite's definition where more than a tenth of all training episodes were good. Censored",
        "runs are later than the budget. Seconds: all seeds, with compilation, on one core.",
        "",
        *markdown(COLUMNS, rows),
    ]
    path = page.folder / "deep_sea.md"
    path.write_text("\n".join(lines) + "\n")
    page.console.print(terminal("DeepSea", COLUMNS, rows))
    page.console.print(f"The table is also in {path}", soft_wrap=True)


def _row(job: CompiledJob, result: Result) -> tuple[str, ...]:
    cells = [job.agent, str(job.env_settings["size"])]
    for measure in ("solved_at", "solved_training"):
        times = as_times([row[measure] for row in result["seeds"]])
        low, middle, high = (
            episodes(quantile(times, share), job.episodes) for share in (0.25, 0.5, 0.75)
        )
        solved = sum(times <= job.episodes)
        cells += [f"{solved}/{len(times)}", f"{middle} ({low} to {high})"]
    return (*cells, f"{result['seconds']:.0f}")
