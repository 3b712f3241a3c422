"""What a command does that goes on in a process of its own, in the background."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

from tranche.node.locks.interrupts import ENDING


def open_files() -> frozenset[int]:
    """The open files that this process was given besides its streams."""
    found = set()
    for each in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            os.fstat(each)  # one was that of the listing
            found.add(each)
    return frozenset(found) - {0, 1, 2}


def empty(*descriptors: int) -> None:
    """Let these descriptors lead nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for each in descriptors:
        os.dup2(null, each)
    os.close(null)


def pass_signals_to(pid: int) -> None:
    """Pass on to that process what tells this one to end, unless it is ignored."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
