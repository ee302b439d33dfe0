"""The local engine: worker processes on the cores of this machine, one job each at a time.

A worker is a Python process that reads jobs and writes results, each a line of JSON, through pipes.
So it shares nothing with the process that asks, whose script needs no `__main__` guard; it ends
when that process ends, however it ends; and a worker that dies takes one job with it, no more.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO

from randq.config import whole
from randq.sweep.jobs import Finished, Job

# The core is chosen before JAX is imported, because XLA sizes its pool of threads by it.
START = "{pin}from randq.sweep.worker import main; main()"


def cores() -> list[int]:
    """The cores that this process may use; empty where the platform does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def default_workers() -> int:
    """One for each core."""
    return len(cores()) or os.cpu_count() or 1


def run(jobs: Sequence[Job], workers: int) -> Iterator[Finished]:
    """Perform jobs on worker processes, and yield each as it finishes.

    Closing the iterator, or an exception such as Ctrl-C while it waits, stops the workers.
    """
    whole("workers", workers, at_least=1)
    todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
    finished: queue.SimpleQueue[Finished] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)
    pins = cores()
    hands = [
        _Hand(todo, finished, pins[i % len(pins)] if pins else None)
        for i in range(min(workers, len(jobs)))
    ]
    try:
        for hand in hands:
            hand.start()
        for _ in jobs:
            yield finished.get()
    finally:
        for hand in hands:
            hand.stop()


class _Hand(threading.Thread):
    """Passes jobs to one worker process, and starts another one if that dies."""

    def __init__(
        self,
        todo: "queue.SimpleQueue[Job]",
        finished: "queue.SimpleQueue[Finished]",
        core: int | None,
    ) -> None:
        super().__init__(daemon=True)
        self._todo, self._finished, self._core = todo, finished, core
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def run(self) -> None:
        with tempfile.TemporaryFile("w+") as log:
            while not self._stopped:
                try:
                    job = self._todo.get_nowait()
                except queue.Empty:
                    break
                self._finished.put(self._ask(job, log))
            self._end()

    def stop(self) -> None:
        """End the worker, whatever it is doing."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()
        if self.is_alive():
            self.join()

    def _ask(self, job: Job, log: IO[str]) -> Finished:
        said = ""
        try:
            process = self._worker(log)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(job.as_json()) + "\n")
            process.stdin.flush()
            if (reply := process.stdout.readline()).endswith("\n"):
                return Finished(job, **json.loads(reply))
        except OSError as error:
            said = f": {error.strerror or error}"
        code = self._end()
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended ({code})"
        log.seek(0)
        last = "".join(f"; {line}" for line in log.read().strip().splitlines()[-1:])
        return Finished(job, None, f"its worker process {how}{said}{last}")

    def _worker(self, log: IO[str]) -> "subprocess.Popen[str]":
        with self._lock:
            if self._stopped:
                raise OSError("stopped")
            if self._process is None:
                self._process = _start(self._core, log)
            return self._process

    def _end(self) -> int:
        """End the worker, if there is one, and say how it ended."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was still to be written has no reader any more
                pipe.close()
        return process.wait()


def _start(core: int | None, log: IO[str]) -> "subprocess.Popen[str]":
    pin = "" if core is None else f"import os; os.sched_setaffinity(0, {{{core}}}); "
    log.seek(0)
    log.truncate()
    return subprocess.Popen(
        [sys.executable, "-c", START.format(pin=pin)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        # Ours is the decision what Ctrl-C in the terminal does: it does not reach the workers.
        process_group=0 if os.name == "posix" else None,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
