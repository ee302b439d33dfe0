"""The command `randq`: a subcommand is a record of settings that checks itself and runs."""

import abc
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from randq import regression, reproduce
from randq.cache import enable_compilation_cache
from randq.config import field_names, flat, one_of, parts, require, whole, writable_folder
from randq.envs import ENVIRONMENTS
from randq.envs.gym.atari import describe
from randq.envs.gym.stepper import BrokenEnvironmentError
from randq.experiments import EXPERIMENTS
from randq.loops.host import DivergedError
from randq.presets import AGENTS, suited
from randq.report import figures
from randq.runs.directory import find_runs, read_json
from randq.runs.execute import (
    Group,
    begin,
    carry_out,
    check_free,
    go_on,
    groups,
    new_experiment,
    summary,
)
from randq.runs.gym import LAST
from randq.runs.interrupts import InterruptedRunError
from randq.runs.plan import CompiledPlan, GymPlan, Plan, default_plan, find_domain, read_plan
from randq.runs.recorder import require_wandb
from randq.storage import StorageError
from randq.version import VERSION


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
class _Train(abc.ABC):
    """What both kinds of training have beside the settings of the run."""

    typed: tyro.conf.Suppress[str] = ""
    """The command as it was given."""
    config: Path | None = None
    """A settings file, such as a run's settings.json, to begin with."""
    trust: bool = False
    """Allow that file to name an environment whose module must be imported."""
    out: Path | None = None
    """Folder of the experiment (runs/<date and time>); below it <agent>/<env>/seed-<k>."""
    overwrite: bool = False
    """Replace a run that is there already."""
    json: bool = False
    """Print one JSON object on standard output, and everything else on standard error."""

    @abc.abstractmethod
    def plan(self) -> Plan:
        """What the run is to do."""

    def check(self) -> None:
        plan = self.plan()
        if self.out is not None:
            writable_folder("out", self.out)
            check_free(plan, self.out, self.overwrite)
        if plan.wandb:
            require_wandb()
        _say_size(plan)

    def run(self, console: Console) -> None:
        log = Console(stderr=True) if self.json else console
        group = begin(self.plan(), self.out or new_experiment(), self.typed)
        found = _carry_out(group, log)
        if self.json:
            print(json.dumps(found))


@dataclass(frozen=True)
class TrainCommand(_Train, CompiledPlan):
    """Train an agent in an environment, ours or any of Gymnasium: randq train AGENT --env ENV.

    Parts that an agent may be without are switched on and off by a word: --agent.epsilon off.
    """

    name: tyro.conf.Suppress[str]

    def plan(self) -> Plan:
        return CompiledPlan(**{name: getattr(self, name) for name in field_names(CompiledPlan)})


@dataclass(frozen=True)
class GymTrainCommand(_Train, GymPlan):
    """Train an agent in a Gymnasium environment, seed after seed: randq train AGENT --env ID.

    Parts that an agent may be without are switched on and off by a word: --agent.epsilon off, or
    for DDPG --agent.noise on, --agent.thompson on, --agent.parameter-noise on.
    """

    name: tyro.conf.Suppress[str]
    env: tyro.conf.Suppress[str]

    def plan(self) -> Plan:
        return GymPlan(**{name: getattr(self, name) for name in field_names(GymPlan)})


@dataclass(frozen=True)
class ResumeCommand:
    """Go on with runs that were interrupted, as if they had not been: randq resume RUN."""

    run_folder: tyro.conf.Positional[Path]
    """Folder of a run, or one with runs in it."""
    trust: bool = False
    """Allow the run to name an environment whose module must be imported."""
    json: bool = False
    """Print one JSON object on standard output (a list if there are several runs)."""

    def check(self) -> None:
        for group in groups(self.run_folder, self.trust):
            if not group.is_finished:
                _say_size(group.plan)

    def run(self, console: Console) -> None:
        log = Console(stderr=True) if self.json else console
        found = []
        for group in groups(self.run_folder, self.trust):
            if group.is_finished:
                log.print(f"{group.where}: is finished already", soft_wrap=True)
                found.append(summary(group.plan, group.results()))
            else:
                found.append(_carry_out(go_on(group), log))
        if self.json:
            print(json.dumps(found[0] if len(found) == 1 else found))


