"""A process that was stopped while it holds a lock that others wait for: it is continued until it has let go, and stopped again.

Locks are held for one decision, for one plan, or for one transaction. Somebody who stops a command, by Ctrl-Z say, does not mean
to stop everybody else's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tranche.node.session import process_stopped

_LOOK_SECONDS = 1.0

Holders = Callable[[], tuple[int, ...]]


@contextmanager
def continuing_who_holds(holders: Holders) -> Iterator[None]:
    """For the length of the block, in which the caller waits for a lock; `holders` says who has it.

    Whoever holds it and is stopped, and may be signalled by this user, is continued; when the block ends it is stopped again.
    """
    over = threading.Event()
    continued: set[int] = set()
    watch = threading.Thread(target=_watch, args=(holders, over, continued), name="stalled", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()
        for pid in continued:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)


def _watch(holders: Holders, over: threading.Event, continued: set[int]) -> None:
    while not over.wait(_LOOK_SECONDS):
        for pid in holders():
            if pid > 0 and process_stopped(pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT)
                    continued.add(pid)
