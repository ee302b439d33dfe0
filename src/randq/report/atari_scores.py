"""Scores of Atari games: the paper's curves, random and human players, and the mean of the middle.

The random and human scores are those of Wang et al. (2016, "Dueling network architectures for deep
reinforcement learning", the table of games that begin with up to 30 no-ops), which later work has
kept. Scores of several games are put together as Agarwal et al. (2021, "Deep reinforcement learning
at the edge of the statistical precipice") advise: by the interquartile mean (IQM) of all runs, with
an interval from resamples of the seeds within each game.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple, TypeVar

import numpy as np

from randq.config import whole
from randq.experiments.atari import AGENTS, FRAMES, LAST

SOURCES = {
    # Drawn in Figures 3, 4 and 6 alike, and best seen in 4, but for the start of some games.
    "mnf-dqn": ("figure4.csv", "figure3.csv", "figure6.csv"),
    "noisy-dqn": ("figure3.csv",),
    "bbqn": ("figure3.csv",),
    "ddqn": ("figure3.csv",),
    "boot-dqn": ("figure4.csv",),
    "bdqn": ("figure6.csv",),
}
"""Where the paper's curve of each agent was read: each point in the first of these that has it."""
BDQN_SKIP = 13
"""Frames of the emulator in each step that BDQN's published results count; the paper takes 4."""
RESAMPLES, LEVEL = 2000, 0.95


Scores = TypeVar("Scores", float, np.ndarray)


class Level(NamedTuple):
    """Median and quartiles over seeds; a row for each resample, of which the first is none."""

    low: np.ndarray
    median: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Published:
    """A published curve."""

    frames: np.ndarray
    median: np.ndarray
    low: np.ndarray
    """NaN if there is no band."""
    high: np.ndarray

    def at(self, frames: int) -> float | None:
        """Its mean over the last tenth of so many frames, or of as many as it has; None if it only
        starts later."""
        level = self.level(frames)
        return None if level is None else float(level.median[0])

    def level(self, frames: int) -> Level | None:
        if frames < self.frames[0]:
            return None
        end = min(frames, self.frames[-1])
        inside = (self.frames > (1 - LAST) * end) & (self.frames <= end)

        def mean(values: np.ndarray) -> np.ndarray:
            points = values[inside] if inside.any() else np.interp(end, self.frames, values)
            return np.array([np.mean(points)])

        median = mean(self.median)
        low, high = (
            median if np.isnan(values).any() else mean(values) for values in (self.low, self.high)
        )
        return Level(low, median, high)


@cache
def published() -> dict[tuple[str, str], Published]:
    """Figures 3, 4 and 6 as published, by game and agent."""
    curves = {}
    for agent, sources in SOURCES.items():
        rows: dict[str, dict[int, dict[str, str]]] = {}
        for row in (row for source in sources for row in _rows(source)):
            if row["agent"] == AGENTS[agent]:
                rows.setdefault(row["game"], {}).setdefault(int(row["frames"]), row)
        for game, points in rows.items():
            columns = (
                np.array([float(points[frames][name] or "nan") for frames in sorted(points)])
                for name in ("frames", "median_return", "low", "high")
            )
            curves[game, agent] = Published(*columns)
    return curves


def published_at(game: str, agent: str, frames: int) -> float | None:
    """What the paper has at so many frames, if anything."""
    curve = published().get((game, agent))
    return None if curve is None else curve.at(frames)


@cache
def bdqn_by_raw_frames() -> dict[str, Published]:
    """BDQN's published results by the frames that its code seems to have played, by game."""
    rows, curves = _rows("bdqn.csv"), {}
    for game in dict.fromkeys(row["game"] for row in rows):
        own = [row for row in rows if row["game"] == game]
        frames = BDQN_SKIP * np.array([float(row["steps"]) for row in own])
        returns = np.array([float(row["return"]) for row in own])
        none = np.full_like(returns, np.nan)
        curves[game] = Published(frames, returns, none, none)
    return curves


@cache
def players() -> dict[str, tuple[float, float]]:
    """The scores of a random and of a human player, by game."""
    rows = _rows("atari_scores.csv")
    return {row["game"]: (float(row["random"]), float(row["human"])) for row in rows}


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("randq") / "data" / name).read_text()
    return list(csv.DictReader(text.splitlines()))


def normalised(game: str, scores: Scores) -> Scores:
    """A score, or several, on a scale on which the random player has 0 and the human one 1."""
    random, human = players()[game]
    return (scores - random) / (human - random)


def iqm(values: np.ndarray) -> np.ndarray:
    """Mean of what is left of the last axis without its lowest and its highest quarter."""
    whole("values", values.shape[-1], at_least=1)
    cut = values.shape[-1] // 4
    ordered = np.sort(values, axis=-1)
    return np.asarray(ordered[..., cut : values.shape[-1] - cut].mean(axis=-1))


def resampled(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The values of all seeds, and after them, row by row, those of resamples of the seeds."""
    chosen = rng.integers(len(values), size=(RESAMPLES, len(values)))
    return np.concatenate([values[None], values[chosen]])


def iqm_interval(games: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The bootstrap interval of the IQM of all values, resampled within each game; None if no game
    has two of them."""
    if max(map(len, games)) == 1:
        return None
    rng = np.random.default_rng(0)
    means = iqm(np.concatenate([resampled(values, rng) for values in games], axis=1))[1:]
    low, high = np.quantile(means, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


def published_iqm(frames: Mapping[str, int], agent: str) -> float | None:
    """The IQM of the paper's medians on some games at so many frames each, if it has all."""
    found = {game: published_at(game, agent, at) for game, at in frames.items()}
    values = [normalised(game, v) for game, v in found.items() if v is not None]
    return float(iqm(np.array(values))) if found and len(values) == len(found) else None


def paper_level(game: str, agent: str) -> Level:
    """The paper's score at its end."""
    level = published()[game, agent].level(FRAMES)
    assert level is not None
    return level
