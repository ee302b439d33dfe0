"""Searches of settings: the same number of trials for every agent, on seeds of their own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

import numpy as np

from randq.config import one_of, require
from randq.sweep import CompiledJob, GymJob, Result

Measure = Literal["solved_at", "last_return"]
GymMeasure = Literal["evaluations", "training"]
Trial = tuple[tuple[str, Any], ...]
"""Settings that are tried together, by dotted name."""


@dataclass(frozen=True)
class Trials:
    """Trials for some agents, as many for each, on seeds that no result is reported for."""

    about: str
    env: str
    grids: Mapping[str, Mapping[str, tuple[Any, ...]]]
    """For each agent the values of each of its settings; all combinations are tried."""
    seeds: range

    def __post_init__(self) -> None:
        sizes = {agent: len(self.trials(agent)) for agent in self.grids}
        require(len(set(sizes.values())) == 1, "grids", sizes, "as many trials for every agent")

    def trials(self, agent: str) -> list[Trial]:
        grid = self.grids[agent]
        return [tuple(zip(grid, values, strict=True)) for values in product(*grid.values())]


@dataclass(frozen=True)
class Search(Trials):
    """A search in an environment of this package."""

    places: tuple[Mapping[str, Any], ...]
    """Settings of the environment; every trial runs in all of them."""
    episodes: int
    measure: Measure = "solved_at"
    """What a seed is judged by: when it solved the task, or its return at the end."""
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        one_of("measure", self.measure, get_args(Measure))
        super().__post_init__()

    def jobs(self) -> list[CompiledJob]:
        return [
            CompiledJob(
                agent,
                self.env,
                tuple(self.seeds),
                place,
                dict(trial),
                episodes=self.episodes,
                evaluate_every=self.evaluate_every,
                curves=self.measure == "last_return",
            )
            for place in self.places
            for agent in self.grids
            for trial in self.trials(agent)
        ]


@dataclass(frozen=True)
class GymSearch(Trials):
    """A search in an environment of Gymnasium, judged by returns at the end of a run."""

    steps: int
    evaluate_every: int
    evaluation_episodes: int
    last: int = 5
    """How many evaluations count, or how many times the steps between two."""
    measure: GymMeasure = "evaluations"
    """Whose returns count: of evaluations, or of the episodes of training that ended meanwhile."""

    def __post_init__(self) -> None:
        one_of("measure", self.measure, get_args(GymMeasure))
        super().__post_init__()

    @property
    def first_step(self) -> int:
        """What came after this step counts."""
        return self.steps - self.last * self.evaluate_every

    def jobs(self) -> list[GymJob]:
        return [
            GymJob(
                agent,
                self.env,
                seed,
                self.steps,
                self.evaluate_every,
                self.evaluation_episodes,
                overrides=dict(trial),
                log_every=self.evaluate_every,
            )
            for seed in self.seeds
            for agent in self.grids
            for trial in self.trials(agent)
        ]


RATES = (1e-3, 3e-3)
SIZES = (0.1, 0.25, 0.5, 1.0)
ALPHAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""The paper's grid for Atari, and of that for MuJoCo the powers of ten up to 0.01."""
ALL_ALPHAS = tuple(float(f"{times}e-{power}") for power in range(6, 0, -1) for times in (1, 4, 8))
"""The paper's grid for MuJoCo, from 1e-6 to 0.8."""
SMALL_ALPHAS = (1e-6, 1e-4)
SCOPES = ("batch", "example")
"""Noise as in the paper, and as in the released code."""
AS_SEEN = {"normalise_observations": (False,)}
"""Before the last search found that observations are better normalised."""
SEARCHES: Mapping[str, Search | GymSearch] = {
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
    "mountain_car": Search(
        about="8 settings for each agent of Figure 2, 4 seeds",
        env="mountain_car",
        grids={
            "mnf-dqn": {
                "posterior.noise": SCOPES,
                "posterior.initial_z_std": (0.01, 0.1),
                "alpha": SMALL_ALPHAS,
            },
            "bbqn": {
                "posterior.noise": SCOPES,
                "posterior.initial_std": (0.01, 0.05),
                "alpha": SMALL_ALPHAS,
            },
            "noisy-dqn": {
                "target_noise": ("fresh", "same"),
                "posterior.sigma0": (0.02, 0.1),
                "learning_rate": (2.5e-4, 5e-4),
            },
            "ddqn": {
                "epsilon.end": (0.01, 0.1),
                "epsilon.decay": (30, 100),
                "learning_rate": (5e-4, 1e-3),
            },
        },
        places=({},),
        seeds=range(2010, 2014),
        episodes=1000,
        measure="last_return",
        evaluate_every=10,
    ),
    "half_cheetah": GymSearch(
        about="alpha of the two variational agents of Figure 5: the powers of ten of the paper's"
        " grid up to 0.01; 2 seeds",
        env="HalfCheetah-v5",
        grids={
            "mnf-ddpg": {"alpha": ALPHAS, "posterior.initial_std": (0.25,), **AS_SEEN},
            "bbqn-ddpg": {"alpha": ALPHAS, **AS_SEEN},
        },
        seeds=range(2000, 2002),
        steps=100_000,
        evaluate_every=10_000,
        evaluation_episodes=10,
    ),
    "half_cheetah_start": GymSearch(
        about="how uncertain the critics of the two variational agents of Figure 5 begin; 3 seeds",
        env="HalfCheetah-v5",
        grids={
            "mnf-ddpg": {
                "posterior.initial_std": (0.02, 0.1, 0.25),
                "posterior.initial_z_std": (0.01, 0.1),
                "alpha": (1e-6,),
                **AS_SEEN,
            },
            "bbqn-ddpg": {
                "posterior.initial_std": (0.01, 0.02, 0.05, 0.1, 0.25, 0.5),
                **AS_SEEN,
            },
        },
        seeds=range(2002, 2005),
        steps=100_000,
        evaluate_every=10_000,
        evaluation_episodes=10,
    ),
    "half_cheetah_alpha": GymSearch(
        about="alpha of mnf-ddpg once more, for longer, with its largest values, and observations"
        " normalised as by Plappert et al.; 2 seeds",
        env="HalfCheetah-v5",
        grids={
            "mnf-ddpg": {
                "posterior.initial_std": (0.1,),
                "alpha": (1e-6, 1e-1, 8e-1),
                "normalise_observations": (False, True),
            },
        },
        seeds=range(2005, 2007),
        steps=150_000,
        evaluate_every=10_000,
        evaluation_episodes=10,
    ),
    "half_cheetah_grid": GymSearch(
        about="alpha of the two variational agents of Figure 5: the paper's whole grid, all else as"
        " in their presets; 2 seeds",
        env="HalfCheetah-v5",
        grids={agent: {"alpha": ALL_ALPHAS} for agent in ("mnf-ddpg", "bbqn-ddpg")},
        seeds=range(2010, 2012),
        steps=100_000,
        evaluate_every=10_000,
        evaluation_episodes=10,
    ),
    "half_cheetah_best": GymSearch(
        about="the best alphas of mnf-ddpg on the whole grid, and the preset, on fresh seeds;"
        " 6 seeds",
        env="HalfCheetah-v5",
        grids={"mnf-ddpg": {"alpha": (8e-4, 1e-3, 0.08, 0.1)}},
        seeds=range(2012, 2018),
        steps=100_000,
        evaluate_every=10_000,
        evaluation_episodes=10,
    ),
    "amidar": GymSearch(
        about="alpha of the two variational agents of Figure 3: the paper's grid; 1 seed",
        env="atari-paper/Amidar",
        grids={agent: {"alpha": ALPHAS} for agent in ("mnf-dqn", "bbqn")},
        seeds=range(2000, 2001),
        steps=200_000,
        evaluate_every=20_000,
        evaluation_episodes=1,
        measure="training",
    ),
}
"""Every search of settings by name."""


