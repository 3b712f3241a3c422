"""Tells a waiter that its turn may have come: it sleeps on a named pipe that any process may ring.

A pipe, not a socket, because a state folder's path may exceed the 107 bytes that a socket's path allows. A waiter that is stopped
or deaf must not hold up those behind it; nothing is written about it, and it keeps its place.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import struct
import termios
from collections.abc import Sequence
from pathlib import Path

from tranche.node.state.session import StateFolder, process_stopped
from tranche.node.state.state_file import cannot_write, drop_state_file
from tranche.node.store.records import Waiter
from tranche.planning.decide.queue import WaitingRequest


class WakeupPipe:
    """The waiter's end; the pipe exists from creation until close()."""

    def __init__(self, path: Path) -> None:
        """LedgerUnavailable if the pipe cannot be made."""
        self._path = path
        try:
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
        except OSError as error:
            raise cannot_write(str(path), error) from error
        # Open for writing too: a pipe without writers keeps reporting end of file.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wait(self, seconds: float) -> bool:
        """Sleep until the bell rings or the time is over; returns whether it rang. Several rings count as one."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(max(0.0, seconds) * 1000):
            return False
        os.read(self._descriptor, 4096)
        return True

    def close(self) -> None:
        """Remove the pipe."""
        drop_state_file(self._path)
        os.close(self._descriptor)


def ring(path: Path) -> bool:
    """Ring a waiter's bell; returns whether a waiter listens there."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # One unheard ring is enough, and the pipe keeps the time of the first.
        if not _unread(descriptor):
            os.write(descriptor, b"!")
    except BlockingIOError:
        pass
    except BrokenPipeError:
        return False  # the waiter left between the two calls
    finally:
        os.close(descriptor)
    return True


def unheard_for(path: Path, now: float) -> float:
    """How many seconds a waiter has not heard its bell, 0 if it has not rung; `now` is seconds since the epoch.

    It is 0 if the bell is unreadable, and infinite if the clock was put back since the ring.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        if not _unread(descriptor):
            return 0.0
        rung = os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
    return max(0.0, now - rung) if rung <= now + 1 else math.inf


def _unread(descriptor: int) -> int:
    """The number of unread bytes in a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, struct.pack("i", 0)))
    return int(count)


TURN_SECONDS = 5.0
"""How long a waiter may take to hear its bell."""


def answers(places: StateFolder, waiter: Waiter, now: float) -> bool:
    """Whether the waiter's process can take its turn; `now` is seconds since the epoch."""
    return not process_stopped(waiter.pid) and unheard_for(places.wakeup_pipe(waiter.id), now) < TURN_SECONDS


def silent(places: StateFolder, queue: Sequence[Waiter], now: float) -> frozenset[str]:
    """The ids of the waiters that do not answer."""
    return frozenset(each.id for each in queue if not answers(places, each, now))


def attending(places: StateFolder, queue: Sequence[Waiter], now: float, *, but: str = "") -> tuple[Waiter, ...]:
    """The waiters that answer, in order, including the one with the id `but` even if it does not answer."""
    return tuple(each for each in queue if each.id == but or answers(places, each, now))


def as_asked(places: StateFolder, queue: Sequence[Waiter], now: float, *, but: str = "") -> list[WaitingRequest]:
    """The queue as decisions see it at a time in seconds since the epoch; the waiter with the id `but` is never silent."""
    away = silent(places, queue, now) - {but}
    return [WaitingRequest(each.id, each.request, each.uid, each.id in away) for each in queue]
