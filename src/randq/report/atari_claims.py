"""Whether the paper's claims about Figures 3, 4 and 6 hold here.

Each claim is a test of medians and quartiles over seeds, which the paper's curves pass. It is read
again for resamples of the seeds: where fewer than 95% of these agree with the answer, or where the
runs are fewer or shorter than the paper's, a claim is undecided.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from randq.experiments.atari import (
    AGENTS,
    FIGURE_AGENTS,
    FIGURE_GAMES,
    FRAMES,
    SEEDS,
    AtariResults,
)
from randq.report.atari_scores import (
    Level,
    iqm,
    normalised,
    paper_level,
    players,
    published_iqm,
    resampled,
)
from randq.report.page import Answer, Verdict
from randq.report.verdict import AGREE

MNF = "mnf-dqn"
NEAR = 0.15
"""What is at most this share below the best is near it. MNF-DQN in the paper is at most 11% below,
where it says that its results are competitive, or the difference minimal."""
HARD = ("Amidar", "Alien", "BankHeist", "Qbert")
"""The games that the paper calls hard to explore, without Gravitar."""

Levels = Mapping[tuple[str, str], Level]
"""By game and agent."""


@dataclass(frozen=True)
class Claim:
    """A sentence about some games and agents, and how it is tested."""

    says: str
    rule: str
    games: tuple[str, ...]
    agents: tuple[str, ...]
    test: Callable[[Levels], np.ndarray]
    """Whether it is so, for each resample."""
    show: Callable[[Levels], str]
    """The numbers that it is about."""

    @property
    def places(self) -> list[tuple[str, str]]:
        return [(game, agent) for game in self.games for agent in self.agents]


def claims(figure: str) -> list[Claim]:
    """The paper's sentences about a figure, and our aim."""
    games, agents = FIGURE_GAMES[figure], FIGURE_AGENTS[figure]
    about = {"figure3": _about_figure3, "figure4": _about_figure4, "figure6": _about_figure6}
    return [*about[figure](games, agents), _aim(games)]


def _about_figure3(games: tuple[str, ...], agents: tuple[str, ...]) -> list[Claim]:
    rivals = tuple(agent for agent in agents if agent != MNF)
    near = f"its median is at most {NEAR:.0%} below that of the best baseline"

    def near_the_best(levels: Levels, games: tuple[str, ...]) -> np.ndarray:
        return _count(
            levels[game, MNF].median
            >= (1 - NEAR) * np.max([levels[game, rival].median for rival in rivals], axis=0)
            for game in games
        )

    def behind_all(levels: Levels) -> np.ndarray:
        others = [agent for agent in agents if agent != "ddqn"]
        return _count(
            np.all([_apart(levels[game, o], levels[game, "ddqn"]) for o in others], axis=0)
            for game in games
        )

    def everywhere(chosen: tuple[str, ...], says: str, rule: str) -> Claim:
        count = partial(near_the_best, games=chosen)
        return Claim(
            says,
            rule,
            chosen,
            agents,
            lambda levels: count(levels) == len(chosen),
            lambda levels: _of(count(levels), chosen),
        )

    return [
        everywhere(
            games,
            "across all games MNF-DQN provides competitive and consistent results",
            f"on each game, {near}",
        ),
        Claim(
            "DDQN performs significantly worse than the exploration-based methods in most cases",
            "on most games, its upper quartile is below the lower one of each of the other three",
            games,
            agents,
            lambda levels: 2 * behind_all(levels) > len(games),
            lambda levels: _of(behind_all(levels), games),
        ),
        Claim(
            "MNF-DQN provides a boost in performance over the baselines in Gravitar",
            "its median is above that of each baseline",
            ("Gravitar",),
            agents,
            lambda levels: np.all(
                [levels["Gravitar", MNF].median > levels["Gravitar", r].median for r in rivals],
                axis=0,
            ),
            lambda levels: _medians(levels, "Gravitar", agents),
        ),
        Claim(
            "BBQN fails completely in Gravitar",
            f"its upper quartile is below a random player's {players()['Gravitar'][0]:g}",
            ("Gravitar",),
            ("bbqn",),
            lambda levels: levels["Gravitar", "bbqn"].high < players()["Gravitar"][0],
            lambda levels: f"{levels['Gravitar', 'bbqn'].median[0]:.0f}",
        ),
        everywhere(
            HARD,
            "in the other games that are hard to explore, the difference between MNF-DQN and the"
            " best baseline is minimal",
            f"on {', '.join(HARD)}, {near}",
        ),
    ]


