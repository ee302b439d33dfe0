"""Figure 1: which jobs it is made of, and what their results mean."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from randq.sweep import CompiledJob, Result

FIGURE1_AGENTS: Mapping[str, str] = {
    "mnf-dqn": "MNF-DQN",
    "bbqn": "BBQN",
    "noisy-dqn": "NoisyDQN",
    "ddqn": "ε-greedy DDQN",
    "boot-dqn": "Bootstrapped DQN",
}
"""The agents of Figure 1 from left to right, and Bootstrapped DQN, which it does not show."""

MAPS = ("fixed", "random")
"""The action maps of n-chain: as published, and drawn anew for each seed and state."""

CAP = 2000
"""Episodes after which the paper gives up."""


@dataclass(frozen=True)
class Chains:
    """Every agent on chains of some lengths with one action map."""

    lengths: tuple[int, ...]
    seeds: int
    episodes: int
    """Budget of a run; one that has not solved its chain by then is censored."""


@dataclass(frozen=True)
class Figure1:
    """Episodes to solve n-chain, for each agent and chain length, as published and without luck."""

    about: str
    fixed: Chains
    random: Chains
    untrained: tuple[int, ...]
    """Lengths of the control: how many untrained networks are optimal already."""
    batch: int = 10
    """Seeds in a job. Both maps run with the same, because then they share compiled programs."""
    networks: int = 200
    """Untrained networks of each agent."""

    def jobs(self) -> list[CompiledJob]:
        """Long ones first, so that no core waits for another at the end."""
        trains = [
            CompiledJob(agent, "nchain", seeds, settings, episodes=chains.episodes)
            for action_map, chains in zip(MAPS, (self.fixed, self.random), strict=True)
            for length in sorted(chains.lengths, reverse=True)
            for settings in [{"length": length, "action_map": action_map}]
            for seeds in _batches(range(chains.seeds), self.batch)
            for agent in FIGURE1_AGENTS
        ]
        networks = tuple(range(self.networks))
        return trains + [
            CompiledJob(
                agent, "nchain", networks, {"length": n}, kind="untrained", batch=self.batch
            )
            for n in sorted(self.untrained, reverse=True)
            for agent in FIGURE1_AGENTS
        ]


def _batches(seeds: range, batch: int) -> list[tuple[int, ...]]:
    return [tuple(seeds[i : i + batch]) for i in range(0, len(seeds), batch)]


QUICK = (10, 25, 50, 75, 100)
EVERY = tuple(range(10, 100))
# Without luck chains are hard from about ten states on: there the lengths of the random map lie.
FIGURE1_SCALES: Mapping[str, Figure1] = {
    "smoke": Figure1(
        about="2 lengths, 3 seeds, 300 episodes: shows that everything works, decides nothing",
        fixed=Chains((10, 25), seeds=3, episodes=300),
        random=Chains((10,), seeds=3, episodes=300),
        untrained=(10, 25),
        batch=3,
    ),
    "quick": Figure1(
        about="5 lengths, 10 seeds, 2000 episodes (random action map: 4 lengths up to 50)",
        fixed=Chains(QUICK, seeds=10, episodes=CAP),
        random=Chains((5, 10, 25, 50), seeds=10, episodes=CAP),
        untrained=QUICK,
    ),
    "paper": Figure1(
        about="every length from 10 to 99, 10 seeds, 2000 episodes (random action map: 20 seeds)",
        fixed=Chains(EVERY, seeds=10, episodes=CAP),
        random=Chains((5, 10, 15, 20, 25, 30, 50, 75, 99), seeds=20, episodes=CAP),
        untrained=EVERY,
    ),
}
"""Figure 1 in three sizes."""


@dataclass(frozen=True)
class Cell:
    """One agent on one chain: an entry for each seed."""

    solved_at: tuple[int | None, ...]
    """Where the streak of optimal evaluations begins; None is censored at the budget."""
    budget: int

    @property
    def censored(self) -> float:
        """Share of seeds that did not solve the chain within the budget."""
        return sum(at is None for at in self.solved_at) / len(self.solved_at)


@dataclass(frozen=True)
class Figure1Results:
    """What the jobs came to, by (action map, agent, length) and (agent, length)."""

    cells: Mapping[tuple[str, str, int], Cell]
    untrained: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """How many untrained networks were optimal already, of how many."""

    def lengths(self, action_map: str, *agents: str) -> list[int]:
        """The lengths for which all these agents have results."""
        found = [{n for m, a, n in self.cells if (m, a) == (action_map, agent)} for agent in agents]
        return sorted(set.intersection(*found)) if found else []


def figure1_results(done: Iterable[tuple[CompiledJob, Result]]) -> Figure1Results:
    """Put the seeds of all jobs for one chain together."""
    cells: dict[tuple[str, str, int], Cell] = {}
    untrained: dict[tuple[str, int], tuple[int, int]] = {}
    for job, result in done:
        length = job.env_settings["length"]
        if job.kind == "untrained":
            untrained[job.agent, length] = (result["optimal"], result["networks"])
            continue
        at = (job.env_settings["action_map"], job.agent, length)
        before = cells[at].solved_at if at in cells else ()
        new: Sequence[int | None] = [seed["solved_at"] for seed in result["seeds"]]
        cells[at] = Cell((*before, *new), job.episodes)
    return Figure1Results(cells, untrained)
