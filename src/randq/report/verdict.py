"""Whether the paper's claims about Figure 1 hold here.

Our medians are read again for resamples of the seeds: where fewer than 95% of these agree with the
answer, or where the runs at hand cannot tell, a claim is undecided.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from randq.experiments.figure1 import CAP, FIGURE1_AGENTS, Figure1Results, figure1_results
from randq.report import figure1
from randq.report.claims import IN_PAPER, MIN_LENGTHS, Claim, Medians, claims, paper_points
from randq.report.page import Answer, Page, Verdict, verdict_table
from randq.report.statistics import as_times, bootstrap_medians, wilson
from randq.sweep import CompiledJob, Results

RESAMPLES, AGREE = 2000, 0.95
MIN_SEEDS = 5
"""With fewer, nothing is decided."""
LUCK, LONG = 0.05, 50
"""An untrained network may be right by luck this often on chains from this length on."""


def report(page: Page, swept: Results) -> None:
    """Draw the figure, print which claims hold, and keep both in the folder."""
    results = figure1_results(swept.of(CompiledJob))
    picture = page.folder / "figure1.png"
    figure1.draw(results, picture)
    verdicts = judge(results)
    about = page.about
    if swept.failed:
        about += f"; {len(swept.failed)} jobs are missing"
    write_verdict(page.folder, results, verdicts, about, page.command)
    title = "The paper's claims about Figure 1 (episodes to solve)"
    page.console.print(verdict_table(title, verdicts))
    rules = page.folder / "verdict.md"
    page.console.print(f"The picture is {picture}, the rules are in {rules}", soft_wrap=True)


def judge(results: Figure1Results) -> list[Verdict]:
    """Every claim against these results."""
    verdicts = [_judge(claim, results) for claim in claims()]
    return [*verdicts[:8], _luck(results), *verdicts[8:]]


def _judge(claim: Claim, results: Figure1Results) -> Verdict:
    points = paper_points()
    published = {
        agent: np.array([[v for n, v in points[agent].items() if n >= claim.shortest]])
        for agent in claim.agents
    }
    censored = {agent: np.where(v >= CAP, np.inf, v) for agent, v in published.items()}
    paper = claim.show(Medians(censored, CAP)) if claim.action_map == "fixed" else "not shown"
    ours = results.lengths(claim.action_map, *claim.agents)
    lengths = [n for n in ours if n >= claim.shortest]

    def verdict(
        here: str, answer: Answer, agreement: float | None = None, why: str = ""
    ) -> Verdict:
        return Verdict(claim.says, claim.rule, paper, here, answer, agreement, why)

    if not lengths:
        return verdict("no runs", "undecided", why="no runs at such lengths")
    rng = np.random.default_rng(0)
    cells = {a: [results.cells[claim.action_map, a, n] for n in lengths] for a in claim.agents}
    budget = min(cell.budget for row in cells.values() for cell in row)
    medians = {
        agent: np.stack(
            [bootstrap_medians(as_times(cell.solved_at), RESAMPLES, rng) for cell in row], axis=1
        )
        for agent, row in cells.items()
    }
    values = claim.test(Medians(medians, budget))
    here = claim.show(Medians(medians, budget))
    seeds = min(len(cell.solved_at) for row in cells.values() for cell in row)
    if seeds < MIN_SEEDS or len(lengths) < claim.min_lengths:
        return verdict(here, "undecided", why=f"{len(lengths)} lengths x {seeds} seeds are too few")
    if np.isnan(values[0]):
        return verdict(here, "undecided", why=f"too many runs unsolved after {budget} episodes")
    agreement = float(np.mean(values[1:] == values[0]))
    if agreement < AGREE:
        return verdict(here, "undecided", agreement, "the seeds are too few to tell")
    return verdict(here, "holds" if values[0] == 1 else "does not hold", agreement)


def _luck(results: Figure1Results) -> Verdict:
    """The one claim about the task and not about an agent."""
    claim = "the task requires adequate exploration, especially with large chain lengths"
    rule = (
        f"of the untrained networks of the paper's four agents, at most {LUCK:.0%} are optimal"
        f" already at n ≥ {LONG} (95% interval)"
    )
    counts = [v for (a, n), v in results.untrained.items() if n >= LONG and a in IN_PAPER]
    optimal, networks = (sum(count) for count in zip(*counts, strict=True)) if counts else (0, 0)
    if not networks:
        why = f"no control at n ≥ {LONG}"
        return Verdict(claim, rule, "not shown", "no control", "undecided", None, why)
    low, high = wilson(optimal, networks)
    here = f"{optimal / networks:.1%} of {networks} (95%: {low:.1%} to {high:.1%})"
    answer: Answer = "holds" if high <= LUCK else "does not hold" if low > LUCK else "undecided"
    return Verdict(claim, rule, "not shown", here, answer, None)


@dataclass(frozen=True)
class Row:
    """One agent with one action map, over all lengths."""

    action_map: str
    agent: str
    lengths: int
    seeds: int
    solved: float
    """Share of all runs that solved their chain."""
    median: float | None
    """Median over lengths of the median over seeds; None is censored."""
    worst: float | None
    untrained: float | None
    """Share of untrained networks that are optimal already, over the control's lengths."""
    budget: int


