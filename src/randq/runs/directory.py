"""The folder of a run: `<experiment>/<agent>/<env>/seed-<k>/`, and what is in it.

    settings.json      all settings, resolved; `randq train --config` takes it back
    run.json           the command, versions and the machine
    metrics.jsonl      a record every so often; appended to, and readable while training
    evaluations.jsonl  a record for each evaluation
    episodes.csv       a row for each episode of training
    checkpoints/       the last two
    replay/            transitions, where checkpoints leave them out
    agent.randq        the saved agent, for `randq.load`
    result.json        what came of it, once it is finished
    failure.json       why it stopped, if it failed

A process that works on a run holds a lock on it, which the system takes away when the process is no
more: so a run that is neither locked, finished nor failed was interrupted.
"""

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

from randq import storage
from randq.storage import StorageError
from randq.version import VERSION

SETTINGS, RUN, RESULT, FAILURE = "settings.json", "run.json", "result.json", "failure.json"
METRICS, EVALUATIONS, EPISODES = "metrics.jsonl", "evaluations.jsonl", "episodes.csv"
CHECKPOINTS, REPLAY, AGENT, LOCK = "checkpoints", "replay", "agent.randq", "lock"
EVENTS = "tensorboard"
LOGS = (METRICS, EVALUATIONS, EPISODES)
MAX_JSON = 2**22
"""Bytes of a JSON file that are read."""

Status = Literal["running", "finished", "interrupted", "failed"]


class BusyError(StorageError):
    """Another process is at work on a run."""


class Summary(NamedTuple):
    """A run in a list."""

    path: str
    agent: str | None
    env: str | None
    seed: int | None
    status: Status
    why: str | None
    """Why it failed."""
    done: int | None
    """Of its budget, in steps or episodes ..."""
    budget: int | None
    unit: str | None
    """... as this says."""
    last_return: float | None
    """Mean return of the last episodes."""
    age: float | None
    """Seconds since it was begun."""
    fingerprint: str | None
    """Of a finished run: equal ones are the same to the bit."""


