"""The command `randq`: a subcommand is a record of settings that checks itself and runs."""

import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from randq import regression, reproduce
from randq.agents.dqn import DQN
from randq.api import Agent, Played, evaluate
from randq.cache import enable_compilation_cache
from randq.config import one_of, require, whole, writable_folder
from randq.envs import ENVIRONMENTS, Environment
from randq.envs.gym import find
from randq.envs.gym.stepper import BrokenEnvironmentError, Stepper
from randq.experiments import EXPERIMENTS
from randq.loops.compiled import Compiled
from randq.loops.host import DivergedError
from randq.presets import PRESETS, domain, preset
from randq.report import figures
from randq.runs.train import Outcome, train, write_summary
from randq.storage import StorageError


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

    def check(self) -> None:
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
                inside, outside = (float(jnp.median(v)) for v in fits[name].spread())
                seconds = time.perf_counter() - start
                growth = f"{float(jnp.median(fits[name].growth())):.1f}" if inside else "-"
                row = (f"{inside:.2f}", f"{outside:.2f}", growth, f"{seconds:.1f}")
                table.add_row(name, *row)
        figures.regression(fits, self.out)
        console.print(table)
        console.print(f"The picture is {self.out}", soft_wrap=True)


@dataclass(frozen=True)
class TrainCommand:
    """Train an agent in an environment, ours or any of Gymnasium: randq train AGENT --env ENV."""

    name: tyro.conf.Suppress[str]
    """The agent's name."""
    agent: DQN
    """Settings of the agent."""
    env: Environment[Any, Any]
    """Settings of the environment."""
    seeds: int = 10
    """How many seeds."""
    seed: int = 0
    """The first seed."""
    episodes: int | None = None
    """Budget in episodes (2000 if neither budget is given)."""
    steps: int | None = None
    """Budget in steps of the environment."""
    evaluate_every: int = 1
    """Episodes between evaluations."""
    out: Path = Path("runs/train")
    """Folder for episodes.csv and summary.json."""
    json: bool = False
    """Print one JSON object on standard output, and everything else on standard error."""

    def check(self) -> None:
        whole("seeds", self.seeds, at_least=1)
        whole("seed", self.seed, at_least=0)
        both = self.episodes is not None and self.steps is not None
        require(not both, "steps", self.steps, "a budget only if --episodes is not given")
        for setting in ("episodes", "steps"):
            if getattr(self, setting) is not None:
                whole(setting, getattr(self, setting), at_least=1)
        Compiled(self.agent, self.env, evaluate_every=self.evaluate_every)
        writable_folder("out", self.out)

    def run(self, console: Console) -> None:
        log = Console(stderr=True) if self.json else console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} {task.fields[unit]}"),
            TextColumn("{task.fields[solved]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=log, transient=True) as bar:
            task = bar.add_task("compiling", total=None, solved="", unit="")

            def watch(progress: Any) -> None:
                bar.update(
                    task,
                    description="training",
                    total=progress.budget,
                    completed=progress.done,
                    unit=progress.unit,
                    solved=f"solved {progress.solved}/{progress.seeds} seeds, "
                    f"{progress.steps_per_second:,.0f} steps/s",
                )

            outcome = train(
                self.agent,
                self.env,
                range(self.seed, self.seed + self.seeds),
                episodes=self.episodes or (None if self.steps else 2000),
                steps=self.steps,
                evaluate_every=self.evaluate_every,
                out=self.out,
                watch=watch,
            )
        env = next(name for name, cls in ENVIRONMENTS.items() if cls is type(self.env))
        summary = outcome.as_json(self.name, env)
        write_summary(self.out, summary)
        log.print(self._table(outcome))
        log.print(f"Every episode is in {self.out / 'episodes.csv'}", soft_wrap=True)
        if self.json:
            print(json.dumps(summary))

    def _table(self, outcome: Outcome) -> Table:
        table = Table(title=f"{self.env}, {outcome.seconds:.1f} s")
        for column in ("seed", "episodes", "solved at", "final return"):
            table.add_column(column, justify="right")
        rows = zip(
            outcome.seeds, outcome.episodes, outcome.solved_at, outcome.final_return, strict=True
        )
        for seed, episodes, at, final in rows:
            shown = "-" if final is None else f"{final:g}"
            table.add_row(str(seed), str(episodes), str(at or f"> {episodes}"), shown)
        table.add_section()
        cap = min(outcome.episodes)
        solved = [at or float("inf") for at in outcome.solved_at]
        low, middle, high = np.quantile(solved, [0.25, 0.5, 0.75], method="closest_observation")
        middle = outcome.median_solved_at or float("inf")
        spread = " - ".join(_episode(at, cap) for at in (low, high))
        table.add_row("median", "", _episode(middle, cap), "")
        table.add_row("quartiles", "", spread, f"{outcome.solved_fraction:.0%} solved")
        return table


@dataclass(frozen=True)
class GymTrainCommand:
    """Train an agent in a Gymnasium environment, seed after seed: randq train AGENT --env ID."""

    name: tyro.conf.Suppress[str]
    """The agent's name."""
    agent: DQN
    """Settings of the agent."""
    env: tyro.conf.Suppress[str]
    """Id of the environment."""
    env_kwargs: str = "{}"
    """What the environment is made with, as a JSON object."""
    seeds: int = 1
    """How many seeds."""
    seed: int = 0
    """The first seed."""
    steps: int = 100_000
    """Steps of the environment for each seed."""
    evaluation_episodes: int = 10
    """Episodes that are played at the end with all randomness of the agent disabled."""
    out: Path = Path("runs/train")
    """Folder for episodes.csv, summary.json and the agents."""
    json: bool = False
    """Print one JSON object on standard output, and everything else on standard error."""

    def check(self) -> None:
        for setting in ("seeds", "steps", "evaluation_episodes"):
            whole(setting, getattr(self, setting), at_least=1)
        whole("seed", self.seed, at_least=0)
        Stepper(self._make()).env.close()
        writable_folder("out", self.out)

    def _make(self) -> Any:
        return find(self.env, **_object("env-kwargs", self.env_kwargs))

    def run(self, console: Console) -> None:
        log = Console(stderr=True) if self.json else console
        seeds, start, rows = range(self.seed, self.seed + self.seeds), time.perf_counter(), []
        with (self.out / "episodes.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("seed", "episode", *Played._fields))
            for seed in seeds:
                env = self._make()
                agent = Agent(self.agent, Stepper(env).spaces).set_env(env, seed)
                try:
                    agent.learn(self.steps, progress_bar=not self.json)
                finally:  # what was learnt until then is kept
                    agent.save(self.out / f"seed-{seed}.randq")
                    writer.writerows((seed, i, *x) for i, x in enumerate(agent.episodes, 1))
                    file.flush()
                found = evaluate(agent, self._make(), self.evaluation_episodes, seed)
                rows.append((seed, len(agent.episodes), found))
        seconds = time.perf_counter() - start
        table = Table(title=f"{self.env}, {seconds:.1f} s")
        for column in ("seed", "episodes", "return", "deviation"):
            table.add_column(column, justify="right")
        for seed, episodes, found in rows:
            table.add_row(str(seed), str(episodes), f"{found.mean:g}", f"{found.std:.3g}")
        summary = {
            "agent": self.name,
            "env": self.env,
            "seeds": [
                {"seed": seed, "solved_at": None, "episodes": episodes, "final_return": found.mean}
                for seed, episodes, found in rows
            ],
            "median_solved_at": None,
            "solved_fraction": None,
            "steps_per_second": self.steps * self.seeds / seconds,
            "seconds": seconds,
        }
        write_summary(self.out, summary)
        log.print(table)
        log.print(f"The agents are {self.out}/seed-*.randq, for randq.load", soft_wrap=True)
        if self.json:
            print(json.dumps(summary))


def _object(setting: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    require(isinstance(value, dict), setting, text, 'a JSON object such as {"render_mode": null}')
    return dict(value)


@dataclass(frozen=True)
class ListCommand:
    """List agents, envs, presets or experiments: randq list agents."""

    what: tyro.conf.Positional[str]
    """agents, envs, presets or experiments."""

    def check(self) -> None:
        one_of("what", self.what, ["agents", "envs", "presets", "experiments"])

    def run(self, console: Console) -> None:
        table = Table(show_header=False, box=None)
        if self.what == "agents":
            for name, agent in PRESETS.items():
                table.add_row(name, first_line(agent.posterior))
        elif self.what == "envs":
            for name, env in ENVIRONMENTS.items():
                table.add_row(name, first_line(env))
        elif self.what == "presets":
            for name in PRESETS:
                table.add_row(name, str(preset(name)))
        else:
            for name, scales in EXPERIMENTS.items():
                table.add_row(name, first_line(next(iter(scales.values()))))
        console.print(table)


def first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def _episode(at: float, cap: int) -> str:
    return f"> {cap}" if at == float("inf") else f"{at:g}"


COMMANDS: dict[str, Any] = {
    "train": TrainCommand,
    "reproduce": reproduce.ReproduceCommand,
    "search": reproduce.SearchCommand,
    "regression": RegressionCommand,
    "list": ListCommand,
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
            default = _train_default(rest) if name == "train" else None
            command: Any = tyro.cli(
                type(default) if default else COMMANDS[name],
                prog=f"randq {name}",
                args=rest,
                default=default,
                # The preset decides whether there is an epsilon; its settings are plain options.
                config=(tyro.conf.AvoidSubcommands,),
            )
            command.check()
        except ValueError as error:
            _refuse(str(error))
        enable_compilation_cache()
        try:
            command.run(Console())
        except (BrokenEnvironmentError, DivergedError, StorageError) as error:
            _refuse(str(error), status=1)


def _train_default(rest: list[str]) -> TrainCommand | GymTrainCommand:
    """Take AGENT and --env ENV off the arguments: they decide which settings there are."""
    agent = rest.pop(0) if rest and not rest[0].startswith("-") else "mnf-dqn"
    env = "nchain"
    for i, word in enumerate(rest):
        if word == "--env" and i + 1 < len(rest):
            env = rest[i + 1]
            del rest[i : i + 2]
            break
        if word.startswith("--env="):
            env = rest.pop(i).removeprefix("--env=")
            break
    one_of("agent", agent, PRESETS)
    if env in ENVIRONMENTS:
        return TrainCommand(name=agent, agent=preset(agent, env), env=ENVIRONMENTS[env]())
    kwargs = [rest[i + 1] for i, word in enumerate(rest[:-1]) if word == "--env-kwargs"]
    made = find(env, **_object("env-kwargs", kwargs[0] if kwargs else "{}"))
    settings = preset(agent, domain(env, Stepper(made).spaces))
    made.close()
    return GymTrainCommand(name=agent, agent=settings, env=env)


def _refuse(sentence: str, status: int = 2) -> NoReturn:
    print(f"randq: {sentence}", file=sys.stderr)
    sys.exit(status)


def _usage() -> str:
    lines = [f"  {name:<12} {first_line(command)}" for name, command in COMMANDS.items()]
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