@dataclass(frozen=True)
class RunsCommand:
    """List runs, with how they are and how far: randq runs."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Where to look for them."""
    json: bool = False
    """Print a JSON list."""

    def check(self) -> None:
        require(self.folder.is_dir(), "folder", str(self.folder), "a folder with runs in it")

    def run(self, console: Console) -> None:
        found = [directory.summary() for directory in find_runs(self.folder)]
        if self.json:
            print(json.dumps([each._asdict() for each in found]))
            return
        table = Table()
        mean = f"mean return of {LAST}"  # the last episodes of training
        for column in ("run", "status", "progress", mean, "age", "fingerprint"):
            right = column in ("progress", mean, "age")
            table.add_column(column, justify="right" if right else "left", overflow="fold")
        for each in found:
            status = each.status if each.why is None else f"failed: {each.why}"
            table.add_row(
                escape(each.path),
                escape(status),
                "-" if each.done is None else f"{each.done}/{each.budget} {each.unit}",
                "-" if each.last_return is None else f"{each.last_return:g}",
                _age(each.age),
                (each.fingerprint or "-")[:12],
            )
        console.print(table)


def _say_size(plan: Plan) -> None:
    """Refuse a replay that does not fit, and say how large it is if that is much."""
    size = plan.check_fits()
    if size >= 1e8:
        capacity = f"{plan.agent.replay_capacity:,}"
        print(f"replay: {capacity} transitions, {size / 1e9:.1f} GB of memory", file=sys.stderr)


