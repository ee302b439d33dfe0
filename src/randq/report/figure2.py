"""Figure 2, MountainCar: our curves over the paper's, numbers of the end, and which claims hold."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from randq.experiments.figure1 import FIGURE1_AGENTS as NAMES
from randq.experiments.figure2 import BUDGET, LAST, SHOWN, Runs, figure2_results
from randq.report.claims import IN_PAPER as IN_FIGURE1
from randq.report.figure1 import COLOURS, GRID
from randq.report.figures import INK, figure
from randq.report.page import (
    Page,
    Verdict,
    episodes,
    markdown,
    terminal,
    verdict_lines,
    verdict_table,
)
from randq.report.statistics import as_times, quantile, t_interval, welch
from randq.report.verdict import MIN_SEEDS
from randq.sweep import CompiledJob, Results

IN_PAPER: Mapping[str, str] = {**IN_FIGURE1, "ddqn": "eps-greedy DDQN"}
"""What the agents are called in figure2.csv."""
AIM = -200.0
"""The return that we want of MNF-DQN: better than the paper's by far."""

# The paper


@dataclass(frozen=True)
class Curve:
    """A curve of the paper, read from its figure."""

    points: np.ndarray
    """Episodes."""
    returns: np.ndarray

    @property
    def last(self) -> float:
        """Mean over its last episodes."""
        return float(self.returns[self.points > self.points[-1] - LAST].mean())


