"""What the paper says about Figure 1, as rules.

Each claim is a test of medians over seeds, one for each chain length. The same test reads the
paper's own points and ours.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from randq.experiments.figure1 import CAP

MIN_LENGTHS = 3
"""With fewer, nothing is decided."""
LARGE = 75
"""Chains from here on are "very large"."""

IN_PAPER: Mapping[str, str] = {
    "mnf-dqn": "MNF-DQN",
    "bbqn": "BBQN",
    "noisy-dqn": "NoisyDQN",
    "ddqn": "eps-greedy DQN",
}
"""What the agents are called in figure1.csv."""


def paper_points() -> dict[str, dict[int, float]]:
    """Figure 1 as published, by agent and length; 2000 is the cap."""
    points: dict[str, dict[int, float]] = {agent: {} for agent in IN_PAPER}
    names = {name: agent for agent, name in IN_PAPER.items()}
    text = (files("randq") / "data" / "figure1.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        points[names[row["agent"]]][int(row["chain_length"])] = float(row["median_episodes"])
    return points


@dataclass(frozen=True)
class Medians:
    """Medians over seeds: for each agent an array of resamples x lengths, infinite if censored."""

    of: Mapping[str, np.ndarray]
    budget: int

    def over_lengths(self, agent: str) -> np.ndarray:
        return np.median(self.of[agent], axis=1)

    def worst(self, agent: str) -> np.ndarray:
        return np.max(self.of[agent], axis=1)

    def mean(self, agent: str) -> np.ndarray:
        """A censored median counts as the budget, so this is a lower bound."""
        return np.mean(np.minimum(self.of[agent], self.budget), axis=1)

    def failed(self, agent: str) -> np.ndarray:
        """Share of lengths at which the median is censored."""
        return np.mean(np.isinf(self.of[agent]), axis=1)

    def best(self, agent: str) -> np.ndarray:
        """Of the lengths that some agent solves, the share at which no other one is faster."""
        return self._share(self.of[agent] <= np.min(np.stack(list(self.of.values())), axis=0))

    def twice_as_fast(self, agent: str, other: str) -> np.ndarray:
        """Of the lengths that some agent solves, the share at which one needs half at most."""
        return self._share(2 * self.of[agent] <= self.of[other])

    def _share(self, true: np.ndarray) -> np.ndarray:
        solved = np.isfinite(np.min(np.stack(list(self.of.values())), axis=0))
        count = np.sum(solved, axis=1)
        share = np.sum(true & solved, axis=1) / np.maximum(count, 1)
        return np.where(count > 0, share, np.nan)

    def all_failed(self, *agents: str) -> np.ndarray:
        return np.all([np.isinf(self.of[agent]).all(axis=1) for agent in agents], axis=0)

    def show(self, value: np.ndarray) -> str:
        first = float(value[0])
        return f"> {self.budget}" if np.isinf(first) else f"{first:.0f}"


Test = Callable[[Medians], np.ndarray]
"""For each resample 1 (the claim is true), 0 (it is not) or NaN (these runs cannot tell)."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as a rule."""

    says: str
    rule: str
    agents: tuple[str, ...]
    test: Test
    show: Callable[[Medians], str]
    action_map: str = "fixed"
    shortest: int = 0
    """Which lengths it is about."""
    min_lengths: int = MIN_LENGTHS


