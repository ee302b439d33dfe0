"""The table of a search of settings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from randq.experiments.search import (
    LAST,
    SEARCHES,
    GymSearch,
    Score,
    Search,
    Trial,
    best_first,
    last_returns,
    scores,
)
from randq.report.page import Page, episodes, markdown, terminal
from randq.sweep import CompiledJob, GymJob, Results

ORDER = {
    "solved_at": (
        "The best trial of each agent comes first: the one with the lowest mean of episodes to",
        "solve over all seeds and places, where a censored run counts as its whole budget.",
    ),
    "last_return": (
        "The best trial of each agent comes first: the one with the highest mean return of the",
        f"evaluations of the last {LAST} episodes, all noise disabled.",
    ),
}


@dataclass(frozen=True)
class Row:
    """One trial of one agent."""

    agent: str
    trial: Trial
    cells: Sequence[str]
    rank: float
    """The lowest is the best."""


@dataclass(frozen=True)
class Shown:
    """A search as a table."""

    budget: str
    order: Sequence[str]
    """What makes a trial better than another."""
    heads: Sequence[str]
    rows: Sequence[Row]


def report(name: str, page: Page, swept: Results) -> None:
    """Print the trials of each agent, the best first, and keep them as `search.md`."""
    search = SEARCHES[name]
    shown = _compiled(search, swept) if isinstance(search, Search) else _gym(search, swept)
    presets = {
        (job.agent, tuple(job.overrides.items()))
        for job in search.jobs()
        if job.agent_settings == replace(job, overrides={}).agent_settings
    }
    columns = ("agent", "settings", *shown.heads)
    rows = []
    for agent in search.grids:
        own = [row for row in shown.rows if row.agent == agent]
        for row in sorted(own, key=lambda row: row.rank):
            words = ", ".join(f"{key} {value}" for key, value in row.trial)
            words += " (preset)" if (agent, row.trial) in presets else ""
            rows.append((agent, words, *row.cells))
    lines = [
        f"# Search of settings: {name}",
        "",
        f"`{page.command}`: {page.about}; seeds {search.seeds[0]} to {search.seeds[-1]},"
        f" {shown.budget}.",
        "",
        *shown.order,
        "",
        *markdown(columns, rows),
    ]
    path = page.folder / "search.md"
    path.write_text("\n".join(lines) + "\n")
    page.console.print(terminal(f"Search: {name}", columns, rows))
    page.console.print(f"The table is also in {path}", soft_wrap=True)


def _compiled(search: Search, swept: Results) -> Shown:
    places = [", ".join(f"{k} {v}" for k, v in place.items()) for place in search.places]
    failed = "censored" if search.measure == "solved_at" else "never a success"
    return Shown(
        f"{search.episodes} episodes",
        ORDER[search.measure],
        [*(f"{place}: median, {failed}".removeprefix(": ") for place in places), "mean"],
        [
            Row(
                agent,
                trial,
                [*_cells(search, score), f"{score.mean:.0f}"],
                best_first(search, score),
            )
            for (agent, trial), score in scores(search, swept.of(CompiledJob)).items()
        ],
    )


def _cells(search: Search, score: Score) -> list[str]:
    def shown(median: float) -> str:
        solved = search.measure == "solved_at"
        return episodes(median, search.episodes) if solved else f"{median:.0f}"

    pairs = zip(score.medians, score.failed, strict=True)
    return [f"{shown(median)}, {failed}/{len(search.seeds)}" for median, failed in pairs]


def _gym(search: GymSearch, swept: Results) -> Shown:
    found = last_returns(search, swept.of(GymJob))
    rows = []
    for (agent, trial), seeds in found.items():
        mean = float(np.mean(list(seeds.values())))
        cells = [f"{seeds[seed]:.0f}" if seed in seeds else "-" for seed in search.seeds]
        rows.append(Row(agent, trial, [*cells, f"{mean:.0f}"], -mean))
    return Shown(
        f"{search.steps:,} steps",
        (
            "The best trial of each agent comes first: the one with the highest mean over seeds of",
            *_judged(search),
        ),
        [*(f"seed {seed}" for seed in search.seeds), "mean"],
        rows,
    )


def _judged(search: GymSearch) -> tuple[str, ...]:
    every, played = search.evaluate_every, search.evaluation_episodes
    if search.measure == "evaluations":
        return (
            f"a run's last {search.last} evaluations. There is one every {every:,} steps, with",
            f"{played} episodes, all noise disabled.",
        )
    last = search.steps - search.first_step
    return (f"the returns in training of the episodes that ended in its last {last:,} steps.",)
