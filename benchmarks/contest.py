"""A contest: contestants in processes of their own that take turns, a few seconds each.

The speed of a machine that others share drifts by half within minutes. So all contestants are
started and warmed up first, and then each has one turn in every round: what is compared was
measured within a minute. A ratio is the median over rounds of the ratio within a round, with
quartiles. Each contestant runs free on all cores and also pinned to one, because small programs are
faster on one; the better way counts. Peers that are not installed are left out.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

Found = dict[str, float]
"""At least `speed`: steps per second."""
Play = Callable[[int], Found]
"""Takes so many steps, and says how that went."""

EVERY = os.sched_getaffinity(0)
WAYS = {"all cores": EVERY, "one core": {min(EVERY)}}
SECONDS = 2.0
"""Of a turn."""


@dataclass(frozen=True)
class Contest:
    """Who is measured, and how."""

    script: str
    title: str
    ours: Sequence[str]
    peers: Mapping[str, str]
    """By name, the module that each needs."""
    enter: Callable[[str], Play]
    """Gets a contestant ready, in a process of its own."""
    warm_up: int
    """Steps before the first turn."""
    unit: int = 1
    """Turns are multiples of so many steps."""
    side_by_side: str | None = None
    """One of ours that is also run on each core at once."""

    def run(self) -> "Outcome | None":
        """Everyone's results, printed; None in the process of a contestant."""
        parser = argparse.ArgumentParser(description=self.title)
        parser.add_argument("--one", help=argparse.SUPPRESS)
        parser.add_argument("--rounds", type=int, default=10, help="turns of each contestant")
        arguments = parser.parse_args()
        if arguments.one:
            self._take_part(arguments.one)
            return None
        names = [*self.ours, *(name for name, x in self.peers.items() if _installed(x))]
        teams = {
            (name, way): [Contestant(self.script, name, cores)]
            for name in names
            for way, cores in WAYS.items()
        }
        if self.side_by_side:
            members = [Contestant(self.script, self.side_by_side, {core}) for core in sorted(EVERY)]
            teams[self.side_by_side, "side by side"] = members
        found: dict[tuple[str, str], list[Found]] = {key: [] for key in teams}
        for _ in range(arguments.rounds):
            for key, team in teams.items():
                found[key].append(_turn(team))
        for team in teams.values():
            for member in team:
                member.end()
        outcome = Outcome(names, found)
        outcome.show(self.title)
        return outcome

    def _take_part(self, name: str) -> None:
        play = self.enter(name)
        play(self.warm_up)
        start = time.perf_counter()
        play(self.warm_up)
        turn = self.warm_up * SECONDS / (time.perf_counter() - start)
        steps = max(1, round(turn / self.unit)) * self.unit
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps(play(steps)), flush=True)


class Contestant:
    """A process that is ready, and waits for its turn."""

    def __init__(self, script: str, name: str, cores: set[int]) -> None:
        self.name = name
        threads = str(len(cores))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        code = f"import os; os.sched_setaffinity(0, {cores}); import runpy, sys; sys.argv = "
        code += f"[{script!r}, '--one', {name!r}]; "
        code += f"sys.path.append({str(Path(__file__).parent)!r}); "
        code += f"runpy.run_path({script!r}, run_name='__main__')"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while self._read() != "ready":  # whatever else a library has to say
            pass

    def go(self) -> None:
        """Begin a turn."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> Found:
        """What came of the turn."""
        while not (line := self._read()).startswith("{"):
            pass
        found: Found = json.loads(line)
        return found

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self.name}: {self._process.stderr.read().strip().splitlines()[-1]}")
        return line.strip()


@dataclass(frozen=True)
class Outcome:
    """The turns of all contestants, by name and way."""

    names: Sequence[str]
    found: Mapping[tuple[str, str], Sequence[Found]]

    def speeds(self, name: str, way: str | None = None) -> list[float]:
        """Of each round, in a way or in the better one."""
        return [one["speed"] for one in self.found[name, way or self.way(name)]]

    def way(self, name: str) -> str:
        """The better way to run it."""
        return max(WAYS, key=lambda way: median(self.speeds(name, way)))

    def mean(self, name: str, what: str) -> float:
        """Of all rounds, in the better way."""
        found = self.found[name, self.way(name)]
        return sum(one[what] for one in found) / len(found)

    def ratio(self, title: str, above: Iterable[float], below: Iterable[float]) -> None:
        """Print the ratio within a round."""
        each = [a / b for a, b in zip(above, below, strict=True)]
        print(f"{title}: {_middle(each, '.2f')}")

    def show(self, title: str) -> None:
        """Print all speeds."""
        rounds = len(next(iter(self.found.values())))
        print(f"{title}: steps/s, median of {rounds} rounds (quartiles)")
        for name in self.names:
            ways = "; ".join(f"{way} {_middle(self.speeds(name, way), ',.0f')}" for way in WAYS)
            print(f"  {name:30} {ways}")


def _turn(team: Sequence[Contestant]) -> Found:
    """All of them at once; what they come to together."""
    for member in team:
        member.go()
    found = [member.result() for member in team]
    return {**found[0], "speed": sum(one["speed"] for one in found)}


def _middle(values: Sequence[float], form: str) -> str:
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return f"{median(values):{form}} ({low:{form}} to {high:{form}})"


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