def claims() -> list[Claim]:
    """The paper's sentences about Figure 1 (section 6.1), and some on the random action map."""
    mnf, bbqn, noisy, greedy = IN_PAPER
    paper = {agent: np.array(list(points.values())) for agent, points in paper_points().items()}

    def at_most(value: np.ndarray, bound: float) -> np.ndarray:
        return (value <= bound).astype(float)

    def spread(agent: str) -> Callable[[Medians], str]:
        return lambda m: (
            f"{m.show(m.over_lengths(agent))} (worst length {m.show(m.worst(agent))}, "
            f"{percent(m.failed(agent))} of lengths fail)"
        )

    def most_fail(m: Medians) -> np.ndarray:
        fails = (m.failed(greedy) > 0.5).astype(float)
        # Who has not solved it earlier than the paper gives up may solve it yet.
        return fails if m.budget >= CAP else np.where(fails == 1, np.nan, 0.0)

    def half(m: Medians) -> np.ndarray:
        ours, theirs = m.over_lengths(mnf), m.over_lengths(greedy)
        return np.where(np.isinf(ours) & np.isinf(theirs), np.nan, 2 * ours <= theirs)

    def mostly_half(m: Medians) -> np.ndarray:
        return _above_half(m.twice_as_fast(mnf, greedy))

    def show_mostly_half(m: Medians) -> str:
        return f"twice as fast at {percent(m.twice_as_fast(mnf, greedy))} of lengths"

    def show_half(m: Medians) -> str:
        return f"{m.show(m.over_lengths(mnf))} against {m.show(m.over_lengths(greedy))}"

    def more_on_average(m: Medians) -> np.ndarray:
        return np.where(m.all_failed(mnf, noisy), np.nan, m.mean(noisy) > m.mean(mnf))

    def show_mean(m: Medians) -> str:
        return f"{m.mean(noisy)[0]:.0f} against {m.mean(mnf)[0]:.0f}"

    def worse_when_large(m: Medians) -> np.ndarray:
        ours, theirs = m.over_lengths(mnf), m.over_lengths(bbqn)
        slightly = (theirs > ours) & (theirs <= 2 * ours)
        return np.where(np.isinf(ours) & np.isinf(theirs), np.nan, slightly)

    def show_large(m: Medians) -> str:
        return f"{m.show(m.over_lengths(bbqn))} against {m.show(m.over_lengths(mnf))}"

    def mostly_best(m: Medians) -> np.ndarray:
        return _above_half(m.best(mnf))

    def show_best(m: Medians) -> str:
        return f"best at {percent(m.best(mnf))} of lengths"

    half_rule = "median over lengths of MNF-DQN is at most half of that of ε-greedy"
    mostly_rule = "at more than half of the lengths that either solves it needs half at most"
    mean_rule = "mean over lengths (censored = budget) of NoisyDQN is above that of MNF-DQN"
    best_rule = "at more than half of the lengths that any solves no other of the four is faster"
    worst, middle = ({a: float(f(v)) for a, v in paper.items()} for f in (np.max, np.median))
    four = (mnf, bbqn, noisy, greedy)
    random = "random action map: "
    return [
        Claim(
            "MNF-DQN has very consistent performance across different chain lengths",
            f"its worst length is at most the paper's worst, {worst[mnf]:.0f}",
            (mnf,),
            lambda m: at_most(m.worst(mnf), worst[mnf]),
            spread(mnf),
        ),
        Claim(
            "MNF-DQN solves chains as fast as the points of the figure",
            f"its median over lengths is at most the paper's, {middle[mnf]:.0f}",
            (mnf,),
            lambda m: at_most(m.over_lengths(mnf), middle[mnf]),
            spread(mnf),
        ),
        Claim(
            "MNF-DQN clearly outperforms ε-greedy DQN", half_rule, (mnf, greedy), half, show_half
        ),
        Claim(
            "ε-greedy DQN most of the time fails to solve the problem when n ≥ 10",
            f"its median is censored at {CAP} episodes at more than half of the lengths",
            (greedy,),
            most_fail,
            spread(greedy),
        ),
        Claim(
            "BBQN performs well",
            f"its worst length is at most the paper's worst, {worst[bbqn]:.0f}",
            (bbqn,),
            lambda m: at_most(m.worst(bbqn), worst[bbqn]),
            spread(bbqn),
        ),
        Claim(
            "BBQN is slightly worse than MNF-DQN for very large chain length",
            f"its median over lengths n ≥ {LARGE} is above that of MNF-DQN, and at most twice it",
            (mnf, bbqn),
            worse_when_large,
            show_large,
            shortest=LARGE,
            min_lengths=2,
        ),
        Claim(
            "NoisyDQN on average needs a larger number of episodes than MNF-DQN",
            mean_rule,
            (mnf, noisy),
            more_on_average,
            show_mean,
        ),
        Claim(
            "MNF-DQN consistently performs best across different chain lengths",
            best_rule,
            four,
            mostly_best,
            show_best,
        ),
        Claim(
            random + "MNF-DQN clearly outperforms ε-greedy DQN",
            mostly_rule,
            (mnf, greedy),
            mostly_half,
            show_mostly_half,
            "random",
        ),
        Claim(
            random + "NoisyDQN on average needs more episodes than MNF-DQN",
            mean_rule,
            (mnf, noisy),
            more_on_average,
            show_mean,
            "random",
        ),
        Claim(random + "MNF-DQN performs best", best_rule, four, mostly_best, show_best, "random"),
    ]


def _above_half(share: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(share), np.nan, share > 0.5)


def percent(value: np.ndarray) -> str:
    """The first of some shares, to read."""
    return "none" if np.isnan(value[0]) else f"{float(value[0]):.0%}"
