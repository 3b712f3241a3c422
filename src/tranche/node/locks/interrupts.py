"""Signals that tell this process to end (SIGTERM, SIGHUP, SIGINT): noted at once, and obeyed where the process waits.

Python runs a signal's handler between any two instructions. An exception there could separate a lock from its owner, or an entry
in the register from the code that takes it back. So the handler only notes the signal. `interruptible` blocks, which can be left
at every line, raise `WaitInterrupted`. Without a call of `heed_signals`, signals act as usual.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_TO_A_COMMAND = (*ENDING, signal.SIGQUIT)


class WaitInterrupted(BaseException):
    """A signal told this process to end while it waited: its place in the queue, or its plan, must still be cleaned up.

    `left` says what an undone plan could not put back, in words.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        self.left = ""


class _Signals:
    """State shared by the handler and the main thread."""

    noted = 0
    heeded = False
    interruptible = False
    kept = False


def heed_signals() -> None:
    """Until `ignore_signals`, make signals raise WaitInterrupted, once, and only where the main thread is interruptible.

    Ignored signals stay ignored, so nohup works.
    """
    _Signals.noted, _Signals.heeded, _Signals.kept = _Signals.noted if _Signals.kept else 0, True, False
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _note)


def note_signal(number: int) -> None:
    """Note a signal that was passed on to the command."""
    if number in _TO_A_COMMAND:
        _Signals.noted = _Signals.noted or number


def told_to_end() -> int:
    """The signal that told this process or its command to end since the last call of `heed_signals`; 0 for none.

    If none did, the next call of `heed_signals` also heeds one that comes before it.
    """
    _Signals.kept = not _Signals.noted
    return _Signals.noted


def ignore_signals() -> None:
    """Ignore signals from now on: how this process ends is decided."""
    _Signals.heeded = False


@contextmanager
def heeding_signals() -> Iterator[None]:
    """Heed signals in the block, and put back what handled them before.

    A signal that was noted and not yet obeyed raises WaitInterrupted at the end of the block. It also replaces an error: Ctrl-C
    on a terminal ends the programs that the block waits for, too.
    """
    before = {number: signal.getsignal(number) for number in ENDING}
    heed_signals()
    try:
        try:
            yield
        except Exception:
            interrupt_if_told()
            raise
        interrupt_if_told()
    finally:
        ignore_signals()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """In the main thread, raise WaitInterrupted for a signal that was noted or arrives within the block."""
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
    """Obey signals only after the block, even if the block waits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded, _Signals.heeded = _Signals.heeded, False
    try:
        yield
    finally:
        _Signals.heeded = heeded


def interrupt_if_told() -> None:
    """Raise WaitInterrupted for a noted signal."""
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
