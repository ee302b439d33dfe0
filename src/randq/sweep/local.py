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
from pathlib import Path
from typing import IO

from randq.config import whole
from randq.sweep.jobs import Finished, Job, Underway

Event = Finished | Underway
GRACE = 30.0
"""Seconds that a worker has to bring what it does to safety when it is told to end."""
# The core is chosen before JAX is imported, because XLA sizes its pool of threads by it.
START = "{pin}from randq.sweep.worker import main; main()"


def cores() -> list[int]:
    """The cores that this process may use; empty where the platform does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def default_workers() -> int:
    """One for each core."""
    return len(cores()) or os.cpu_count() or 1


def run(jobs: Sequence[Job], folder: Path, workers: int) -> Iterator[Event]:
    """Perform jobs on worker processes; yield how far they are, and each as it finishes.

    Closing the iterator, or an exception such as Ctrl-C while it waits, stops the workers.
    """
    whole("workers", workers, at_least=1)
    todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)
    pins = cores()
    hands = [
        _Hand(todo, events, folder, pins[i % len(pins)] if pins else None)
        for i in range(min(workers, len(jobs)))
    ]
    left = len(jobs)
    try:
        for hand in hands:
            hand.start()
        while left:
            event = events.get()
            left -= isinstance(event, Finished)
            yield event
    finally:
        for hand in hands:
            hand.tell_to_end()
        for hand in hands:
            hand.stop()


class _Hand(threading.Thread):
    """Passes jobs to one worker process, and starts another one if that dies."""

    def __init__(
        self,
        todo: "queue.SimpleQueue[Job]",
        events: "queue.SimpleQueue[Event]",
        folder: Path,
        core: int | None,
    ) -> None:
        super().__init__(daemon=True)
        self._todo, self._events, self._folder, self._core = todo, events, folder, core
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
                self._events.put(self._ask(job, log))
            self._end()

    def tell_to_end(self) -> None:
        """Let the worker keep what it has of its job, and end."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.terminate()

    def stop(self) -> None:
        """End the worker, whatever it is doing, if it does not end by itself."""
        if self.is_alive():
            self.join(GRACE)
        with self._lock:
            if self._process is not None:
                self._process.kill()
        if self.is_alive():
            self.join()

    def _ask(self, job: Job, log: IO[str]) -> Finished:
        trouble = ""
        try:
            process = self._worker(log)
            assert process.stdin is not None
            assert process.stdout is not None
            asked = {"job": job.as_json(), "folder": str(self._folder)}
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            while (reply := process.stdout.readline()).endswith("\n"):
                said = json.loads(reply)
                if "result" in said:
                    return Finished(job, **said)
                self._events.put(Underway(job, **said))
        except OSError as error:
            trouble = f": {error.strerror or error}"
        code = self._end()
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended ({code})"
        log.seek(0)
        last = "".join(f"; {line}" for line in log.read().strip().splitlines()[-1:])
        return Finished(job, None, f"its worker process {how}{trouble}{last}")

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
