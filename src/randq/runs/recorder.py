"""What a run has to say, put into its folder; and to TensorBoard and Weights & Biases if asked for.

The names of metrics are those that people know from Stable-Baselines3. What depends on the clock
begins with `time/`: all else is the same when a run is repeated.
"""

import hashlib
import importlib
import importlib.util
import json
import math
import shutil
import time
from collections.abc import Iterable, Mapping
from typing import Any

from randq import storage
from randq.config import require
from randq.runs import events
from randq.runs.directory import EPISODES, EVALUATIONS, EVENTS, METRICS, RunDirectory
from randq.runs.plan import Plan
from randq.settings import to_json
from randq.types import PyTree

CLOCK = "time/"
COLUMNS = ("episode", "step", "length", "return")


class Recorder:
    """The logs of one seed."""

    def __init__(self, directory: RunDirectory, plan: Plan, seed: int) -> None:
        self.directory = directory
        self._plan, self._seed = plan, seed
        self._file = directory.path / EVENTS / "events.out.tfevents.randq"
        self._wandb: Any = None

    def begin(self, sizes: Mapping[str, int] | None) -> None:
        """Begin the logs, or go on from where they were when they had these sizes."""
        self.directory.cut(sizes or {})
        if not (sizes or {}).get(EPISODES):
            self.directory.append(EPISODES, ",".join(COLUMNS) + "\n")
        if self._plan.wandb:
            self._wandb = _wandb().init(
                project="randq",
                name=f"{self._plan.name}-{self._plan.env_name}-seed-{self._seed}",
                id=hashlib.sha256(str(self.directory.path.absolute()).encode()).hexdigest()[:16],
                dir=str(self.directory.path),
                config={**to_json(self._plan), "seed": self._seed},
                resume="allow",
                reinit="create_new",
            )
        if self._plan.tensorboard:  # made anew from the logs, which were cut to what is true
            shutil.rmtree(self._file.parent, ignore_errors=True)
            began = self.directory.read_json("run.json")["created"]
            events.append(self._file, events.opening(began))
            for name in (METRICS, EVALUATIONS):
                for record in self.directory.lines(name):
                    self._emit(record, began + record.get("time/time_elapsed", 0.0))

    def metrics(self, records: Iterable[Mapping[str, Any]]) -> None:
        plain = [{key: _plain(value) for key, value in record.items()} for record in records]
        self.directory.append(METRICS, "".join(json.dumps(record) + "\n" for record in plain))
        self._emit_all(plain)

    def evaluations(self, rows: Iterable[tuple[int, int, float, float]]) -> None:
        """Each as step, episode, and mean and deviation of the returns."""
        names = ("step", "episode", "eval/mean_reward", "eval/std_reward")
        rows = list(rows)
        form = '{{"%s": {}, "%s": {}, "%s": {:.7g}, "%s": {:.7g}}}' % names  # noqa: UP031
        self.directory.append(EVALUATIONS, "".join(form.format(*row) + "\n" for row in rows))
        self._emit_all(dict(zip(names, row, strict=True)) for row in rows)

    def episodes(self, rows: Iterable[tuple[int, int, int, float]]) -> None:
        """Rows of `COLUMNS`."""
        self.directory.append(EPISODES, "".join(f"{a},{b},{c},{d:.9g}\n" for a, b, c, d in rows))

    def end(self) -> None:
        if self._wandb is not None:
            self._wandb.finish()

    def fingerprint(self, final: PyTree) -> str:
        """A checksum of the final state and of all logs but for what depends on the clock."""
        whole = hashlib.sha256(storage.digest(final).encode())
        for name in (METRICS, EVALUATIONS):
            for record in self.directory.lines(name):
                kept = {key: value for key, value in record.items() if not key.startswith(CLOCK)}
                whole.update(json.dumps([name, kept], sort_keys=True).encode())
        whole.update((self.directory.path / EPISODES).read_bytes())
        return whole.hexdigest()

    def _emit_all(self, records: Iterable[Mapping[str, Any]]) -> None:
        if self._plan.tensorboard or self._wandb is not None:
            for record in records:
                self._emit(record, time.time())

    def _emit(self, record: Mapping[str, Any], wall_time: float) -> None:
        numbers = {tag: float(x) for tag, x in record.items() if tag != "step" and x is not None}
        if self._plan.tensorboard:
            events.append(self._file, events.scalars(record["step"], wall_time, numbers))
        if self._wandb is not None:
            self._wandb.log(numbers, step=record["step"])


def _plain(value: Any) -> Any:
    """As JSON has it: a number that is none is null."""
    if isinstance(value, bool | int):
        return value
    return float(f"{value:.7g}") if math.isfinite(value) else None


def require_wandb() -> None:
    """Refuse `--wandb` where it is not installed."""
    found = importlib.util.find_spec("wandb") is not None
    require(found, "wandb", True, "the package wandb to be installed (pip install wandb)")


def _wandb() -> Any:
    return importlib.import_module("wandb")
