"""Run a command of `randq train`, kill it at random moments, resume it each time, let it finish.

    python killer.py OUT KILLS SEED train ARGUMENTS...

All is imported once, before JAX has any threads; every attempt is a fork of that.
"""

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from randq.cli import main


def attempt(arguments):
    """A child that runs the command."""
    if pid := os.fork():
        return pid
    with (Path(sys.argv[1]).parent / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException as error:  # the parent wants to know, whatever it is
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        code = 3
    os._exit(code)


def looks(out):
    """Something that changes when a checkpoint is made, and whether one is being made."""
    names, writing = [], False
    for path in out.rglob("*"):
        writing |= path.name.startswith(".tmp-")
        if path.parent.name == "checkpoints":
            names.append(path.name)
    return sorted(names), writing


def ended(pid):
    """Whether a child has ended by itself, which it must do well."""
    found, status = os.waitpid(pid, os.WNOHANG)
    if found and status:
        sys.exit(f"status {status}: {(Path(sys.argv[1]).parent / 'log.txt').read_text()[-3000:]}")
    return bool(found)


def run(out, kills, seed, arguments):
    dice = random.Random(seed)
    killed = in_checkpoint = 0
    while True:
        begun = any(out.rglob("settings.json"))
        pid = attempt(["resume", str(out)] if begun else [*arguments, "--out", str(out)])
        before, _ = looks(out)
        while killed < kills and not ended(pid):
            with contextlib.suppress(OSError):  # files come and go
                now, writing = looks(out)
                if now != before:
                    wait_for_writing = dice.random() < 0.5
                    until = time.monotonic() + dice.uniform(0, 0.2)
                    while time.monotonic() < until:
                        _, writing = looks(out)
                        if wait_for_writing and writing:
                            break
                        time.sleep(0.0005)
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    killed += 1
                    in_checkpoint += writing
                    break
            time.sleep(0.002)
        else:
            if killed < kills:
                sys.exit(f"it ended after {killed} kills")
            while not ended(pid):
                time.sleep(0.01)
            print(killed, in_checkpoint)
            return


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