LAST = 100
"""Episodes at the end of a run whose evaluations are its last return."""


@dataclass(frozen=True)
class Score:
    """What came of one trial: an entry for each place."""

    medians: tuple[float, ...]
    """Of the measure, over seeds. Infinite where at least half of the seeds are censored."""
    failed: tuple[int, ...]
    """Seeds that did not solve the task within the budget, or never had a success."""
    mean: float
    """Over all seeds and places; a censored run counts as its budget."""


def scores(
    search: Search, done: Iterable[tuple[CompiledJob, Result]]
) -> dict[tuple[str, Trial], Score]:
    """What came of each trial of each agent."""
    runs: dict[tuple[str, Trial], list[list[tuple[float, bool]]]] = {}
    for job, result in done:
        values = [_measured(search, row) for row in result["seeds"]]
        runs.setdefault((job.agent, tuple(job.overrides.items())), []).append(values)
    return {
        trial: Score(
            medians=tuple(float(np.median([value for value, _ in place])) for place in places),
            failed=tuple(sum(failed for _, failed in place) for place in places),
            mean=float(
                np.mean([min(value, search.episodes) for place in places for value, _ in place])
            ),
        )
        for trial, places in runs.items()
    }


def _measured(search: Search, row: Mapping[str, Any]) -> tuple[float, bool]:
    """What a seed came to, and whether that is a failure."""
    if search.measure == "solved_at":
        return float(row["solved_at"] or "inf"), row["solved_at"] is None
    last = [value for episode, value in row["evaluations"] if episode > search.episodes - LAST]
    return float(np.mean(last)), row["first_good"] is None


def best_first(search: Search, score: Score) -> float:
    """A key to sort trials by: few episodes are good, and great returns."""
    return score.mean if search.measure == "solved_at" else -score.mean


def last_returns(
    search: GymSearch, done: Iterable[tuple[GymJob, Result]]
) -> dict[tuple[str, Trial], dict[int, float]]:
    """For each trial of each agent, what each seed came to."""
    kind = "evaluations" if search.measure == "evaluations" else "episodes"
    found: dict[tuple[str, Trial], dict[int, float]] = {}
    for job, result in done:
        values = [value for step, value in result[kind] if step > search.first_step]
        trial = tuple(job.overrides.items())
        found.setdefault((job.agent, trial), {})[job.seed] = float(np.mean(values))
    return found
