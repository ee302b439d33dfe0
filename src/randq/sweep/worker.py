"""A worker process of the local engine: a job a line in, what came of it a line out."""

import json
import os
import queue
import sys
import threading
from typing import Any

import jax

from randq.cache import enable_compilation_cache
from randq.sweep.jobs import Job, perform


def main() -> None:
    """Work until the process that asks closes the pipe, or is no more."""
    # Nothing but replies may go to the pipe: what a library prints goes to the log.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    enable_compilation_cache()
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    while True:
        job = Job.from_json(json.loads(jobs.get()))
        try:
            reply: dict[str, Any] = {"result": perform(job)}
        except Exception as error:
            reply = {"result": None, "error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        jax.clear_caches()  # the programs of a job serve no other one


def _listen(jobs: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)  # also in the midst of a job: nobody waits for it
