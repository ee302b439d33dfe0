"""Figures 3, 4 and 6, Atari games: our curves over the paper's, scores, and which claims hold."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from randq.experiments.atari import (
    AGENTS,
    FIGURE_AGENTS,
    FIGURE_GAMES,
    FRAMES,
    LAST,
    PROTOCOL,
    SEEDS,
    SKIP,
    AtariResults,
    Runs,
    atari_results,
)
from randq.report.atari_claims import judge
from randq.report.atari_scores import (
    BDQN_SKIP,
    RESAMPLES,
    Published,
    bdqn_by_raw_frames,
    iqm,
    iqm_interval,
    normalised,
    players,
    published,
    published_at,
    published_iqm,
)
from randq.report.figure1 import GRID
from randq.report.figures import INK, figure
from randq.report.page import Page, markdown, terminal, verdict_lines, verdict_table
from randq.sweep import GymJob, Results

# The page


def report(name: str, page: Page, swept: Results) -> None:
    """Draw a figure, print scores and verdicts, and keep all of it in the folder."""
    results = dict(sorted(atari_results(swept.so_far(GymJob)).items(), key=_as_in_the_paper))
    if not results:
        page.console.print("No run has finished an episode yet: there is nothing to show")
        return
    picture, path = page.folder / f"{name}.png", page.folder / f"{name}.md"
    draw(name, results, picture)
    rows, middle, verdicts = summary(results), iqm_rows(results), judge(name, results)
    missing = f"; {len(swept.failed)} jobs failed" if swept.failed else ""
    begun = len(swept.unfinished)
    unfinished = f"; {begun} runs are not finished, and shown as far as they are" if begun else ""
    title, run = f"Figure {name[-1]}: Atari games", frames_run(name, results)
    windows = " or ".join(f"{window:,}" for window in sorted({r.window for r in results.values()}))
    lines = [
        f"# {title}",
        "",
        f"`{page.command}`: {page.about}{missing}{unfinished}.",
        "",
        f"**{run}** Frames are {SKIP} for each step of an agent. The protocol is {PROTOCOL}.",
        "",
        f"![Return during training against frames, ours over the paper's]({name}.png)",
        "",
        "Returns are those of the exploratory policy during training. A point of a curve is the"
        f" mean over the episodes that ended within {windows} frames",
        "(where none ended, that of the point before), and curves are its median and inter-quartile"
        " range over seeds, as far as all seeds are; a seed less",
        "than half as far as the furthest is not counted. The paper does not say how it smoothed"
        " its curves; most likely they are means of 100 episodes. They are",
        "read from its figures, that of MNF-DQN from Figure 4.",
        "",
        f"A score is the mean over the episodes that ended in the last {LAST:.0%} of the frames:"
        " its median over seeds, with quartiles. The paper's is that of its",
        "median curve, at the same frames if its curve starts early enough, and at its end.",
        "",
        *markdown(COLUMNS, rows),
        "",
        "Human-normalised scores are 0 for a random and 1 for a human player (both of Wang et al.,"
        " 2016, games with no-op starts). The interquartile mean (IQM) is over",
        f"all runs on the games that every agent here has runs on, with a 95% interval from"
        f" {RESAMPLES} resamples of the seeds within each game (Agarwal et al., 2021). The",
        "paper's is that of its medians on the same games.",
        "",
        *markdown(IQM_COLUMNS, middle),
        "",
        *(_caution(results) if name == "figure6" else []),
        f"A claim is undecided with fewer than {SEEDS} seeds or {FRAMES:,} frames of a run that it"
        " is about.",
        "",
        *verdict_lines(verdicts),
    ]
    path.write_text("\n".join(lines) + "\n")
    page.console.print(terminal(title, COLUMNS, rows))
    page.console.print(terminal("Human-normalised IQM", IQM_COLUMNS, middle))
    page.console.print(verdict_table(f"Claims about Figure {name[-1]}", verdicts))
    page.console.print(run)
    page.console.print(f"The picture is {picture}, the rules are in {path}", soft_wrap=True)


def frames_run(name: str, results: AtariResults) -> str:
    """How many frames were run, and how many there are at the scale of the paper."""
    runs = [run.frames for each in results.values() for run in each.seeds]
    far = f"{min(runs):,}" + (f" to {max(runs):,}" if min(runs) < max(runs) else "")
    paper = len(FIGURE_GAMES[name]) * len(FIGURE_AGENTS[name]) * SEEDS
    return (
        f"{sum(runs):,} frames were run: {len(runs)} runs of {far};"
        f" the paper scale is {paper} runs of {FRAMES:,}."
    )


COLUMNS = (
    "agent",
    "game",
    "seeds",
    "frames",
    "score (quartiles)",
    "human-normalised",
    "paper, same frames",
    "paper, end",
)


def summary(results: AtariResults) -> list[tuple[str, ...]]:
    """A row for each agent on each game."""
    rows: list[tuple[str, ...]] = []
    for (game, agent), runs in sorted(results.items(), key=_as_in_the_paper):
        scores = runs.scores(runs.frames)
        low, median, high = np.quantile(scores, (0.25, 0.5, 0.75))
        spread = f" ({low:.1f} to {high:.1f})" if len(scores) > 1 else ""
        rows.append(
            (
                AGENTS.get(agent, agent),
                game,
                str(len(runs.seeds)),
                _frames(runs),
                f"{median:.1f}{spread}",
                f"{normalised(game, median):.3f}" if game in players() else "-",
                _shown(published_at(game, agent, runs.frames), 1),
                _shown(published_at(game, agent, FRAMES), 1),
            )
        )
    return rows


IQM_COLUMNS = (
    "agent",
    "games",
    "runs",
    "IQM (95% interval)",
    "paper, same frames",
    "paper, end",
)


def iqm_rows(results: AtariResults) -> list[tuple[str, ...]]:
    """A row for each agent, over the games that all of them have runs on."""
    agents = list(dict.fromkeys(agent for _, agent in results))
    frames = {
        game: min(results[game, agent].frames for agent in agents)
        for game in dict.fromkeys(game for game, _ in results)
        if game in players() and all((game, agent) in results for agent in agents)
    }
    rows: list[tuple[str, ...]] = []
    for agent in agents if frames else ():
        values = [normalised(g, results[g, agent].scores(at)) for g, at in frames.items()]
        interval = iqm_interval(values)
        spread = "no interval" if interval is None else "{:.3f} to {:.3f}".format(*interval)
        rows.append(
            (
                AGENTS.get(agent, agent),
                str(len(frames)),
                str(sum(map(len, values))),
                f"{iqm(np.concatenate(values)):.3f} ({spread})",
                _shown(published_iqm(frames, agent), 3),
                _shown(published_iqm(dict.fromkeys(frames, FRAMES), agent), 3),
            )
        )
    return rows


def _caution(results: AtariResults) -> list[str]:
    """What has to be known of the frames of BDQN's published results."""
    columns = ("game", f"at {FRAMES:,} frames as the paper counts", f"at {FRAMES:,} raw frames")
    rows = [
        (game, _shown(published_at(game, "bdqn", FRAMES), 1), _shown(raw.at(FRAMES), 1))
        for game, raw in bdqn_by_raw_frames().items()
        if (game, "bdqn") in published() and any(game == g for g, _ in results)
    ]
    return [
        "The paper's BDQN is one run for each game, published by its authors, with no band. The"
        f" paper counts {SKIP} frames for each of its steps, but the published code",
        f"plays {BDQN_SKIP} frames of the emulator in each. If it made these results, they are"
        f" {BDQN_SKIP / SKIP:g} times as long by raw frames (dotted in the picture), and at the",
        "same number of raw frames its scores are:",
        "",
        *markdown(columns, rows),
        "",
    ]


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _as_in_the_paper(entry: tuple[tuple[str, str], Runs]) -> tuple[int, str, int]:
    (game, agent), _ = entry
    games, agents = FIGURE_GAMES["figure3"], list(AGENTS)
    return (
        games.index(game) if game in games else len(games),
        game,
        agents.index(agent) if agent in agents else len(agents),
    )


