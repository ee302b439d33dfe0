"""Figure 1 in the paper's form, with the paper's points behind ours and luck beside them.

One column for each agent. Upper half: n-chain as published; lower half: with a random action map.
Under each panel a strip shows what a median hides: how many runs never solved the chain, and how
many untrained networks were optimal before any learning.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from randq.experiments.figure1 import CAP, FIGURE1_AGENTS, MAPS, Cell, Figure1Results
from randq.report.claims import paper_points
from randq.report.figures import INK, figure
from randq.report.statistics import as_times, quantile

COLOURS = {
    "mnf-dqn": "#2f6db3",
    "bbqn": "#2a9d8f",
    "noisy-dqn": "#b5532a",
    "ddqn": "#8a4fa3",
    "boot-dqn": "#b08900",
}
PAPER, GRID = "#b4b4b4", "#e4e4e4"
TITLES = {
    "fixed": "n-chain as published: one action means “right” in every state",
    "random": "Random action map: in each state a coin decides which action means “right”",
}


def draw(results: Figure1Results, path: Path) -> None:
    """Save the figure."""
    with figure(path, 2.45 * len(FIGURE1_AGENTS), 8.6) as fig:
        halves: Any = fig.subfigures(2, 1, hspace=0.03)
        for half, action_map in zip(halves, MAPS, strict=True):
            half.suptitle(TITLES[action_map], x=0.01, ha="left", fontsize=11, fontweight="bold")
            ratios = {"height_ratios": [3, 1], "hspace": 0.02}
            axes = half.subplots(
                2, len(FIGURE1_AGENTS), sharex=True, sharey="row", gridspec_kw=ratios
            )
            for column, agent in enumerate(FIGURE1_AGENTS):
                lengths = results.lengths(action_map, agent)
                cells = {n: results.cells[action_map, agent, n] for n in lengths}
                top, strip = axes[:, column]
                top.set_title(FIGURE1_AGENTS[agent])
                _medians(top, agent, action_map, cells)
                _strip(strip, agent, action_map, cells, results)
            axes[0, 0].set_ylabel("episodes to solve\n(median, log scale)")
            axes[1, 0].set_ylabel("share")
        _legend(fig, results)


def _medians(ax: Any, agent: str, action_map: str, cells: dict[int, Cell]) -> None:
    budget = max((cell.budget for cell in cells.values()), default=CAP)
    published = paper_points().get(agent, {})
    if action_map == "fixed":
        x, y = np.array(list(published)), np.array(list(published.values()))
        failed = y >= CAP
        ax.plot(x[~failed], y[~failed], "o", ms=3, color=PAPER, mew=0, zorder=1)
        ax.plot(x[failed], y[failed], "^", ms=3.5, color=PAPER, mfc="white", mew=0.6, zorder=1)
        if not published:
            note = "not in the paper's figure"
            ax.text(0.03, 0.84, note, transform=ax.transAxes, color="#8a8a8a", size=8)
    ax.axhline(budget, color=INK, lw=0.7, ls=(0, (4, 3)), zorder=0)
    label = ax.annotate(
        f"budget {budget}",
        (1, budget),
        xycoords=ax.get_yaxis_transform(),
        xytext=(0, 6),
        textcoords="offset points",
        ha="right",
        size=7.5,
        color=INK,
        bbox={"fc": "white", "ec": "none", "alpha": 0.8, "pad": 0.6},
        zorder=2,
    )
    label.set_in_layout(False)
    few = len(cells) <= 12
    for length, cell in cells.items():
        times = as_times(cell.solved_at)
        low, median, high = (quantile(times, share) for share in (0.25, 0.5, 0.75))
        style: dict[str, Any] = {"color": COLOURS[agent], "zorder": 3}
        whisker = [min(low, budget), min(high, budget)]
        ax.plot([length, length], whisker, lw=1.4 if few else 0.8, solid_capstyle="butt", **style)
        size = 5.5 if few else 3.2
        if math.isinf(median):
            ax.plot(length, budget, "^", ms=size + 1, mfc="white", mew=1.2 if few else 0.8, **style)
        else:
            ax.plot(length, median, "o", ms=size, mec="white", mew=0.5, **style)
    ax.set_yscale("log")
    ax.set_ylim(0.9, 3600)
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    ax.set_yticks([], minor=True)
    ax.set_xlim(0, 105)
    ax.grid(axis="y", color=GRID, lw=0.6, zorder=0)
    ax.set_axisbelow(True)


def _strip(
    ax: Any, agent: str, action_map: str, cells: dict[int, Cell], results: Figure1Results
) -> None:
    lengths = sorted(cells)
    width = 0.8 * min([5.0, *np.diff(lengths)]) if lengths else 1.0
    unsolved = [cells[n].censored for n in lengths]
    ax.bar(lengths, unsolved, width=width, color=COLOURS[agent], alpha=0.45, lw=0)
    if action_map == "fixed":
        control = {n: v for (a, n), v in sorted(results.untrained.items()) if a == agent}
        shares = [optimal / networks for optimal, networks in control.values()]
        x = list(control)
    else:
        # A map that knows nothing of the network: a fair coin for each state from s2 to sN.
        x = lengths
        shares = [2.0 ** -(n - 1) for n in x]
    if x:  # an empty line that is not clipped has no extent, and upsets the layout
        ax.plot(x, shares, "o-", color=INK, ms=3, lw=0.9, zorder=3, clip_on=False)
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.5, 1], ["0", "50%", "100%"])
    ax.set_xticks([10, 25, 50, 75, 100])
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_axisbelow(True)
    ax.set_xlabel("chain length n")


def _legend(fig: Any, results: Figure1Results) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    seeds = sorted({len(cell.solved_at) for cell in results.cells.values()})
    count = " or ".join(map(str, seeds))
    ours = COLOURS["mnf-dqn"]
    networks = max((networks for _, networks in results.untrained.values()), default=0)
    handles = [
        Line2D([], [], color=ours, marker="o", lw=1.4, mec="white", ms=6),
        Line2D([], [], color=ours, marker="^", lw=0, mfc="white", mew=1.2, ms=6.5),
        Line2D([], [], color=PAPER, marker="o", lw=0, ms=4, mew=0),
        Line2D([], [], color=PAPER, marker="^", lw=0, mfc="white", mew=0.8, ms=4.5),
        Patch(color=ours, alpha=0.45, lw=0),
        Line2D([], [], color=INK, marker="o", lw=0.9, ms=3.5),
    ]
    labels = [
        f"median of {count} seeds, interquartile range",
        "median not reached within the budget",
        "the paper's points",
        "the same, at its cap of 2000",
        "seeds that never solved the chain",
        f"untrained networks already optimal (of {networks}; random map: 2$^{{-(n-1)}}$)",
    ]
    fig.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8.5)
