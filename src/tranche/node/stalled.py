"""A process that was stopped while it holds a lock that others wait for: it is continued until it has let go, and stopped again.

Locks are held for one decision, or for one plan. Somebody who stops a command, by Ctrl-Z say, does not mean to stop everybody
else's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tranche.node.session import process_stopped

_LOOK_SECONDS = 1.0
_LOCKS = Path("/proc/locks")


@contextmanager
def continuing_who_holds(descriptor: int) -> Iterator[None]:
    """For the length of the block, in which the caller waits for the lock on that open file.

    Whoever holds it and is stopped, and may be signalled by this user, is continued; when the block ends it is stopped again.
    """
    over = threading.Event()
    continued: set[int] = set()
    watch = threading.Thread(target=_watch, args=(descriptor, over, continued), name="stalled", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()
        for pid in continued:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)


def lock_holders(descriptor: int, locks: Path = _LOCKS) -> tuple[int, ...]:
    """The processes that took the lock on that open file, as /proc/locks has them; none when it cannot be read."""
    found = os.fstat(descriptor)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = locks.read_text().splitlines()
    except OSError:
        return ()
    # "7: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF"; who waits has an arrow after the number.
    fields = (line.split() for line in lines)
    return tuple(int(each[4]) for each in fields if each[1] == "FLOCK" and each[5] == place)


def _watch(descriptor: int, over: threading.Event, continued: set[int]) -> None:
    while not over.wait(_LOOK_SECONDS):
        for pid in lock_holders(descriptor):
            if pid > 0 and process_stopped(pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT)
                    continued.add(pid)
