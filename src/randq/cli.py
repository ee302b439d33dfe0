"""The command `randq`: each subcommand is a record of settings with a `run`."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

from randq import regression
from randq.config import one_of, require, whole
from randq.report import figures


@dataclass(frozen=True)
class RegressionCommand(regression.Regression):
    """Fit y = x^3 + noise with every posterior family, and draw how sure each is away from data."""

    families: tuple[str, ...] = tuple(regression.FAMILIES)
    """Which families, by name."""
    seeds: int = 20
    """How many seeds; the picture shows the first, the table all of them."""
    seed: int = 0
    """The first seed."""
    out: Path = Path("results/regression.png")
    """Where the picture goes (.png, .pdf or .svg)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.families) > 0, "families", self.families, "at least one name")
        for name in self.families:
            one_of("families", name, regression.FAMILIES)
        whole("seeds", self.seeds, at_least=1)
        whole("seed", self.seed, at_least=0)
        figures.require_writable(self.out)

    def run(self, console: Console) -> None:
        seeds = jnp.arange(self.seed, self.seed + self.seeds)
        fits: dict[str, regression.Fit] = {}
        table = Table(title=f"Spread of the posterior, median over {self.seeds} seeds")
        for column in ("family", "at |x| < 3", "at |x| = 6", "growth", "seconds"):
            table.add_column(column, justify="left" if column == "family" else "right")
        with console.status("") as status:
            for name in self.families:
                status.update(f"fitting {name}")
                start = time.perf_counter()
                fits[name] = regression.run(regression.FAMILIES[name], self, seeds)
                seconds = time.perf_counter() - start
                inside, outside = (float(jnp.median(v)) for v in fits[name].spread())
                growth = f"{float(jnp.median(fits[name].growth())):.1f}" if inside else "-"
                row = (f"{inside:.2f}", f"{outside:.2f}", growth, f"{seconds:.1f}")
                table.add_row(name, *row)
        figures.regression(fits, self.out)
        console.print(table)
        console.print(f"The picture is {self.out}")


COMMANDS = {
    "regression": RegressionCommand,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: parse and validate everything first, then run."""
    name, *rest = arguments if arguments is not None else sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(_usage())
    elif name == "--version":
        print(f"randq {version('randq')}")
    else:
        try:
            one_of("command", name, COMMANDS)
        except ValueError as error:
            sys.exit(f"randq: {error}")
        tyro.cli(COMMANDS[name], prog=f"randq {name}", args=rest).run(Console())


def _usage() -> str:
    lines = [f"  {name:<12} {command.__doc__}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: randq COMMAND [OPTIONS]",
            "",
            "Posteriors over the weights of Q-networks, and exploration by sampling from them.",
            "",
            *lines,
            "",
            "randq COMMAND --help lists the options of a command.",
        ]
    )
