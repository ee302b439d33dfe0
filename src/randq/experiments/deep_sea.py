"""DeepSea, which the paper does not have: exploration that no luck replaces."""

from collections.abc import Mapping
from dataclasses import dataclass

from randq.presets import PRESETS
from randq.sweep import CompiledJob


@dataclass(frozen=True)
class DeepSeaTable:
    """How many seeds of each agent solve DeepSea of some sizes, each seed with its own map."""

    about: str
    sizes: tuple[int, ...]
    agents: tuple[str, ...] = tuple(PRESETS)
    seeds: range = range(20)
    episodes: int = 1000

    def jobs(self) -> list[CompiledJob]:
        return [
            CompiledJob(
                agent, "deep_sea", tuple(self.seeds), {"size": size}, episodes=self.episodes
            )
            for size in sorted(self.sizes)
            for agent in self.agents
        ]


DEEP_SEA_SCALES: Mapping[str, DeepSeaTable] = {
    "smoke": DeepSeaTable(
        about="size 5, 3 seeds, 200 episodes, 2 agents: shows that it works, decides nothing",
        sizes=(5,),
        agents=("ddqn", "boot-dqn-prior"),
        seeds=range(3),
        episodes=200,
    ),
    "quick": DeepSeaTable(about="size 10, 20 seeds, 1000 episodes, every agent", sizes=(10,)),
    "full": DeepSeaTable(
        about="sizes 10, 20 and 30, 20 seeds, 1000 episodes, every agent", sizes=(10, 20, 30)
    ),
}
"""DeepSea, which the paper does not have, in three sizes."""
