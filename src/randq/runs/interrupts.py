"""Signals that ask for an end: they wait until a moment at which nothing is lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Asked = Callable[[], signal.Signals | None]
"""Which signal has come, if one has."""


class InterruptedRunError(Exception):
    """A run has stopped because it was asked to, and can go on another time."""

    def __init__(self, sign: signal.Signals) -> None:
        super().__init__(sign.name)
        self.signal = sign


@contextmanager
def interrupts(*signals: signal.Signals) -> Iterator[Asked]:
    """A function that says which of the signals has come; a second one has its usual effect."""
    caught: signal.Signals | None = None

    def catch(number: int, frame: object) -> None:
        nonlocal caught
        caught = signal.Signals(number)
        restore()

    def restore() -> None:
        for sign, handler in before.items():
            signal.signal(sign, handler)

    if threading.current_thread() is not threading.main_thread():  # it cannot have handlers
        yield lambda: None
        return
    before = {sign: signal.signal(sign, catch) for sign in signals}
    try:
        yield lambda: caught
    finally:
        restore()
