"""Signals that tell this process to end (SIGTERM, SIGHUP, SIGINT): noted at once, and heeded where the process waits.

Python runs the handler of a signal between any two instructions. What a handler raised there would tear apart what belongs
together: a lock and its owner, an entry in the register and whoever takes it back. So the handler only takes a note, and
`WaitInterrupted` is raised within `interruptible` blocks, which can be left at every line. A process that does not call
`heed_signals`
gets signals as ever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class WaitInterrupted(BaseException):
    """A signal told this process to end while it waited: its place in the queue, or its plan, must still be cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class _Signals:
    """What the handler and the main thread tell each other."""

    noted = 0
    heeded = False
    interruptible = False


def heed_signals() -> None:
    """From now on until `ignore_signals` signals raise Terminated, once, and only where the main thread is interruptible.

    What is ignored stays ignored, so that nohup works.
    """
    _Signals.noted, _Signals.heeded = 0, True
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _note)


def ignore_signals() -> None:
    """From now on signals change nothing any more: how this process ends is decided."""
    _Signals.heeded = False


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Terminated for a signal that was noted, or that comes within the block, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, _Signals.interruptible = _Signals.interruptible, True
    try:
        _raise_noted()
        yield
    finally:
        _Signals.interruptible = before


@contextmanager
def uninterruptible() -> Iterator[None]:
    """Heed signals after the block only, also where the block waits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded, _Signals.heeded = _Signals.heeded, False
    try:
        yield
    finally:
        _Signals.heeded = heeded


def interrupt_if_told() -> None:
    """Raise Terminated for a signal that was noted."""
    with interruptible():
        pass


def _note(number: int, frame: FrameType | None) -> None:
    _Signals.noted = _Signals.noted or number
    if _Signals.interruptible:
        _raise_noted()


def _raise_noted() -> None:
    if _Signals.heeded and _Signals.noted:
        _Signals.heeded = False
        raise WaitInterrupted(_Signals.noted)