def paper_curves() -> dict[str, Curve]:
    """Figure 2 as published, by agent. Where a curve is hidden, it begins later or is guessed."""
    text = (files("randq") / "data" / "figure2.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    curves = {}
    for agent, name in IN_PAPER.items():
        own = [row for row in rows if row["agent"] == name]
        points = np.array([int(row["episode"]) for row in own])
        curves[agent] = Curve(points, np.array([float(row["mean_return"]) for row in own]))
    return curves


def paper_order() -> str:
    """Which agent ends where in the paper, the best first."""
    ends = {agent: curve.last for agent, curve in paper_curves().items()}
    best_first = sorted(ends, key=lambda agent: -ends[agent])
    return ", ".join(f"{NAMES[agent]} {ends[agent]:.0f}" for agent in best_first)


# The page


def report(page: Page, swept: Results) -> None:
    """Draw the figure, print numbers and verdicts, and keep all of it in the folder."""
    results = figure2_results(swept.of(CompiledJob))
    picture, path = page.folder / "figure2.png", page.folder / "figure2.md"
    draw(results, picture)
    rows, verdicts = summary(results), judge(results)
    missing = f"; {len(swept.failed)} jobs are missing" if swept.failed else ""
    lines = [
        "# Figure 2: MountainCar",
        "",
        f"`{page.command}`: {page.about}{missing}.",
        "",
        "![Evaluation return, and seeds that reached the goal](figure2.png)",
        "",
        f"Returns are means over the last {LAST} episodes, with Student's 95% interval over seeds.",
        "Some seeds may learn and others not at all; then intervals from few seeds are rough.",
        "Evaluations have all noise disabled; training returns have it. A first goal that never",
        "came is later than the budget. The curves are running means, which end at these numbers;",
        "the paper's look smoothed too, but it does not say how.",
        "",
        *markdown(COLUMNS, rows),
        "",
        f"A claim is judged on all seeds. With fewer than {MIN_SEEDS}, or with another task or a",
        "smaller budget than the paper's, nothing is decided. The paper's numbers are read from",
        f"its figure, to within about 5. It ends with {paper_order()}.",
        "",
        *verdict_lines(verdicts),
    ]
    path.write_text("\n".join(lines) + "\n")
    page.console.print(terminal(f"MountainCar, last {LAST} episodes", COLUMNS, rows))
    title = f"Claims about Figure 2 (return, last {LAST} episodes)"
    page.console.print(verdict_table(title, verdicts))
    page.console.print(f"The picture is {picture}, the rules are in {path}", soft_wrap=True)


COLUMNS = (
    "agent",
    "seeds",
    "evaluation (95% interval)",
    "training",
    "paper",
    "reached the goal",
    "first goal (median)",
)


def summary(results: Mapping[str, Runs]) -> list[tuple[str, ...]]:
    """For each agent a row on the seeds that are shown, and one on all if there are more."""
    curves = paper_curves()
    rows: list[tuple[str, ...]] = []
    for agent, runs in results.items():
        for some in (runs.first(SHOWN), runs)[: 1 + (len(runs.seeds) > SHOWN)]:
            times = as_times(some.first_good)
            rows.append(
                (
                    NAMES[agent],
                    str(len(some.seeds)),
                    _with_interval(some.evaluated_last()),
                    f"{some.trained_last():.0f}",
                    f"{curves[agent].last:.0f}",
                    f"{np.isfinite(times).sum()}/{len(times)}",
                    episodes(quantile(times, 0.5), some.budget),
                )
            )
    return rows


def _with_interval(values: np.ndarray) -> str:
    low, high = t_interval(values)
    spread = "no interval" if math.isinf(low) else f"{low:.0f} to {high:.0f}"
    return f"{values.mean():.0f} ({spread})"


# Verdicts


def judge(results: Mapping[str, Runs]) -> list[Verdict]:
    """The paper's "performs better", against its own number and each other agent; and our aim."""
    paper = {agent: curve.last for agent, curve in paper_curves().items()}
    better = partial(_above, results, paper["mnf-dqn"])
    return [
        better("MNF-DQN's return is better than in the paper", paper["mnf-dqn"]),
        *(_ahead(results, paper, other) for other in ("ddqn", "bbqn", "noisy-dqn")),
        better(f"our aim, not the paper's: MNF-DQN's return is {AIM:.0f} or better", AIM),
    ]


def _above(results: Mapping[str, Runs], paper: float, claim: str, bound: float) -> Verdict:
    """MNF-DQN against a number."""
    verdict = partial(Verdict, claim, f"the whole interval is above {bound:.0f}", f"{paper:.0f}")
    here = _here(results, "mnf-dqn")
    if why := _undecidable(results, "mnf-dqn"):
        return verdict(here, "undecided", why=why)
    values = results["mnf-dqn"].evaluated_last()
    low, high = t_interval(values)
    if low < bound < high:
        side = "above" if values.mean() > bound else "below"
        return verdict(here, "undecided", why=f"point estimate {side}, interval not")
    return verdict(here, "holds" if low >= bound else "does not hold")


def _ahead(results: Mapping[str, Runs], paper: Mapping[str, float], other: str) -> Verdict:
    """MNF-DQN against another agent."""
    verdict = partial(
        Verdict,
        f"MNF-DQN performs better than {NAMES[other]}",
        "Welch's interval of the difference is above 0",
        f"{paper['mnf-dqn']:.0f} against {paper[other]:.0f}",
    )
    here = f"{_here(results, 'mnf-dqn')} against {_here(results, other)}"
    if why := _undecidable(results, "mnf-dqn") or _undecidable(results, other):
        return verdict(here, "undecided", why=why)
    low, high = welch(results["mnf-dqn"].evaluated_last(), results[other].evaluated_last())
    here += f"; difference {low:.0f} to {high:.0f}"
    if low <= 0 <= high:
        return verdict(here, "undecided", why="the interval of the difference holds 0")
    return verdict(here, "holds" if low > 0 else "does not hold")


def _undecidable(results: Mapping[str, Runs], agent: str) -> str:
    """Why runs of this agent decide nothing; empty if they do."""
    if agent not in results:
        return f"no runs of {NAMES[agent]}"
    if not results[agent].published:
        return "task or budget are not the paper's"
    seeds = len(results[agent].seeds)
    return f"{seeds} seeds of {NAMES[agent]} are too few" if seeds < MIN_SEEDS else ""


def _here(results: Mapping[str, Runs], agent: str) -> str:
    return _with_interval(results[agent].evaluated_last()) if agent in results else "no runs"


# The picture

DASHED = (0, (4, 2))
OTHERS = "#c9c9c9"


def draw(results: Mapping[str, Runs], path: Path) -> None:
    """Left a panel of returns for each agent, right how many seeds have ever reached the goal."""
    with figure(path, 11.0, 5.4) as fig:
        halves: Any = fig.subfigures(1, 2, width_ratios=[1.45, 1], wspace=0.03)
        left, right = halves
        title = {"x": 0.01, "ha": "left", "fontsize": 10.5, "fontweight": "bold"}
        seeds = _seeds(results, SHOWN)
        left.suptitle(f"MountainCar: evaluation return, all noise disabled ({seeds})", **title)
        axes = left.subplots(-(-len(results) // 2), 2, sharex=True, sharey=True, squeeze=False)
        for ax in axes.flat[len(results) :]:
            ax.set_axis_off()
        for ax, agent in zip(axes.flat, results, strict=False):
            _returns(ax, agent, results)
        for ax in axes[-1]:
            ax.set_xlabel("episode")
        right.suptitle(f"Share of {_seeds(results)} that have reached the goal", **title)
        _reached(right.subplots(), results)
        _legend(fig)


def _returns(ax: Any, agent: str, results: Mapping[str, Runs]) -> None:
    for other, runs in results.items():
        shown, own = runs.first(SHOWN), other == agent
        # Each seed's running mean: where it ends it is the number of the table.
        curves = running_mean(shown.evaluations, shown.window)
        style = {"color": COLOURS[agent], "lw": 2.2} if own else {"color": OTHERS, "lw": 1.0}
        ax.plot(shown.points, curves.mean(axis=0), zorder=3 + own, clip_on=False, **style)
        if own and len(shown.seeds) > 1:
            low, high = np.array([t_interval(column) for column in curves.T]).T
            ax.fill_between(shown.points, low, high, color=COLOURS[agent], alpha=0.18, lw=0)
    paper = paper_curves()[agent]
    ax.plot(paper.points, paper.returns, color=COLOURS[agent], lw=1.1, ls=DASHED, zorder=3.5)
    ax.set_title(NAMES[agent], color=COLOURS[agent], fontweight="bold")
    ax.set_xlim(0, BUDGET)
    ax.set_ylim(-1000, 0)
    ax.set_yticks([-1000, -750, -500, -250, 0])
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_axisbelow(True)


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Along the second axis; the first ones are means of what there is."""
    sums = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    end = np.arange(1, sums.shape[1])
    start = np.maximum(end - window, 0)
    return (sums[:, end] - sums[:, start]) / (end - start)


def _reached(ax: Any, results: Mapping[str, Runs]) -> None:
    ends = {}
    for i, (agent, runs) in enumerate(results.items()):
        times = np.sort(as_times(runs.first_good))
        known = times[np.isfinite(times)]
        x = [1, *known, runs.budget]
        y = [0, *np.arange(1, len(known) + 1), len(known)]
        share = np.array(y) / len(times)
        # Thinner ones over thicker ones: where some coincide, all can be seen.
        width = 3.6 - 0.7 * i
        ax.step(x, share, where="post", color=COLOURS[agent], lw=width, clip_on=False, zorder=3)
        ends[agent] = (share[-1], f"{NAMES[agent]}\n{len(known)} of {len(times)}")
    _end_labels(ax, ends)
    ax.set_xscale("log")
    ax.set_xlim(1, BUDGET)
    ax.set_xticks([1, 10, 100, BUDGET], ["1", "10", "100", str(BUDGET)])
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    ax.set_xlabel("training episode (log scale)")
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_axisbelow(True)


def _end_labels(ax: Any, ends: Mapping[str, tuple[float, str]], gap: float = 0.1) -> None:
    """Each agent's text at the right, as high as its line ends, or beside the ones next to it."""
    best_first = sorted(ends, key=lambda agent: -ends[agent][0])
    heights = [ends[agent][0] for agent in best_first]
    for i in reversed(range(len(heights) - 1)):  # up, from the lowest one
        heights[i] = max(heights[i], heights[i + 1] + gap)
    ceiling = 1.0
    for agent, height in zip(best_first, heights, strict=True):  # and down, from the highest one
        height, colour = min(height, ceiling), COLOURS[agent]
        ax.text(1.1 * BUDGET, height, ends[agent][1], color=colour, va="center", weight="bold")
        ceiling = height - gap


def _seeds(results: Mapping[str, Runs], most: int | None = None) -> str:
    counts = sorted({len(runs.seeds[:most]) for runs in results.values()})
    return " or ".join(map(str, counts)) + " seeds"


def _legend(fig: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        (Patch(color=INK, alpha=0.18, lw=0), Line2D([], [], color=INK, lw=2.2)),
        Line2D([], [], color=INK, lw=1.1, ls=DASHED),
        Line2D([], [], color=OTHERS, lw=1.0),
    ]
    labels = [
        f"here: each seed's mean over the last {LAST} episodes; mean of the seeds, 95% interval",
        "the paper's curve",
        "the other agents here",
    ]
    fig.legend(handles, labels, loc="outside lower center", ncols=3)
