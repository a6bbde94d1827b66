"""Signals that ask a worker to leave: noted when they come, heeded where nothing is half done."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Preemption and time limits of clusters come as SIGTERM or as a user signal before it.
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Asked(BaseException):  # like KeyboardInterrupt: no failure, and not to be handled as one
    """A signal asked the worker to leave while nothing was being trained."""

    def __init__(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"left on {name}: no run was being trained, and none is held; the same command goes on")
        self.signal_number = signal_number


class Request:
    """Whether somebody has asked."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def check(self) -> None:
        """Raise when a signal has come."""
        if self.signal_number is not None:
            raise Asked(self.signal_number)


_inmost: Request | None = None  # of those that are being heeded


def heeding(work: Callable[[Request], int]) -> int:
    """The exit status of work that checks for requests: its own, or the shell's for a signal that it left on."""
    with requests() as request:
        try:
            return work(request)
        except Asked as asked:
            print(asked, file=sys.stderr, flush=True)
            return 128 + asked.signal_number


@contextmanager
def requests() -> Iterator[Request]:
    """Note the first such signal that comes while inside; a second Ctrl-C stops at once.

    An engine that trains has handlers of its own meanwhile, which save first. Inside another one, a signal that this
    other has noted is for this one too: nobody would ask there before it ends.
    """
    global _inmost
    request, outer = Request(), _inmost
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: Any) -> None:
        if request.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal_number = number

    before = {number: signal.signal(number, note) for number in NUMBERS}
    if outer is not None and request.signal_number is None:  # only now: one that came just before is the other's
        request.signal_number = outer.signal_number
    _inmost = request
    try:
        yield request
    finally:
        _inmost = outer
        for number, handler in before.items():
            signal.signal(number, handler)