def _carry_out(group: Group, log: Console) -> dict[str, Any]:
    """Run it, show how it goes, and say how it went."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[unit]}"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    where = shlex.quote(str(group.where))
    if protocol := describe(group.plan.env_name):
        print(protocol, file=sys.stderr)
    try:
        with Progress(*columns, console=log, transient=True) as bar:
            task = bar.add_task("compiling", total=None, note="", unit="")

            def watch(at: Any) -> None:
                bar.update(
                    task,
                    description="training",
                    total=at.budget,
                    completed=at.done,
                    unit=at.unit,
                    note=at.note,
                )

            rows = carry_out(group, watch, lambda sentence: log.print(f"warning: {sentence}"))
    except InterruptedRunError as interrupted:
        print(f"randq: stopped by {interrupted}; all is kept. Go on with:", file=sys.stderr)
        print(f"randq resume {where}", file=sys.stderr)
        sys.exit(128 + interrupted.signal)
    except StorageError as error:
        raise StorageError(
            f"{error}. When that is mended, go on with: randq resume {where}"
        ) from error
    found = summary(group.plan, rows)
    log.print(_table(group.plan, found))
    parent = group.directories[0].path.parent
    if all(row["solved_at"] is not None for row in rows):
        log.print("It was over when all seeds had solved the task, whatever was left to do")
    log.print(f"The runs are {parent}/seed-*, each with an agent for randq.load", soft_wrap=True)
    return found


def _table(plan: Plan, found: dict[str, Any]) -> Table:
    seeds = found["seeds"]
    table = Table(title=f"{plan.env}, {found['seconds']:.1f} s")
    for column in ("seed", "episodes", "solved at", "last evaluation"):
        table.add_column(column, justify="right")
    compiled = isinstance(plan, CompiledPlan)
    for row in seeds:
        shown = "-" if row["final_return"] is None else f"{row['final_return']:g}"
        at = str(row["solved_at"] or f"> {row['episodes']}") if compiled else "-"
        table.add_row(str(row["seed"]), str(row["episodes"]), at, shown)
    if compiled:
        table.add_section()
        cap = min(row["episodes"] for row in seeds)
        solved = [float(row["solved_at"] or "inf") for row in seeds]
        low, high = np.quantile(solved, [0.25, 0.75], method="closest_observation")
        middle = found["median_solved_at"] or float("inf")
        spread = " - ".join(_episode(at, cap) for at in (low, high))
        table.add_row("median", "", _episode(middle, cap), "")
        table.add_row("quartiles", "", spread, f"{found['solved_fraction']:.0%} solved")
    return table


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


@dataclass(frozen=True)
class ListCommand:
    """List agents, envs, presets or experiments: randq list agents."""

    what: tyro.conf.Positional[str]
    """agents, envs, presets or experiments."""
    env: str = "nchain"
    """Of presets: the environment to show the settings for."""

    def check(self) -> None:
        one_of("what", self.what, ["agents", "envs", "presets", "experiments"])
        find_domain(self.env)

    def run(self, console: Console) -> None:
        table = Table(show_header=False, box=None)
        if self.what == "agents":
            for name, agent in AGENTS.items():
                table.add_row(name, first_line(agent.posterior))
        elif self.what == "envs":
            for name, env in ENVIRONMENTS.items():
                table.add_row(name, first_line(env))
            for names, about in ELSEWHERE.items():
                table.add_row(names, about)
        elif self.what == "presets":
            found = {name: flat(agent) for name, agent in suited(find_domain(self.env)).items()}
            first = next(iter(found.values()))
            alike = [
                setting
                for setting, value in first.items()
                if all(setting in each and each[setting] == value for each in found.values())
            ]
            table.add_row("all of them", _settings({name: first[name] for name in alike}))
            for name, each in found.items():
                own = {setting: value for setting, value in each.items() if setting not in alike}
                table.add_row(name, _settings(own))
        else:
            for name, scales in EXPERIMENTS.items():
                table.add_row(name, first_line(next(iter(scales.values()))))
        console.print(table)


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{setting} {value}" for setting, value in values.items())


def first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def _episode(at: float, cap: int) -> str:
    return f"> {cap}" if at == float("inf") else f"{at:g}"


ELSEWHERE = {
    "CartPole-v1, ...": "Any id that Gymnasium knows, outside XLA.",
    "HalfCheetah-v5, ...": "MuJoCo, the extra mujoco.",
    "MinAtar/Breakout-v1, ...": "MinAtar's five games, the extra minatar.",
    "atari-paper/Breakout, ...": "Atari games as the paper has them, the extra atari.",
    "atari-machado/Breakout, ...": "The same with sticky actions, and no word on lives.",
}
"""Environments that are not ours."""

COMMANDS: dict[str, Any] = {
    "train": TrainCommand,
    "resume": ResumeCommand,
    "runs": RunsCommand,
    "reproduce": reproduce.ReproduceCommand,
    "search": reproduce.SearchCommand,
    "regression": RegressionCommand,
    "list": ListCommand,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    try:
        try:
            _main(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read what is printed, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _main(arguments: Sequence[str] | None) -> None:
    """Parse and validate everything first, then run."""
    name, *rest = arguments if arguments is not None else sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(_usage())
    elif name == "--version":
        print(f"randq {VERSION}")
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
    """Take AGENT, --env ENV and --config FILE off the arguments: they decide what settings are."""
    typed = shlex.join(["randq", "train", *rest])
    env, config = _take(rest, "--env"), _take(rest, "--config")
    agent = rest.pop(0) if rest and not rest[0].startswith("-") else None
    if config is None:
        kwargs = [rest[i + 1] for i, word in enumerate(rest[:-1]) if word == "--env-kwargs"]
        plan = default_plan(agent or "mnf-dqn", env or "nchain", *kwargs[:1])
    else:
        given = {"agent": agent, "env": env}
        for name, value in given.items():
            require(value is None, name, value, "nothing: the settings file says it")
        plan = read_plan(read_json(Path(config)), trust="--trust" in rest)
    plan = replace(plan, agent=_with_parts(plan.agent, rest))
    command = TrainCommand if isinstance(plan, CompiledPlan) else GymTrainCommand
    settings = {name: getattr(plan, name) for name in field_names(plan)}
    return command(**settings, typed=typed, config=None if config is None else Path(config))


def _with_parts(agent: Any, rest: list[str]) -> Any:
    """The agent with the parts that the arguments switch on or off, or have a setting of."""
    for name, kind in parts(agent).items():
        option = f"--agent.{name.replace('_', '-')}"
        said = _take(rest, option)
        if said is not None:
            one_of(option.removeprefix("--"), said, ["on", "off"])
        named = any(word.startswith(f"{option}.") for word in rest)
        if said == "off":
            agent = replace(agent, **{name: None})
        elif (said or named) and getattr(agent, name) is None:
            agent = replace(agent, **{name: kind()})
    return agent


def _take(rest: list[str], option: str) -> str | None:
    """Take an option and its value off the arguments."""
    for i, word in enumerate(rest):
        if word == option and i + 1 < len(rest):
            value = rest[i + 1]
            del rest[i : i + 2]
            return value
        if word.startswith(f"{option}="):
            return rest.pop(i).removeprefix(f"{option}=")
    return None


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
