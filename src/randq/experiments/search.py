"""Searches of settings: the same number of trials for every agent, on seeds of their own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from randq.config import require
from randq.sweep import Job, Result

Trial = tuple[tuple[str, Any], ...]
"""Settings that are tried together, by dotted name."""


@dataclass(frozen=True)
class Search:
    """Trials for some agents, as many for each, on seeds that no result is reported for."""

    about: str
    env: str
    grids: Mapping[str, Mapping[str, tuple[Any, ...]]]
    """For each agent the values of each of its settings; all combinations are tried."""
    places: tuple[Mapping[str, Any], ...]
    """Settings of the environment; every trial runs in all of them."""
    seeds: range
    episodes: int

    def __post_init__(self) -> None:
        sizes = {agent: len(self.trials(agent)) for agent in self.grids}
        require(len(set(sizes.values())) == 1, "grids", sizes, "as many trials for every agent")

    def trials(self, agent: str) -> list[Trial]:
        grid = self.grids[agent]
        return [tuple(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def jobs(self) -> list[Job]:
        return [
            Job(agent, self.env, tuple(self.seeds), place, dict(trial), episodes=self.episodes)
            for place in self.places
            for agent in self.grids
            for trial in self.trials(agent)
        ]


RATES = (1e-3, 3e-3)
SIZES = (0.1, 0.25, 0.5, 1.0)
SEARCHES: Mapping[str, Search] = {
    "nchain": Search(
        about="8 settings for each agent of Figure 1, chains of 95, 45 and 15 states, 20 seeds",
        env="nchain",
        grids={
            "mnf-dqn": {"posterior.initial_std": SIZES, "learning_rate": RATES},
            "bbqn": {"posterior.initial_std": SIZES, "learning_rate": RATES},
            "noisy-dqn": {"posterior.sigma0": SIZES, "learning_rate": RATES},
            "ddqn": {"epsilon.decay": (10, 100, 300, 1000), "learning_rate": RATES},
            "boot-dqn": {
                "posterior.mask_probability": (0.25, 0.5, 0.75, 1.0),
                "learning_rate": RATES,
            },
        },
        places=tuple({"length": n} for n in (95, 45, 15)),
        seeds=range(2000, 2020),
        episodes=2000,
    ),
}
"""Every search of settings by name."""


@dataclass(frozen=True)
class Score:
    """What came of one trial: an entry for each place."""

    medians: tuple[float, ...]
    """Infinite where at least half of the seeds are censored."""
    censored: tuple[int, ...]
    mean: float
    """Episodes to solve, over all seeds and places; a censored run counts as its budget."""


def scores(done: Iterable[tuple[Job, Result]]) -> dict[tuple[str, Trial], Score]:
    """What came of each trial of each agent."""
    runs: dict[tuple[str, Trial], list[list[float]]] = {}
    budget = 0
    for job, result in done:
        budget = job.episodes
        times = [float(row["solved_at"] or "inf") for row in result["seeds"]]
        runs.setdefault((job.agent, tuple(job.overrides.items())), []).append(times)
    return {
        trial: Score(
            medians=tuple(float(np.median(times)) for times in places),
            censored=tuple(int(np.sum(np.isinf(times))) for times in places),
            mean=float(np.mean(np.minimum(np.concatenate(places), budget))),
        )
        for trial, places in runs.items()
    }
