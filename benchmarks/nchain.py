"""How fast the compiled loop plays n-chain: an episode is n + 8 steps, an evaluation, an update.

    python benchmarks/nchain.py

For each agent: seconds to compile, then episodes per second of all seeds together, for 1, 10 and 50
seeds; and how the cost of an episode grows with the length of the chain. Nothing else should run
meanwhile.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

from randq.config import one_of, whole
from randq.envs import NChain
from randq.loops.compiled import Compiled
from randq.presets import PRESETS, preset


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    agents: tuple[str, ...] = ("mnf-dqn", "bbqn", "noisy-dqn", "ddqn", "boot-dqn")
    """Which agents."""
    length: int = 100
    """Length of the chain for the first table."""
    seeds: tuple[int, ...] = (1, 10, 50)
    """Numbers of seeds that run at once, for the first table."""
    lengths: tuple[int, ...] = (10, 50, 100, 200)
    """Lengths of chains for the second table, with ten seeds."""
    episodes: int = 300
    """Episodes that are timed."""
    repeats: int = 3
    """How often; the fastest counts."""


def main(settings: Benchmark) -> None:
    """Measure, and print both tables."""
    for agent in settings.agents:
        one_of("agents", agent, PRESETS)
    for name in ("length", "episodes", "repeats"):
        whole(name, getattr(settings, name), at_least=1)
    console = Console(width=120)

    def table(title: str, columns: tuple[str, ...], row: Callable[[str], list[str]]) -> None:
        filled = Table(title=title)
        for i, column in enumerate(("agent", *columns)):
            filled.add_column(column, justify="right" if i else "left")
        with console.status("") as status:
            for agent in settings.agents:
                status.update(agent)
                filled.add_row(agent, *row(agent))
        console.print(filled)

    def by_seeds(agent: str) -> list[str]:
        cells = []
        for seeds in settings.seeds:
            compiling, episode = measure(agent, settings.length, seeds, settings)
            each = 1000 * episode / seeds
            cells.append(f"{seeds / episode:,.0f} ({each:.2f} ms, {compiling:.1f} s)")
        return cells

    def by_length(agent: str) -> list[str]:
        times = [measure(agent, n, 10, settings)[1] for n in settings.lengths]
        return [f"{100 * episode:.3f}" for episode in times]

    title = f"n = {settings.length}: episodes/s, all seeds (ms per episode and seed, s to compile)"
    table(title, tuple(f"{n} seeds" for n in settings.seeds), by_seeds)
    columns = tuple(f"n = {n}" for n in settings.lengths)
    table("ten seeds: ms per episode and seed", columns, by_length)


def measure(agent: str, length: int, seeds: int, settings: Benchmark) -> tuple[float, float]:
    """Seconds to compile, and seconds for one episode of all seeds."""
    program = Compiled(preset(agent, "nchain"), NChain(length=length), chunk=settings.episodes)
    start = time.perf_counter()
    state, _ = program.run(program.init(jnp.arange(seeds, dtype=jnp.int32)), 1)
    compiling = time.perf_counter() - start
    times = []
    for _ in range(settings.repeats):
        start = time.perf_counter()
        state, _ = program.run(state, settings.episodes)
        jax.block_until_ready(state)
        times.append(time.perf_counter() - start)
    return compiling, min(times) / settings.episodes


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