class RunDirectory:
    """One run on disk. Nothing but the process that has locked it writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: TextIO | None = None
        self._logs: dict[str, TextIO] = {}

    # Whose it is

    @property
    def exists(self) -> bool:
        return (self.path / SETTINGS).exists()

    def create(
        self, seed: int, settings: Mapping[str, Any], command: str, protocol: str | None = None
    ) -> None:
        """Begin a run: what was here before is gone. It must be locked."""
        for entry in self.path.iterdir():
            if entry.name == LOCK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        (self.path / CHECKPOINTS).mkdir()
        about: dict[str, Any] = {"seed": seed, "command": command, "created": time.time()}
        if protocol is not None:
            about["protocol"] = protocol
        self.write_json(RUN, {**about, **_machine()})
        self.write_json(SETTINGS, settings)

    def lock(self) -> None:
        """Take the run for this process, or raise `BusyError`."""
        self._refuse_links()  # before anything is written
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / LOCK).open("a+")
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written ({error.strerror})") from error
        # Whoever lists runs looks at the lock for a moment: that is not to be taken for work.
        for _ in range(20):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.01)
        else:
            file.seek(0)
            owner = file.read(20).strip() or "unknown"
            file.close()
            raise BusyError(f"{self.path}: process {owner} is at work on this run")
        with suppress(OSError):  # who it is is only for the message above
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        self._lock = file
        for entry in self._entries():
            if entry.name.startswith(storage.TEMPORARY):  # of a process that was killed
                entry.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of it."""
        for file in self._logs.values():
            with suppress(OSError):
                file.close()
        self._logs.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _entries(self) -> Iterator[Path]:
        """The run, its folders, and all that is in them."""
        for folder in (self.path, *(self.path / name for name in (CHECKPOINTS, REPLAY, EVENTS))):
            yield folder
            yield from folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ()

    def _refuse_links(self) -> None:
        """A run keeps its files in its own folder: a link in it could lead anywhere."""
        for entry in self._entries():
            if entry.is_symlink():
                raise StorageError(f"{entry}: is a link, and a run keeps no links")

    # What is in it

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        storage.write(self.path / name, (json.dumps(data, indent=2) + "\n").encode())

    def read_json(self, name: str) -> dict[str, Any]:
        return read_json(self.path / name)

    def append(self, name: str, lines: str) -> None:
        """Put whole lines at the end of a log."""
        try:
            if name not in self._logs:
                self._logs[name] = (self.path / name).open("a", newline="")
            self._logs[name].write(lines)
            self._logs[name].flush()
        except OSError as error:
            raise StorageError(
                f"{self.path / name}: cannot be written ({error.strerror})"
            ) from error

    def sync(self) -> dict[str, int]:
        """Bring all logs safely to the disk, and say how long each is."""
        sizes = {}
        for name in LOGS:
            self.append(name, "")
            try:
                os.fsync(self._logs[name].fileno())
            except OSError as error:
                raise StorageError(
                    f"{self.path / name}: cannot be written ({error.strerror})"
                ) from error
            sizes[name] = (self.path / name).stat().st_size
        return sizes

    def cut(self, sizes: Mapping[str, int]) -> None:
        """Take the logs back to what they were: what came after has yet to happen again."""
        for name in LOGS:
            path, size = self.path / name, int(sizes.get(name, 0))
            found = path.stat().st_size if path.exists() else 0
            if not 0 <= size <= found:
                raise StorageError(f"{path}: has {found} bytes, where the checkpoint saw {size}")
            if found:
                os.truncate(path, size)

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The records of a log of JSON."""
        path = self.path / name
        if path.exists():
            with path.open() as file:
                yield from (json.loads(line) for line in file)

    @property
    def seed(self) -> int:
        """Which seed it is of."""
        got = self.read_json(RUN).get("seed")
        seed = _whole(got)
        if seed is None or not 0 <= seed < 2**31:
            takes = "an integer from 0 to 2**31"
            raise StorageError(f"{self.path / RUN}: seed: got {str(got)[:100]!r}, takes {takes}")
        return seed

    # How it is

    def summary(self) -> Summary:
        """What a list shows of it. A file that makes no sense is left out of account."""
        settings, run, result, failure = (self._try(n) for n in (SETTINGS, RUN, RESULT, FAILURE))
        why = _text(failure.get("why"))
        status: Status = "failed" if why else "interrupted"
        if result:
            status = "finished"
        elif self._is_locked():
            status, why = "running", None
        last = self._last_record()
        unit = next((u for u in ("episodes", "steps") if settings.get(u)), None)
        done = _whole(last.get({"episodes": "episode", "steps": "step"}.get(unit or "", "")))
        done = _whole(result.get(unit or "")) or done  # the last record may be from before the end
        env = settings.get("env")
        env = env.get("kind") if isinstance(env, dict) else env
        created = _number(run.get("created"))
        return Summary(
            path=str(self.path),
            agent=_text(settings.get("name")),
            env=_text(env),
            seed=_whole(run.get("seed")),
            status=status,
            why=why,
            done=done,
            budget=_whole(settings.get(unit)) if unit else None,
            unit=unit,
            last_return=_number(last.get("rollout/ep_rew_mean")),
            age=None if created is None else time.time() - created,
            fingerprint=_text(result.get("fingerprint")),
        )

    def _try(self, name: str) -> dict[str, Any]:
        try:
            return self.read_json(name)
        except StorageError:
            return {}

    def _is_locked(self) -> bool:
        try:
            with (self.path / LOCK).open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def _last_record(self) -> dict[str, Any]:
        try:
            with (self.path / METRICS).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 2**16))
                lines = file.read(2**16).split(b"\n")
        except OSError:
            return {}
        for line in reversed(lines):  # the last one may be half written
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict):
                    return record
        return {}


def seed_folder(experiment: Path, agent: str, env: str, seed: int) -> Path:
    """Where a run goes."""
    return experiment / agent / env.replace("/", "-").replace(":", "-") / f"seed-{seed}"


def find_runs(root: Path) -> list[RunDirectory]:
    """All runs below a folder, or the one that it is."""
    found = (path.parent for path in root.rglob(SETTINGS) if (path.parent / RUN).exists())
    return [RunDirectory(path) for path in sorted(found, key=_natural)]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or a `StorageError`."""
    try:
        if path.exists() and not path.is_file():
            raise StorageError(f"{path}: is not a file")
        with path.open("rb") as file:
            content = file.read(MAX_JSON + 1)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
    if len(content) > MAX_JSON:
        raise StorageError(f"{path}: is larger than {MAX_JSON} bytes")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: is no JSON ({str(error)[:100]})") from error
    if not isinstance(data, dict):
        raise StorageError(f"{path}: is no JSON object")
    return data


def _natural(path: Path) -> list[tuple[str, int]]:
    """Seed 10 comes after seed 9."""
    parts = [part.rpartition("-") for part in path.parts]
    return [(a, int(b)) if b.isdecimal() else (a + b, -1) for a, _, b in parts]


def _machine() -> dict[str, Any]:
    packages = ("jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco", "ale-py")
    versions = {"python": platform.python_version(), "randq": VERSION}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = {"system": platform.platform(), "processor": platform.machine(), "cores": cores}
    return {"versions": versions, "machine": machine}


def _text(value: object) -> str | None:
    return value[:1000] if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
