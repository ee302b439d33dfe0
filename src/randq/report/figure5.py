"""Figure 5, MuJoCo: our curves over the paper's, numbers at the same steps, which claims hold."""

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from randq.experiments.figure5 import (
    EPOCH,
    FIGURE5_ENVS,
    LAST,
    STEPS,
    Curves,
    Figure5Results,
    figure5_results,
)
from randq.experiments.figure5 import FIGURE5_AGENTS as NAMES
from randq.report.figure1 import GRID
from randq.report.figures import INK, figure
from randq.report.page import Page, Verdict, markdown, terminal, verdict_lines, verdict_table
from randq.report.statistics import t_interval, welch
from randq.report.verdict import MIN_SEEDS
from randq.sweep import GymJob, Results

CHEETAH, *OTHERS = FIGURE5_ENVS
MNF, OU = "mnf-ddpg", "ddpg"
MUCH = 0.5
"""A difference of this share of a return is much. In the paper it is at most 40% where it says that
there is not much of it, and 78% where it says that MNF-DDPG is better."""
Places = Sequence[tuple[str, str]]
"""Environments and agents that a claim is about."""

# The paper


@dataclass(frozen=True)
class Published:
    """A curve of the paper, read from its figure."""

    epochs: np.ndarray
    """Counted from 1, as ours: the paper's epoch 0 is the first one."""
    returns: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def last(self, epochs: int) -> float:
        """Mean over the last of so many epochs, or of those nearest to it that it has."""
        epochs = int(np.clip(epochs, self.epochs[0], self.epochs[-1]))
        chosen = (self.epochs > epochs - LAST) & (self.epochs <= epochs)
        return float(self.returns[chosen].mean())

    @property
    def end(self) -> float:
        return self.last(STEPS // EPOCH)


@cache
def published() -> dict[tuple[str, str], Published]:
    """Figure 5 as published, by environment (as it is called here) and agent."""
    text = (files("randq") / "data" / "figure5.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    curves = {}
    for env, theirs in FIGURE5_ENVS.items():
        for agent, name in NAMES.items():
            own = [r for r in rows if (r["environment"], r["agent"]) == (theirs, name)]
            mean, low, high = (
                np.array([float(row[column]) for row in own])
                for column in ("mean_return", "low", "high")
            )
            epochs = np.array([int(row["epoch"]) + 1 for row in own])
            curves[env, agent] = Published(epochs, mean, low, high)
    return curves


# The page


def report(page: Page, swept: Results) -> None:
    """Draw the figure, print numbers and verdicts, and keep all of it in the folder."""
    results = figure5_results(swept.so_far(GymJob))
    if not results:
        page.console.print("No run has finished an epoch yet: there is nothing to show")
        return
    picture, path = page.folder / "figure5.png", page.folder / "figure5.md"
    draw(results, picture)
    rows, verdicts = summary(results), judge(results)
    missing = f"; {len(swept.failed)} jobs failed" if swept.failed else ""
    begun = len(swept.unfinished)
    unfinished = f"; {begun} runs are not finished, and shown as far as they are" if begun else ""
    lines = [
        "# Figure 5: MuJoCo",
        "",
        f"`{page.command}`: {page.about}{missing}{unfinished}.",
        "",
        "![Evaluation return over epochs, ours over the paper's](figure5.png)",
        "",
        f"An epoch is {EPOCH:,} steps; evaluations have all noise disabled. Returns are means over",
        f"the last {LAST} epochs up to the one that all seeds have reached (a seed with fewer than",
        f"{LAST} is drawn but not counted), with Student's 95% interval over seeds. The paper's",
        "numbers are read from its figure; it ran v1 of the environments, which are v5 here.",
        "",
        *markdown(COLUMNS, rows),
        "",
        "A claim is judged at the steps that all runs it is about have reached. With fewer than",
        f"{MIN_SEEDS} seeds or {LAST} epochs, or another task, nothing is decided.",
        "",
        *verdict_lines(verdicts),
    ]
    path.write_text("\n".join(lines) + "\n")
    page.console.print(terminal(f"MuJoCo, mean of {LAST} epochs", COLUMNS, rows))
    page.console.print(verdict_table(f"Claims about Figure 5 (return, {LAST} epochs)", verdicts))
    page.console.print(f"The picture is {picture}, the rules are in {path}", soft_wrap=True)


COLUMNS = (
    "agent",
    "environment",
    "seeds",
    "steps",
    "return (95% interval)",
    "paper, same steps",
    "paper, end",
)


def summary(results: Figure5Results) -> list[tuple[str, ...]]:
    """A row for each agent in each environment."""
    rows: list[tuple[str, ...]] = []
    for (env, agent), curves in sorted(results.items(), key=_as_in_the_paper):
        paper = published().get((env, agent))
        same = paper is not None and curves.epoch == EPOCH
        rows.append(
            (
                NAMES.get(agent, agent),
                env,
                str(len(curves.seeds)),
                _steps(curves),
                _with_interval(curves.last(curves.epochs)),
                f"{paper.last(curves.epochs):.0f}" if paper and same else "-",
                f"{paper.end:.0f}" if paper else "-",
            )
        )
    return rows


def _as_in_the_paper(entry: tuple[tuple[str, str], Curves]) -> tuple[int, int]:
    (env, agent), _ = entry
    envs, agents = list(FIGURE5_ENVS), list(NAMES)
    return (
        envs.index(env) if env in envs else len(envs),
        agents.index(agent) if agent in agents else len(agents),
    )


def _steps(curves: Curves) -> str:
    """How many seeds are how far."""
    counts = Counter(curve.steps for curve in curves.seeds)
    far_first = sorted(counts.items(), reverse=True)
    if len(far_first) == 1:
        return f"{far_first[0][0]:,}"
    return ", ".join(f"{count} at {steps:,}" for steps, count in far_first)


def _with_interval(values: np.ndarray) -> str:
    low, high = t_interval(values)
    spread = "no interval" if math.isinf(low) else f"{low:.0f} to {high:.0f}"
    return f"{values.mean():.0f} ({spread})"


# Verdicts


def judge(results: Figure5Results) -> list[Verdict]:
    """The paper's sentences about Figure 5, and our aim."""
    return [
        *(_ahead(results, rival) for rival in (OU, "bbqn-ddpg", "noisy-ddpg")),
        *(_alike(results, env) for env in OTHERS),
        *(_reaches_the_paper(results, env) for env in FIGURE5_ENVS),
    ]


def _ahead(results: Figure5Results, rival: str) -> Verdict:
    """The MNF-DDPG agent performs better than all the other baselines in HalfCheetah."""
    claim = f"MNF-DDPG performs better than {NAMES[rival]} on HalfCheetah"
    verdict = partial(Verdict, claim, "Welch's interval of the difference is above 0")
    at = [(CHEETAH, MNF), (CHEETAH, rival)]
    epochs = _epochs(results, at)
    theirs = " against ".join(f"{_paper(place, epochs):.0f}" for place in at)
    if why := _undecidable(results, at):
        return verdict(theirs, _here(results, at), "undecided", why=why)
    ours, others = (results[place].last(epochs) for place in at)
    low, high = welch(ours, others)
    here = f"{_here(results, at)}; difference {low:.0f} to {high:.0f}"
    if low <= 0 <= high:
        why = "the interval of the difference holds 0"
        return verdict(theirs, here, "undecided", why=why)
    return verdict(theirs, here, "holds" if low > 0 else "does not hold", why=_early(epochs))


def _alike(results: Figure5Results, env: str) -> Verdict:
    """In the other environments there is not much difference between the exploration methods."""
    at = [(env, agent) for agent in NAMES]
    epochs = _epochs(results, at)
    paper = {agent: _paper((env, agent), epochs) for agent in NAMES}
    verdict = partial(
        Verdict,
        f"there is not much difference between the agents on {_short(env)}",
        f"Welch's interval of each difference from OU-noise DDPG is within {MUCH:.0%} of that"
        f" agent's return (MNF-DDPG on HalfCheetah in the paper: {_paper_gap(CHEETAH, MNF):+.0%})",
        ", ".join(f"{NAMES[a]} {value:.0f}" for a, value in paper.items()),
    )
    if why := _undecidable(results, at):
        return verdict(_here(results, at), "undecided", why=why)
    base = results[env, OU].last(epochs)
    most = MUCH * abs(base.mean())
    gaps = {a: welch(results[env, a].last(epochs), base) for a in NAMES if a != OU}
    here = f"{_at(epochs)}, difference from {base.mean():.0f}: " + ", ".join(
        f"{NAMES[a]} {low:.0f} to {high:.0f}" for a, (low, high) in gaps.items()
    )
    if any(low > most or high < -most for low, high in gaps.values()):
        return verdict(here, "does not hold", why=_early(epochs))
    if all(-most <= low and high <= most for low, high in gaps.values()):
        return verdict(here, "holds", why=_early(epochs))
    return verdict(here, "undecided", why="an interval is wider than that")


def _paper_gap(env: str, agent: str) -> float:
    """How far an agent ends above OU-noise DDPG in the paper, as a share of that."""
    return published()[env, agent].end / published()[env, OU].end - 1


def _reaches_the_paper(results: Figure5Results, env: str) -> Verdict:
    """Our aim: at the same number of steps MNF-DDPG is at or above the paper's curve."""
    at = [(env, MNF)]
    epochs = _epochs(results, at)
    bound = _paper((env, MNF), epochs)
    verdict = partial(
        Verdict,
        f"our aim, not the paper's: MNF-DDPG is at or above the paper's curve on {_short(env)}",
        "the whole interval is at or above the paper's mean at the same steps",
        f"{bound:.0f}",
    )
    if why := _undecidable(results, at):
        return verdict(_here(results, at), "undecided", why=why)
    values = results[env, MNF].last(epochs)
    low, high = t_interval(values)
    if low < bound <= high:
        side = "at or above" if values.mean() >= bound else "below"
        why = f"point estimate {side}, interval not"
        return verdict(_here(results, at), "undecided", why=why)
    answer: Any = "holds" if low >= bound else "does not hold"
    return verdict(_here(results, at), answer, why=_early(epochs))


def _paper(place: tuple[str, str], epochs: int) -> float:
    """What the paper has at the same steps, or at its end where nothing is to be compared."""
    return published()[place].last(epochs or STEPS // EPOCH)


def _epochs(results: Figure5Results, at: Places) -> int:
    """As far as all that a claim is about has come; 0 if some of it is missing."""
    return min(results[place].epochs if place in results else 0 for place in at)


def _undecidable(results: Figure5Results, at: Places) -> str:
    """Why these runs decide nothing; empty if they do."""
    for env, agent in at:
        if (env, agent) not in results:
            return f"no runs of {NAMES[agent]} on {_short(env)}"
    for place in at:
        if results[place].epoch != EPOCH:
            return f"epochs are not the paper's {EPOCH:,} steps"
        if results[place].epochs < LAST:
            return f"fewer than {LAST} epochs of {NAMES[place[1]]}"
        if (seeds := len(results[place].counted)) < MIN_SEEDS:
            return f"{seeds} seeds of {NAMES[place[1]]} are too few"
    return ""


def _here(results: Figure5Results, at: Places) -> str:
    if not any(place in results for place in at):
        return "no runs"
    epochs = _epochs(results, at)
    words = [
        _with_interval(results[place].last(epochs or results[place].epochs))
        if place in results
        else "no runs"
        for place in at
    ]
    return (f"{_at(epochs)}: " if epochs else "") + " against ".join(words)


def _at(epochs: int) -> str:
    return f"at {epochs * EPOCH:,} steps"


def _early(epochs: int) -> str:
    """A word of caution on runs that are shorter than the paper's."""
    return "" if epochs * EPOCH >= STEPS else f"{_at(epochs)}, of the paper's {STEPS:,}"


def _short(env: str) -> str:
    return env.partition("-")[0]


# The picture

COLOURS = {
    "mnf-ddpg": "#2f6db3",
    "bbqn-ddpg": "#2a9d8f",
    "noisy-ddpg": "#b5532a",
    "ddpg": "#8a4fa3",
}
DASHED = (0, (4, 2))


def draw(results: Figure5Results, path: Path) -> None:
    """A panel for each environment: our curves over the paper's."""
    found = dict(sorted(results.items(), key=_as_in_the_paper))
    envs = list(dict.fromkeys(env for env, _ in found))
    agents = [agent for agent in NAMES if any((env, agent) in found for env in envs)]
    with figure(path, 7.4 if len(envs) == 1 else 4.2 * len(envs), 4.6) as fig:
        for ax, env in zip(fig.subplots(1, len(envs), squeeze=False)[0], envs, strict=True):
            own = [curve for (e, _), curves in found.items() if e == env for curve in curves.seeds]
            shown = min(STEPS // EPOCH, 2 * max(curve.epochs for curve in own))
            for agent in reversed(agents):  # the first one on top
                _curves(ax, (env, agent), found.get((env, agent)), shown)
            ax.set_xlim(0, shown)
            epoch = next(curves.epoch for (e, _), curves in found.items() if e == env)
            ax.set_title(env, fontweight="bold")
            ax.set_xlabel(f"epoch ({epoch:,} steps)")
            ax.grid(axis="y", color=GRID, lw=0.6)
            ax.set_axisbelow(True)
        fig.axes[0].set_ylabel("return of an evaluation, all noise disabled")
        _legend(fig, agents, found, columns=3 if len(envs) == 1 else 4)


def _curves(ax: Any, place: tuple[str, str], curves: Curves | None, shown: int) -> None:
    """One agent in one environment, and the paper's as far as it is shown."""
    colour = COLOURS[place[1]]
    if (paper := published().get(place)) is not None:
        x, *y = (v[paper.epochs <= shown] for v in (paper.epochs, paper.low, paper.high))
        ax.fill_between(x, *y, color=colour, alpha=0.08, lw=0)
        ax.plot(x, paper.returns[: len(x)], color=colour, lw=1.2, ls=DASHED, zorder=6)
    if curves is not None:
        for curve in curves.seeds:
            x = np.arange(1, curve.epochs + 1)
            ax.plot(x, curve.returns, color=colour, lw=0.6, alpha=0.35, zorder=4)
        x = np.arange(1, curves.epochs + 1)
        ax.plot(x, curves.mean, color=colour, lw=2.2, zorder=5, solid_capstyle="round")


def _legend(fig: Any, agents: Sequence[str], results: Figure5Results, columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def seeds(agent: str) -> str:
        counts = sorted({len(curves.seeds) for (_, a), curves in results.items() if a == agent})
        return " or ".join(map(str, counts)) + (" seed" if counts == [1] else " seeds")

    handles: list[Any] = [Line2D([], [], color=COLOURS[agent], lw=2.2) for agent in agents]
    labels = [f"{NAMES[agent]} ({seeds(agent)})" for agent in agents]
    handles += [
        Line2D([], [], color=INK, lw=2.2),
        Line2D([], [], color=INK, lw=0.6, alpha=0.55),
        (Patch(color=INK, alpha=0.13, lw=0), Line2D([], [], color=INK, lw=1.1, ls=DASHED)),
    ]
    labels += ["mean, as far as all seeds are", "each seed", "the paper's curve and band"]
    fig.legend(handles, labels, loc="outside lower center", ncols=columns)
