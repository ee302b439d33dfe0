"""The file that keeps the results of a sweep: one line of JSON each, written as they come."""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from randq.config import require
from randq.sweep.jobs import Job, Result


class Store:
    """Results by job. One process at a time holds it; what it has added survives any crash."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        if not _lock(self._file):
            self._file.close()
            require(False, "out", str(path.parent), "a folder that no other sweep is writing to")
        self._file.seek(0)
        text = self._file.read()
        self._file.truncate(text.rfind(b"\n") + 1)  # of a process that died while it wrote a line
        self._results = _parsed(text)

    def get(self, job: Job) -> Result | None:
        """The result of a job, made with the settings that its names stand for now."""
        return self._results.get(job.key)

    def add(self, job: Job, result: Result) -> None:
        """Keep a result; it is on the disk when this returns."""
        line = {"job": job.as_json(), "settings": job.settings, "result": result}
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._results[job.key] = result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def read(path: Path) -> dict[str, Result]:
    """The results in a file by the keys of their jobs, while another process may hold it."""
    return _parsed(path.read_bytes()) if path.exists() else {}


def _parsed(text: bytes) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        with suppress(ValueError, KeyError, TypeError):  # a damaged line is a job not done
            row = json.loads(line)
            results[json.dumps([row["job"], row["settings"]], sort_keys=True)] = row["result"]
    return results


def _lock(file: Any) -> bool:
    """Keep others out for as long as the file is open; where that is impossible, trust them."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems know no locks
        return True
    return True