def _frames(runs: Runs) -> str:
    """How many seeds are how far."""
    far_first = sorted(Counter(run.frames for run in runs.seeds).items(), reverse=True)
    if len(far_first) == 1:
        return f"{far_first[0][0]:,}"
    return ", ".join(f"{count} at {frames:,}" for frames, count in far_first)


# The picture

COLOURS = {
    "mnf-dqn": "#2f6db3",
    "noisy-dqn": "#b5532a",
    "bbqn": "#2a9d8f",
    "ddqn": "#8a4fa3",
    "boot-dqn": "#c9a227",
    "bdqn": "#5b8c3a",
}
DASHED, DOTTED = (0, (4, 2)), (0, (1, 1.5))
MILLION = 1e6


def draw(name: str, results: AtariResults, path: Path) -> None:
    """A panel for each game: our curves over the paper's."""
    games = list(dict.fromkeys(game for game, _ in results))
    agents = [a for a in FIGURE_AGENTS[name] if any((game, a) in results for game in games)]
    columns = min(4, len(games))
    rows = -(-len(games) // columns)
    width, height = (6.4, 4.6) if len(games) == 1 else (3.4 * columns, 2.5 * rows + 0.7)
    with figure(path, width, height) as fig:
        axes = fig.subplots(rows, columns, squeeze=False)
        for ax, game in zip(axes.flat, games, strict=False):
            _panel(ax, game, agents, results, raw=name == "figure6")
        for ax in axes.flat[len(games) :]:
            ax.set_axis_off()
        for ax in axes.flat[len(games) - columns : len(games)]:
            ax.set_xlabel("million frames")
        fig.supylabel("return of the exploratory policy", fontsize=9)
        _legend(fig, agents, results, columns=3 if columns < 3 else 7, raw=name == "figure6")


def _panel(ax: Any, game: str, agents: Sequence[str], results: AtariResults, raw: bool) -> None:
    own = [run.frames for (g, _), runs in results.items() if g == game for run in runs.seeds]
    shown = min(FRAMES, 2 * max(own))
    for agent in reversed(agents):  # the first one on top
        colour = COLOURS[agent]
        if (paper := published().get((game, agent))) is not None:
            _published(ax, paper, shown, colour, DASHED)
        if raw and agent == "bdqn" and game in bdqn_by_raw_frames():
            _published(ax, bdqn_by_raw_frames()[game], shown, colour, DOTTED)
        if (runs := results.get((game, agent))) is not None:
            low, median, high = runs.quartiles
            x = runs.window * np.arange(1, len(median) + 1) / MILLION
            ax.fill_between(x, low, high, color=colour, alpha=0.22, lw=0, zorder=4)
            ax.plot(x, median, color=colour, lw=2.0, zorder=5, solid_capstyle="round")
    ax.set_xlim(0, shown / MILLION)
    ax.set_title(game, fontweight="bold")
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_axisbelow(True)


def _published(ax: Any, curve: Published, shown: int, colour: str, style: Any) -> None:
    """A published curve as far as it is shown, with its band if it has one."""
    seen = curve.frames <= shown
    x = curve.frames[seen] / MILLION
    ax.fill_between(x, curve.low[seen], curve.high[seen], color=colour, alpha=0.08, lw=0)
    ax.plot(x, curve.median[seen], color=colour, lw=1.1, ls=style, zorder=6)


def _legend(
    fig: Any, agents: Sequence[str], results: AtariResults, columns: int, raw: bool
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def seeds(agent: str) -> str:
        counts = sorted({len(runs.seeds) for (_, a), runs in results.items() if a == agent})
        return " or ".join(map(str, counts)) + (" seed" if counts == [1] else " seeds")

    def banded(alpha: float, **line: Any) -> Any:
        return Patch(color=INK, alpha=alpha, lw=0), Line2D([], [], color=INK, **line)

    entries: list[tuple[Any, str]] = [
        (Line2D([], [], color=COLOURS[a], lw=2.0), f"{AGENTS[a]} ({seeds(a)})") for a in agents
    ]
    entries += [
        (banded(0.22, lw=2.0), "ours: median, quartiles"),
        (banded(0.13, lw=1.1, ls=DASHED), "the paper's"),
    ]
    if raw:
        dotted = Line2D([], [], color=COLOURS["bdqn"], lw=1.1, ls=DOTTED)
        entries.append((dotted, f"published BDQN, {BDQN_SKIP} frames a step"))
    handles, labels = zip(*entries, strict=True)
    fig.legend(handles, labels, loc="outside lower center", ncols=columns)