def _about_figure4(games: tuple[str, ...], agents: tuple[str, ...]) -> list[Claim]:
    (rival,) = (agent for agent in agents if agent != MNF)

    def ahead(levels: Levels) -> np.ndarray:
        return _count(_apart(levels[game, MNF], levels[game, rival]) for game in games)

    def behind(levels: Levels) -> np.ndarray:
        return _count(_apart(levels[game, rival], levels[game, MNF]) for game in games)

    def show(levels: Levels) -> str:
        better, worse = int(ahead(levels)[0]), int(behind(levels)[0])
        return f"better on {better}, similar on {len(games) - better - worse}, worse on {worse}"

    return [
        Claim(
            "MNF-DQN often outperforms Bootstrapped DQN: clearly on 6 games, similar on 4, worse on"
            " 3",
            "better (its lower quartile above the other's upper one) on more games than worse",
            games,
            agents,
            lambda levels: ahead(levels) > behind(levels),
            show,
        )
    ]


def _about_figure6(games: tuple[str, ...], agents: tuple[str, ...]) -> list[Claim]:
    def behind(levels: Levels) -> np.ndarray:
        return _count(levels[game, "bdqn"].median > levels[game, MNF].median for game in games)

    return [
        Claim(
            "among 7 games, Bayesian DQN outperforms MNF-DQN only in 3",
            "BDQN's median is above MNF-DQN's on at most 3 games",
            games,
            agents,
            lambda levels: behind(levels) <= 3,
            lambda levels: _of(behind(levels), games),
        )
    ]


def _aim(games: tuple[str, ...]) -> Claim:
    bound = published_iqm(dict.fromkeys(games, FRAMES), MNF)
    assert bound is not None

    def middle(levels: Levels) -> np.ndarray:
        scores = [normalised(game, levels[game, MNF].median) for game in games]
        return iqm(np.stack(scores, axis=-1))

    return Claim(
        "our aim, not the paper's: MNF-DQN is at or above the paper's curves",
        "the IQM over games of its human-normalised medians is at least the paper's",
        games,
        (MNF,),
        lambda levels: middle(levels) >= bound,
        lambda levels: f"{middle(levels)[0]:.3f}",
    )


def _apart(better: Level, worse: Level) -> np.ndarray:
    """Whether one is clearly better: their inter-quartile ranges do not touch."""
    return better.low > worse.high


def _count(so: Iterable[np.ndarray]) -> np.ndarray:
    return np.sum(list(so), axis=0)


def _of(count: np.ndarray, games: tuple[str, ...]) -> str:
    return f"{int(count[0])} of {len(games)} games"


def _medians(levels: Levels, game: str, agents: tuple[str, ...]) -> str:
    return ", ".join(f"{AGENTS[a]} {levels[game, a].median[0]:.0f}" for a in agents)


def judge(figure: str, results: AtariResults) -> list[Verdict]:
    """Every claim about a figure against these results."""
    return [_judge(claim, results) for claim in claims(figure)]


def _judge(claim: Claim, results: AtariResults) -> Verdict:
    paper = claim.show({place: paper_level(*place) for place in claim.places})

    def verdict(
        here: str, answer: Answer, agreement: float | None = None, why: str = ""
    ) -> Verdict:
        return Verdict(claim.says, claim.rule, paper, here, answer, agreement, why)

    missing = [(game, agent) for game, agent in claim.places if (game, agent) not in results]
    if missing:
        game, agent = missing[0]
        why = (
            f"{len(missing)} of {len(claim.places)} are missing, such as {AGENTS[agent]} on {game}"
        )
        here = "no runs" if len(missing) == len(claim.places) else "not all runs"
        return verdict(here, "undecided", why=why)
    rng = np.random.default_rng(0)
    levels = {}
    for game in claim.games:
        frames = min(results[game, agent].frames for agent in claim.agents)
        for agent in claim.agents:
            values = resampled(results[game, agent].scores(frames), rng)
            levels[game, agent] = Level(*np.quantile(values, (0.25, 0.5, 0.75), axis=1))
    here = claim.show(levels)
    if why := _too_little(claim, results):
        return verdict(here, "undecided", why=why)
    answers = claim.test(levels)
    agreement = float(np.mean(answers[1:] == answers[0]))
    if agreement < AGREE:
        return verdict(here, "undecided", agreement, "the seeds are too few to tell")
    return verdict(here, "holds" if answers[0] else "does not hold", agreement)


def _too_little(claim: Claim, results: AtariResults) -> str:
    """Why these runs decide nothing; empty if they do."""
    runs = [results[place] for place in claim.places]
    if (frames := min(each.frames for each in runs)) < FRAMES:
        return f"{frames:,} of the paper's {FRAMES:,} frames"
    if (seeds := min(len(each.counted) for each in runs)) < SEEDS:
        return f"{seeds} of the paper's {SEEDS} seeds"
    return ""
