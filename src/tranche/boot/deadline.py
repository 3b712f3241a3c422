"""An end in time, whatever the driver does: a signal breaks into whatever the main thread is waiting for."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_SECONDS = 20.0  # for undoing what was begun


class CutInterrupted(BaseException):
    """The time is over, or the service manager asks to end. No error of the work, so nothing on the way may take it for one.

    What was begun is undone if that succeeds in time, else by the next command.
    """


@contextmanager
def ending_after(seconds: float) -> Iterator[None]:
    """Raise CutInterrupted in the block once the time is over, and at SIGTERM; the process's main thread only."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            raise CutInterrupted("it was told to end (SIGTERM)")
        raise CutInterrupted(f"it did not end within {seconds:g} s: the driver does not answer, or is too slow")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGALRM, signal.SIGTERM)}
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
