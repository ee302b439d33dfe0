"""Figure 2, MountainCar: which jobs it is made of, and what their results mean."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from randq.config import whole
from randq.envs import ENVIRONMENTS
from randq.sweep import CompiledJob, Result

BUDGET = 1000
"""Episodes of a run in the paper."""
SHOWN = 5
"""Seeds that the paper has; the curves show our first ones, as many."""
LAST = 100
"""The last episodes of a run, over which returns are averaged."""


@dataclass(frozen=True)
class Figure2:
    """Returns on MountainCar as the paper has it, for each agent."""

    about: str
    seeds: int
    episodes: int = BUDGET
    agents: tuple[str, ...] = ("mnf-dqn", "bbqn", "noisy-dqn", "ddqn")
    evaluate_every: int = 10
    env_settings: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 5
    """Seeds in a job."""
    first_seed: int = 0

    def __post_init__(self) -> None:
        whole("episodes", self.episodes, at_least=self.evaluate_every)

    def jobs(self) -> list[CompiledJob]:
        """The seeds that are shown come first, for all agents."""
        end = self.first_seed + self.seeds
        return [
            CompiledJob(
                agent,
                "mountain_car",
                tuple(range(start, min(start + self.batch, end))),
                self.env_settings,
                episodes=self.episodes,
                evaluate_every=self.evaluate_every,
                curves=True,
            )
            for start in range(self.first_seed, end, self.batch)
            for agent in self.agents
        ]


FIGURE2_SCALES: Mapping[str, Figure2] = {
    "smoke": Figure2(
        about="2 agents, 2 seeds, 20 episodes of 100 steps at most: shows that it works,"
        " decides nothing",
        seeds=2,
        episodes=20,
        agents=("mnf-dqn", "ddqn"),
        env_settings={"max_episode_steps": 100},
    ),
    "quick": Figure2(about="5 seeds as in the paper, 1000 episodes, 4 agents", seeds=SHOWN),
    "paper": Figure2(about="20 seeds (curves: the first 5), 1000 episodes, 4 agents", seeds=20),
    "full": Figure2(
        about="100 seeds that no other scale has (20 to 119), 1000 episodes, MNF-DQN and DDQN:"
        " which is ahead",
        seeds=100,
        agents=("mnf-dqn", "ddqn"),
        batch=20,
        first_seed=20,
    ),
}
"""Figure 2 in three sizes, and a fourth to tell two agents apart."""


@dataclass(frozen=True)
class Runs:
    """All seeds of one agent, in the order of their numbers."""

    seeds: tuple[int, ...]
    points: np.ndarray
    """The episodes after which evaluations were due."""
    evaluations: np.ndarray
    """Their returns, seeds x points."""
    returns: np.ndarray
    """Of training, seeds x episodes."""
    first_good: tuple[int | None, ...]
    """The first training episode that reached the goal; None: no one did."""
    published: bool
    """Whether task and budget are those of the paper."""

    @property
    def budget(self) -> int:
        return self.returns.shape[1]

    def first(self, count: int) -> "Runs":
        """The first seeds that there are."""
        return Runs(
            self.seeds[:count],
            self.points,
            self.evaluations[:count],
            self.returns[:count],
            self.first_good[:count],
            self.published,
        )

    @property
    def window(self) -> int:
        """Evaluations in as many episodes as returns are averaged over."""
        return int(np.sum(self.points > self.budget - LAST))

    def evaluated_last(self) -> np.ndarray:
        """For each seed, the mean evaluation of the last episodes."""
        return self.evaluations[:, -self.window :].mean(axis=1)

    def trained_last(self) -> float:
        """Mean return of the last training episodes of all seeds."""
        return float(self.returns[:, -LAST:].mean())


def figure2_results(done: Iterable[tuple[CompiledJob, Result]]) -> dict[str, Runs]:
    """Put the seeds of all jobs of an agent together."""
    rows: dict[str, list[tuple[CompiledJob, dict[str, Any]]]] = {}
    for job, result in done:
        rows.setdefault(job.agent, []).extend((job, row) for row in result["seeds"])
    return {agent: _runs(found) for agent, found in rows.items()}


def _runs(found: list[tuple[CompiledJob, dict[str, Any]]]) -> Runs:
    job = found[0][0]
    rows = sorted((row for _, row in found), key=lambda row: row["seed"])
    points = np.arange(job.evaluate_every, job.episodes + 1, job.evaluate_every)
    evaluations = [_on_grid(row["evaluations"], points, job.evaluate_every) for row in rows]
    env = job.resolved[1]
    return Runs(
        seeds=tuple(row["seed"] for row in rows),
        points=points,
        evaluations=np.array(evaluations),
        returns=np.array([row["returns"] for row in rows]),
        first_good=tuple(row["first_good"] for row in rows),
        published=env == ENVIRONMENTS[job.env]() and job.episodes >= BUDGET,
    )


def _on_grid(evaluations: list[Any], points: np.ndarray, every: int) -> np.ndarray:
    # Where several episodes end in one block of the loop, the evaluation that was due at one of
    # them follows the last, or is lost if the budget ends between them. So a point takes the
    # latest evaluation before the next point; one without any repeats the point before it (the
    # first one: the point after it).
    at, values = np.array(evaluations).T
    latest = np.searchsorted(at, points + every) - 1
    return values[np.maximum(latest, 0)]
