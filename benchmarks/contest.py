"""A contest: each contestant measured in a process of its own, in turn with the others.

Each runs free on all cores and pinned to one, because small programs are faster on one. Peers that
are not installed are left out.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

Found = dict[str, float]
"""At least `speed`: steps per second."""

EVERY = os.sched_getaffinity(0)
WAYS = {"all cores": EVERY, "one core": {min(EVERY)}}


@dataclass(frozen=True)
class Contest:
    """Who is measured, and how."""

    script: str
    title: str
    ours: Sequence[str]
    peers: Mapping[str, str]
    """By name, the module that each needs."""
    measure: Callable[[str], Found]
    """In the process of one contestant."""
    rounds: int = 2

    def run(self) -> dict[str, Found] | None:
        """The best result of each contestant, printed with all others; None in the process of one
        of them."""
        parser = argparse.ArgumentParser(description=self.title)
        parser.add_argument("--one", help=argparse.SUPPRESS)
        parser.add_argument("--rounds", type=int, default=self.rounds, help="runs each way")
        arguments = parser.parse_args()
        if arguments.one:
            print(json.dumps(self.measure(arguments.one)))
            return None
        names = [*self.ours, *(name for name, x in self.peers.items() if _installed(x))]
        found: dict[str, dict[str, list[Found]]] = {name: {w: [] for w in WAYS} for name in names}
        for _ in range(arguments.rounds):
            for name in names:
                for way, cores in WAYS.items():
                    found[name][way].append(self.alone(name, cores))
        print(f"{self.title}: steps/s, best of {arguments.rounds} runs each way")
        for name, by in found.items():
            runs = "; ".join(
                f"{way}: " + ", ".join(f"{one['speed']:,.0f}" for one in x) for way, x in by.items()
            )
            print(f"  {name:30} {_best(by)['speed']:>9,.0f}   ({runs})")
        return {name: _best(by) for name, by in found.items()}

    def alone(self, name: str, cores: set[int]) -> Found:
        """One contestant in a process of its own, which may use these cores."""
        threads = str(len(cores))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        code = f"import os; os.sched_setaffinity(0, {cores}); import runpy, sys; sys.argv = "
        code += f"[{self.script!r}, '--one', {name!r}]; "
        code += f"sys.path.append({str(Path(__file__).parent)!r}); "
        code += f"runpy.run_path({self.script!r}, run_name='__main__')"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
        found: Found = json.loads(done.stdout.splitlines()[-1])
        return found

    def side_by_side(self, name: str) -> list[Found]:
        """One contestant on each core, all at once."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda core: self.alone(name, {core}), sorted(EVERY)))


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _best(by: Mapping[str, Sequence[Found]]) -> Found:
    return max((one for runs in by.values() for one in runs), key=lambda one: one["speed"])
