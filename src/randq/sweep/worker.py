"""A worker process of the local engine: a job a line in, what came of it a line out."""

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import jax

from randq.cache import enable_compilation_cache
from randq.runs.interrupts import InterruptedRunError
from randq.sweep import read_job
from randq.sweep.jobs import Watch

EVERY = 1.0
"""Seconds between words on how far a job is."""


def main() -> None:
    """Work until the process that asks closes the pipe, or is no more."""
    # Nothing but replies may go to the pipe: what a library prints goes to the log.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    enable_compilation_cache()
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    while True:
        asked = json.loads(jobs.get())
        try:
            result = read_job(asked["job"]).perform(Path(asked["folder"]), _reporter(replies))
            reply: dict[str, Any] = {"result": result}
        except InterruptedRunError:  # it was told to end, and has kept where it was
            os._exit(0)
        except Exception as error:
            reply = {"result": None, "error": f"{type(error).__name__}: {error}"}
        _say(replies, reply)
        jax.clear_caches()  # the programs of a job serve no other one


def _say(replies: TextIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _reporter(replies: TextIO) -> Watch:
    """Says how far a job is, but not too often."""
    said = 0.0

    def watch(share: float, note: str) -> None:
        nonlocal said
        if (now := time.monotonic()) - said >= EVERY:
            said = now
            _say(replies, {"share": share, "note": note})

    return watch


def _listen(jobs: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)  # also in the midst of a job: nobody waits for it
