"""Figure 5, MuJoCo: which jobs it is made of, and what their results mean."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randq.config import whole
from randq.sweep import GymJob, Result

FIGURE5_AGENTS: Mapping[str, str] = {
    "mnf-ddpg": "MNF-DDPG",
    "bbqn-ddpg": "BBQ-DDPG",
    "noisy-ddpg": "Noisy-DDPG",
    "ddpg": "OU-noise DDPG",
}
"""The agents of Figure 5, and what the paper calls them."""

FIGURE5_ENVS: Mapping[str, str] = {
    "HalfCheetah-v5": "HalfCheetah-v1",
    "Walker2d-v5": "Walker2d-v1",
    "Hopper-v5": "Hopper-v1",
}
"""The environments of Figure 5, and what it was made with."""

STEPS, EPOCH = 1_000_000, 10_000
"""Steps of a run in the paper, and between two evaluations."""
LAST = 10
"""The last epochs, over which returns are averaged."""


@dataclass(frozen=True)
class Figure5:
    """Returns of DDPG agents on MuJoCo, over epochs of 10,000 steps."""

    about: str
    seeds: int
    steps: int = STEPS
    agents: tuple[str, ...] = tuple(FIGURE5_AGENTS)
    envs: tuple[str, ...] = tuple(FIGURE5_ENVS)
    epoch: int = EPOCH
    """Steps between evaluations."""
    evaluation_episodes: int = 20

    pieces: ClassVar[tuple[str, ...]] = ("agents", "envs", "seeds", "steps")

    def __post_init__(self) -> None:
        whole("seeds", self.seeds, at_least=1)
        whole("steps", self.steps, at_least=self.epoch)

    def jobs(self) -> list[GymJob]:
        """A first seed of everything comes before a second one of anything."""
        return [
            GymJob(
                agent,
                env,
                seed,
                self.steps,
                evaluate_every=self.epoch,
                evaluation_episodes=self.evaluation_episodes,
                log_every=self.epoch,
            )
            for seed in range(self.seeds)
            for env in self.envs
            for agent in self.agents
        ]


FIGURE5_SCALES: Mapping[str, Figure5] = {
    "smoke": Figure5(
        about="the pendulum, 2 agents, 1 seed, 400 steps: shows that it works, decides nothing",
        seeds=1,
        steps=400,
        agents=("mnf-ddpg", "ddpg"),
        envs=("Pendulum-v1",),
        epoch=100,
        evaluation_episodes=2,
    ),
    "quick": Figure5(
        about="HalfCheetah, MNF and Ornstein-Uhlenbeck noise, 2 seeds, 200,000 steps",
        seeds=2,
        steps=200_000,
        agents=("mnf-ddpg", "ddpg"),
        envs=("HalfCheetah-v5",),
    ),
    "paper": Figure5(about="3 environments, 4 agents, 5 seeds, 1,000,000 steps", seeds=5),
}
"""Figure 5 in three sizes."""


@dataclass(frozen=True)
class Curve:
    """The evaluations of one seed, one for each epoch that it has finished."""

    seed: int
    steps: int
    """How far it is."""
    returns: np.ndarray

    @property
    def epochs(self) -> int:
        return len(self.returns)


@dataclass(frozen=True)
class Curves:
    """All seeds of one agent in one environment, in the order of their numbers."""

    seeds: Sequence[Curve]
    epoch: int
    """Steps between evaluations."""

    @property
    def counted(self) -> list[Curve]:
        """The seeds that numbers are of: those with enough epochs, if there are any."""
        return [c for c in self.seeds if c.epochs >= LAST] or list(self.seeds)

    @property
    def epochs(self) -> int:
        """As far as all of these are."""
        return min(curve.epochs for curve in self.counted)

    def last(self, epochs: int) -> np.ndarray:
        """For each of these seeds, its mean return over the last of so many epochs."""
        return np.array([c.returns[max(0, epochs - LAST) : epochs].mean() for c in self.counted])

    @property
    def mean(self) -> np.ndarray:
        """Over these seeds, as far as all of them are."""
        return np.mean([curve.returns[: self.epochs] for curve in self.counted], axis=0)


Figure5Results = Mapping[tuple[str, str], Curves]
"""By environment and agent."""


def figure5_results(found: Iterable[tuple[GymJob, Result]]) -> dict[tuple[str, str], Curves]:
    """Put the seeds of an agent in an environment together; those without an epoch are left out."""
    rows: dict[tuple[str, str], list[Curve]] = {}
    epochs: dict[tuple[str, str], int] = {}
    for job, result in found:
        returns = [value for step, value in result["evaluations"] if step % job.evaluate_every == 0]
        if returns:
            at = (job.env, job.agent)
            rows.setdefault(at, []).append(Curve(job.seed, result["steps"], np.array(returns)))
            epochs[at] = job.evaluate_every
    return {
        at: Curves(tuple(sorted(curves, key=lambda curve: curve.seed)), epochs[at])
        for at, curves in rows.items()
    }
