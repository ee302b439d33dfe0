"""Figures 3, 4 and 6, Atari games: which jobs they are made of, and what their results mean.

The three differ in their agents and games only. All of them show returns of the exploratory policy
during training, so what counts is the episodes of a run, not its evaluations.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from randq.config import require, whole
from randq.envs.gym.atari import GAMES, PROTOCOLS, games
from randq.sweep import GymJob, Result

PROTOCOL = PROTOCOLS["atari-paper"]
SKIP = PROTOCOL.skip
"""Frames of a step."""
FRAMES, SEEDS = 40_000_000, 5
"""Frames of a run in the paper, and seeds of each agent on each game."""
WINDOW = 400_000
"""Frames between two points of a curve of the paper."""
POINTS = 20
"""Points of a curve at least; so the windows of short runs are smaller."""
LAST = 0.1
"""The last share of the frames, over which the returns of a run are averaged to its score."""

AGENTS: Mapping[str, str] = {
    "mnf-dqn": "MNF-DQN",
    "noisy-dqn": "NoisyDQN",
    "bbqn": "BBQN",
    "ddqn": "DDQN",
    "boot-dqn": "BootstrappedDQN",
    "bdqn": "BDQN",
}
"""The agents of the figures, and what the paper calls them."""

FIGURE_AGENTS: Mapping[str, tuple[str, ...]] = {
    "figure3": ("mnf-dqn", "noisy-dqn", "bbqn", "ddqn"),
    "figure4": ("mnf-dqn", "boot-dqn"),
    "figure6": ("mnf-dqn", "bdqn"),
}
FIGURE_GAMES: Mapping[str, tuple[str, ...]] = {
    "figure3": GAMES["paper13"],
    "figure4": GAMES["paper13"],
    "figure6": GAMES["paper13"][:7],  # those that have published results of BDQN
}

SMALL: Mapping[str, Any] = {
    "hidden": [64],
    "learning_starts": 1000,
    "random_steps": 1000,
    "replay_capacity": 10_000,
    "target_every": 1000,
}
"""What a run of 10,000 steps needs to learn at all."""


@dataclass(frozen=True)
class Atari:
    """Returns of DQN agents during training on Atari games."""

    agents: tuple[str, ...]
    games: tuple[str, ...]
    """Names of games, or of sets of them."""
    seeds: int = SEEDS
    frames: int = FRAMES
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all agents that differ from their presets."""
    note: str = ""
    """A word on what it is good for."""

    pieces: ClassVar[tuple[str, ...]] = ("agents", "games", "seeds", "frames")
    free: ClassVar[tuple[str, ...]] = ("games",)

    def __post_init__(self) -> None:
        whole("seeds", self.seeds, at_least=1)
        whole("frames", self.frames, at_least=SKIP)
        require(self.frames % SKIP == 0, "frames", self.frames, f"a multiple of {SKIP}")

    @property
    def about(self) -> str:
        names, titles = list(dict.fromkeys(self.games)), [AGENTS[agent] for agent in self.agents]
        return ", ".join(
            (
                " and ".join(names) if len(names) < 4 else f"{len(names)} games",
                " and ".join(titles) if len(titles) < 3 else f"{len(titles)} agents",
                f"{self.seeds} seed{'s' * (self.seeds > 1)}",
                f"{self.frames:,} frames{self.note}",
            )
        )

    def jobs(self) -> list[GymJob]:
        """A first seed of everything comes before a second one of anything."""
        steps = self.frames // SKIP
        return [
            GymJob(
                agent,
                f"{PROTOCOL.name}/{game}",
                seed,
                steps,
                evaluate_every=steps,  # one game at the end, since no figure shows evaluations
                evaluation_episodes=1,
                overrides=self.overrides,
                log_every=min(10_000, max(1, steps // POINTS)),
            )
            for seed in range(self.seeds)
            for game in games(*self.games)
            for agent in self.agents
        ]


def _scales(figure: str, rival: str) -> dict[str, Atari]:
    agents, all_games = FIGURE_AGENTS[figure], FIGURE_GAMES[figure]
    pair = ("mnf-dqn", rival)
    return {
        # The games of a constant policy end in Space Invaders; in Breakout they last 27,000 steps.
        "smoke": Atari(
            agents=pair,
            games=("SpaceInvaders",),
            seeds=1,
            frames=10_000 * SKIP,
            overrides=SMALL,
            note=", small networks: shows that it works, decides nothing",
        ),
        # In most games the paper's agents, too, have learnt nothing yet after so many.
        "quick": Atari(agents=pair, games=("Amidar",), seeds=1, frames=1_000_000),
        "paper": Atari(agents=agents, games=all_games),
    }


FIGURE3_SCALES: Mapping[str, Atari] = _scales("figure3", "ddqn")
"""Figure 3 in three sizes."""
FIGURE4_SCALES: Mapping[str, Atari] = _scales("figure4", "boot-dqn")
"""Figure 4 in three sizes."""
FIGURE6_SCALES: Mapping[str, Atari] = _scales("figure6", "bdqn")
"""Figure 6 in three sizes."""


@dataclass(frozen=True)
class Run:
    """The episodes of one seed, or means of consecutive ones if there are very many."""

    seed: int
    frames: int
    """How far it is."""
    ends: np.ndarray
    """The frame at which each ended."""
    returns: np.ndarray

    def curve(self, window: int) -> np.ndarray:
        """Mean return of the episodes that ended in each window of so many frames.

        Where none ended it is that of the window before; before the first end it is NaN.
        """
        means: list[float] = []
        for end in range(window, self.frames + 1, window):
            inside = self.returns[(self.ends > end - window) & (self.ends <= end)]
            before = means[-1] if means else np.nan
            means.append(float(inside.mean()) if len(inside) else before)
        return np.array(means)

    def score(self, frames: int) -> float:
        """Mean return of the episodes that ended in the last tenth of so many frames, or of the
        one that ended before it if none did."""
        inside = (self.ends > (1 - LAST) * frames) & (self.ends <= frames)
        if inside.any():
            return float(self.returns[inside].mean())
        before = int(np.searchsorted(self.ends, frames, side="right"))
        return float(self.returns[max(before - 1, 0)])


@dataclass(frozen=True)
class Runs:
    """All seeds of one agent on one game, in the order of their numbers."""

    seeds: Sequence[Run]
    window: int
    """Frames between two points of the curve."""

    @property
    def counted(self) -> list[Run]:
        """The seeds that numbers are of: those at least half as far as the furthest."""
        furthest = max(run.frames for run in self.seeds)
        return [run for run in self.seeds if 2 * run.frames >= furthest]

    @property
    def frames(self) -> int:
        """As far as all of these are."""
        return min(run.frames for run in self.counted)

    def scores(self, frames: int) -> np.ndarray:
        """A score for each of these seeds."""
        return np.array([run.score(frames) for run in self.counted])

    @property
    def quartiles(self) -> np.ndarray:
        """Lower quartile, median and upper quartile over these seeds, at each point of the curve;
        NaN where not all seeds have a value yet."""
        points = self.frames // self.window
        curves = [run.curve(self.window)[:points] for run in self.counted]
        return np.quantile(curves, (0.25, 0.5, 0.75), axis=0)


AtariResults = Mapping[tuple[str, str], Runs]
"""By game and agent."""


def window(frames: int) -> int:
    """The window of a run of so many frames: the paper's, or a smaller one for short runs."""
    return min(WINDOW, max(SKIP, frames // POINTS))


def atari_results(found: Iterable[tuple[GymJob, Result]]) -> dict[tuple[str, str], Runs]:
    """Put the seeds of an agent on a game together; those without an episode are left out."""
    rows: dict[tuple[str, str], list[Run]] = {}
    windows: dict[tuple[str, str], int] = {}
    for job, result in found:
        if not result["episodes"]:
            continue
        at = (job.env.partition("/")[2], job.agent)
        steps, returns = zip(*result["episodes"], strict=True)
        run = Run(job.seed, SKIP * result["steps"], SKIP * np.array(steps), np.array(returns))
        rows.setdefault(at, []).append(run)
        windows[at] = window(SKIP * job.steps)
    return {
        at: Runs(tuple(sorted(runs, key=lambda run: run.seed)), windows[at])
        for at, runs in rows.items()
    }
