"""A process that is stopped while it holds a lock holds up everybody who waits for that lock.

Locks are held for one decision, for one plan, or for one transaction. A stop that comes from a terminal, Ctrl-Z say, takes effect
when the lock is free. A process that was stopped all the same, by SIGSTOP say, is continued by the process that waits. It is not
stopped again: its owner may have continued it as well, and the kernel does not tell who did.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tranche.node.state.session import process_stopped

_LOOK_SECONDS = 1.0
_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})

Holders = Callable[[], tuple[int, ...]]


class _Held(threading.local):
    """What this thread holds: how many locks, and the stops that it holds back for them."""

    locks = 0
    stops: frozenset[int] = frozenset()


_held = _Held()


@contextmanager
def stops_held_back() -> Iterator[None]:
    """For the length of the block, in which the caller takes and has a lock, hold the terminal's stops back from this thread.

    The programs and threads that it starts in the block inherit that. A stop that came takes effect after the block.
    """
    if _held.locks == 0:
        _held.stops = _STOPS - signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    _held.locks += 1
    try:
        yield
    finally:
        _held.locks -= 1
        if _held.locks == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _held.stops)


@contextmanager
def continuing_who_holds(holders: Holders) -> Iterator[None]:
    """For the length of the block, in which the caller waits for a lock; `holders` says who has it.

    Whoever holds it and is stopped, and may be signalled by this user, is continued. The caller itself can be stopped while it
    waits, unless it has another lock.
    """
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(holders, over), name="stalled", daemon=True)
    stops = _held.stops if _held.locks == 1 else frozenset()
    watch.start()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, stops)
        over.set()
        watch.join()


def _watch(holders: Holders, over: threading.Event) -> None:
    while not over.wait(_LOOK_SECONDS):
        for pid in holders():
            if pid > 0 and process_stopped(pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT)