def summary(results: Figure1Results) -> list[Row]:
    """How each agent did."""
    rows = []
    for action_map, agent in dict.fromkeys((m, a) for m, a, _ in results.cells):
        cells = [results.cells[action_map, agent, n] for n in results.lengths(action_map, agent)]
        medians = np.array([np.median(as_times(cell.solved_at)) for cell in cells])
        luck = [v for (a, _), v in results.untrained.items() if a == agent]
        shown = luck if action_map == "fixed" else []
        optimal, networks = (sum(v) for v in zip(*shown, strict=True)) if shown else (0, 0)
        rows.append(
            Row(
                action_map=action_map,
                agent=agent,
                lengths=len(cells),
                seeds=min(len(cell.solved_at) for cell in cells),
                solved=1 - float(np.mean([cell.censored for cell in cells])),
                median=_finite(np.median(medians)),
                worst=_finite(np.max(medians)),
                untrained=optimal / networks if networks else None,
                budget=cells[0].budget,
            )
        )
    return rows


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def write_verdict(
    out: Path, results: Figure1Results, verdicts: Sequence[Verdict], about: str, command: str
) -> None:
    """`verdict.md` for readers and `verdict.json` for scripts."""
    rows = summary(results)
    data = {
        "about": about,
        "command": command,
        "claims": [asdict(v) for v in verdicts],
        "agents": [asdict(row) for row in rows],
    }
    (out / "verdict.json").write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def shown(value: float | None, budget: int) -> str:
        return f"> {budget}" if value is None else f"{value:.0f}"

    def luck(row: Row) -> str:
        if row.action_map == "random":  # a coin for each state on the way, whatever the network
            return "2^-(n-1)"
        return "-" if row.untrained is None else f"{row.untrained:.1%}"

    lines = [
        "# Figure 1: what the paper says, and what was found",
        "",
        f"`{command}`: {about}.",
        "",
        "Numbers are episodes to solve: where the first streak of 100 optimal evaluations begins,",
        "as a median over seeds. A claim holds, or does not, if at least"
        f" {AGREE:.0%} of {RESAMPLES} resamples",
        f"of the seeds say so; with fewer than {MIN_SEEDS} seeds or {MIN_LENGTHS} lengths"
        " nothing is decided.",
        "",
        "| claim | rule | paper | here | verdict |",
        "|---|---|---|---|---|",
        *(
            f"| {v.claim} | {v.rule} | {v.paper} | {v.here} "
            f"| **{v.verdict}**{f' ({v.why})' if v.why else ''} |"
            for v in verdicts
        ),
        "",
        "| action map | agent | lengths x seeds | runs solved | median over lengths | worst length "
        "| untrained networks already optimal |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {r.action_map} | {FIGURE1_AGENTS.get(r.agent, r.agent)} | {r.lengths} x {r.seeds} "
            f"| {r.solved:.1%} | {shown(r.median, r.budget)} | {shown(r.worst, r.budget)} "
            f"| {luck(r)} |"
            for r in rows
        ),
    ]
    (out / "verdict.md").write_text("\n".join(lines) + "\n")
