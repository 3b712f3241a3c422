"""What a command started and left behind, by descent: an orphan of it becomes a child of this process, not of init.

A process may close every file that it inherits and overwrite its environment. Its descent stays known while this process lives.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from tranche.node.processes.processes import Process, children_of

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class OrphanTracker:
    """The living children of this process that it did not have before. Make it before the command starts."""

    def __init__(self) -> None:
        # A kernel that refuses leaves the other evidence: the share's lock and its name in the environment.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._others = frozenset(_children())

    def living(self) -> tuple[Process, ...]:
        """Those that live now, oldest first. The command itself must have been waited for."""
        # One look goes from process to process, and misses whoever gets a new parent behind it.
        return self._look() or self._look()

    def _look(self) -> tuple[Process, ...]:
        return tuple(each for each in _children() if each not in self._others)


def reap_orphans(but: int = 0) -> bool:
    """Wait for every child that has ended, except for the process `but`; whether this process has a child still."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)
        return True
    return False


def _children() -> tuple[Process, ...]:
    # The kernel says at once when there is none; /proc takes longer to read.
    return children_of(os.getpid()) if reap_orphans() else ()
