"""A deadline, whatever the driver does: a signal interrupts the main thread.

A signal cannot interrupt a hanging call of the driver. In that case the thread that listens to the signals ends the process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_SECONDS = 20.0  # for undoing what was begun
_HEARD_SECONDS = 5.0
_POLL_SECONDS = 0.05
_AT_ONCE_SECONDS = 1.0  # signals that come together are heard as one


class CutInterrupted(BaseException):
    """The time is over, or the service manager asks to end. It is no error of the work, so no handler may treat it as one.

    What was begun is undone if time allows, else by the next command.
    """


@contextmanager
def ending_after(seconds: float, leave: Callable[[str], None], *, patience: float = _HEARD_SECONDS) -> Iterator[None]:
    """Raise CutInterrupted in the block once the time is over, and at SIGTERM; only in the process's main thread.

    If that thread hangs in a call and has not heard the signal after `patience` seconds, another thread calls `leave` with the
    reason. `leave` must end the process.
    """
    heard = [float("-inf")]  # when, by the monotonic clock

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard[0] = time.monotonic()
        raise CutInterrupted(_reason(number, seconds))

    def listen(pipe: int) -> None:
        with open(pipe, "rb", buffering=0) as signals:
            while number := signals.read(1):
                if number[0] in before and not _is_heard(heard, patience):
                    leave(_reason(number[0], seconds))
                    return

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGALRM, signal.SIGTERM)}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=listen, args=(reader,), name="deadline", daemon=True).start()
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(wakeup)
        os.close(writer)
        for number, handler in before.items():
            signal.signal(number, handler)


def _reason(number: int, seconds: float) -> str:
    if number == signal.SIGTERM:
        return "it received SIGTERM"
    return f"it did not end within {seconds:g} s: the driver does not answer, or is too slow"


def _is_heard(heard: list[float], patience: float) -> bool:
    begun = time.monotonic()
    while heard[0] < begun - _AT_ONCE_SECONDS:
        if time.monotonic() > begun + patience:
            return False
        time.sleep(_POLL_SECONDS)
    return True
