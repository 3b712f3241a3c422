"""Locks that die with their holder: advisory file locks, which the kernel releases however a process ends.

A lock belongs to the open file, so a child that inherits the descriptor keeps it held after its parent has died. So a share
outlives a killed `tranche run` for exactly as long as its workload. The kernel's table of file locks (/proc/locks) names the
process that took a lock, to every user, but not processes outside this PID namespace.

A lock is held for one decision, one plan or one transaction, and a process stopped meanwhile holds up all that wait. A stop from
a terminal, such as Ctrl-Z, takes effect when the lock is free. If a process is stopped anyway, for example by SIGSTOP, the
waiting process continues it. It is not stopped again: its owner may also have continued it, and the kernel does not tell.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import NamedTuple

from tranche.core.errors import LedgerUnavailable
from tranche.core.printable import one_line
from tranche.node.locks.interrupts import interruptible
from tranche.node.state.session import process_command, process_stopped
from tranche.node.state.state_file import (
    cannot_write,
    drop_state_file,
    no_permission,
    open_state_file,
    register_of_another,
)

_TABLE = Path("/proc/locks")
_SHOWN = 100
"""Characters of a command line to show."""


class LockHolder(NamedTuple):
    """A file lock's holder: `pid` is 0 for a process not visible from here; `seconds` is how long it has held the lock."""

    pid: int
    seconds: float

    def __str__(self) -> str:
        if not self.pid:
            return "a process that is not visible from here"
        command = one_line(process_command(self.pid))
        command = command if len(command) <= _SHOWN else f"{command[:_SHOWN]}..."
        return f"pid {self.pid} ({command})" if command else f"pid {self.pid}"


def lock_pids(file: int | Path, *, kind: str = "FLOCK", byte: int = 0, table: Path = _TABLE) -> tuple[int, ...]:
    """The processes with a lock of that kind on that byte of the file, given as a descriptor or a path.

    Kinds are FLOCK, for the whole file, and POSIX. Returns no processes when the table or the file cannot be read.
    """
    try:
        found = os.stat(file)
        lines = table.read_text().splitlines()
    except OSError:
        return ()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    # "7: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF"; a waiting process has an arrow after the number.
    fields = (line.split() for line in lines)
    return tuple(int(each[4]) for each in fields if each[1] == kind and each[5] == place and _covers(each, byte))


def _covers(fields: list[str], byte: int) -> bool:
    first, last = fields[6], fields[7]
    return int(first) <= byte and (last == "EOF" or byte <= int(last))


_LOOK_SECONDS = 1.0
_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})

Holders = Callable[[], tuple[int, ...]]


class _Held(threading.local):
    """The number of locks that this thread holds, and the stop signals that it blocks for them."""

    locks = 0
    stops: frozenset[int] = frozenset()


_held = _Held()


@contextmanager
def stops_held_back() -> Iterator[None]:
    """Block the terminal's stop signals for this thread, while the caller takes and holds a lock in the block.

    Programs and threads started in the block inherit this. A stop that arrives takes effect after the block.
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
    """Continue stopped processes that hold a lock, while the caller waits for it in the block; `holders` returns their pids.

    Continues only processes that this user may signal. The caller itself can be stopped while it waits, unless it has another
    lock.
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


class LockTimeout(TimeoutError):
    """Another process still holds the lock when the caller's time is up."""


class FileLock:
    """An exclusive lock on a file, held from creation until release() or the death of every process that has it open."""

    def __init__(self, path: Path, *, wait: bool = True, seconds: float | None = None) -> None:
        """Without `wait`, raises BlockingIOError while another process holds the lock; else continues a stopped holder.

        Raises LockTimeout when another process holds it for `seconds` more; None waits forever.
        """
        self.path = path
        self._descriptor: int | None = None
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._descriptor is None:
            self._descriptor = open_lock_file(path)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    self.release()
                    raise
                self._await(deadline)
            # A file removed before it was locked is no lock: open the new file, or make one.
            if not self.in_place:
                self.release()
        with suppress(OSError):
            os.utime(self._descriptor)  # shows since when the lock is held

    def _await(self, deadline: float | None) -> None:
        descriptor = self.descriptor
        with continuing_who_holds(lambda: lock_pids(descriptor)):
            if deadline is None:
                try:
                    with interruptible():
                        fcntl.flock(descriptor, fcntl.LOCK_EX)
                except BaseException:
                    self.release()
                    raise
                return
            # Polling loses to the others when many wait, and a wait in the kernel has no end. So a thread waits, and gives back
            # the lock when it is no longer wanted.
            self._descriptor = None
            wait = _Wait(descriptor)
            try:
                with interruptible():
                    got = wait.until(deadline)
            except BaseException:
                if wait.give_up():
                    os.close(descriptor)
                raise
            if not got and not wait.give_up():
                raise LockTimeout(f"{self.path} is held by another process")
            self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """The open file that carries the lock, to pass to a child."""
        assert self._descriptor is not None, f"{self.path} was released"
        return self._descriptor

    @property
    def in_place(self) -> bool:
        """Whether the path still leads to this lock; after deletion, another process can hold a lock of that name."""
        return leads_to(self.path, self.descriptor)

    def unlock(self) -> None:
        """End the lock also for processes that have inherited or received its file."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def release(self, *, remove: bool = False) -> None:
        """Give back the lock; with `remove`, delete the file too, if its name is never used again."""
        if self._descriptor is None:
            return
        if remove:
            drop_state_file(self.path)
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Wait:
    """A thread that waits for the lock on an open file. This object owns the file until it gets the lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._turn = threading.Lock()
        # A signal may end the wait for this queue, which then stays whole. An event's own lock could stay held.
        self._told: SimpleQueue[bool] = SimpleQueue()
        self._got = False
        self._wanted = True
        threading.Thread(target=self._run, name="lock", daemon=True).start()

    def until(self, deadline: float) -> bool:
        """Sleep until the lock is acquired, at most until the deadline; returns whether it was."""
        try:
            return self._told.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return False

    def give_up(self) -> bool:
        """Stop waiting; returns True when the lock was acquired meanwhile and is the caller's."""
        with self._turn:
            self._wanted = False
            return self._got

    def _run(self) -> None:
        with suppress(OSError):  # a failure counts as a timeout
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with self._turn:
                if self._wanted:
                    self._got = True
                    self._told.put(True)
                    return
        os.close(self._descriptor)


def lock_holder(path: Path) -> LockHolder | None:
    """The lock's current holder; None when there is none, or this user may not ask."""
    pids = lock_pids(path)
    try:
        taken = path.stat().st_mtime
        if not pids and not (os.access(path, os.R_OK, effective_ids=True) and is_held(path)):
            return None
    except (OSError, LedgerUnavailable):
        return None
    return LockHolder(pids[0] if pids else 0, max(0.0, time.time() - taken))


def leads_to(path: Path, descriptor: int) -> bool:
    """Whether the path leads to the open file."""
    try:
        found, own = os.stat(path), os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)


def remove_if_free(path: Path) -> bool:
    """Remove a lock file that no process holds; returns whether it is gone."""
    try:
        descriptor = open_state_file(path)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        drop_state_file(path)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def is_held(path: Path) -> bool:
    """Whether a process holds the lock. A missing file counts as free, and one that this user may not open as held."""
    try:
        descriptor = open_state_file(path)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def open_lock_file(path: Path) -> int:
    """A descriptor of the lock file; makes the file if it is missing.

    Only its owner may open it: any user who can read a file can lock it and hold up all others. The descriptor cannot write,
    because a user who gets it with a share could fill the file system.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_state_file(path, os.O_RDONLY | os.O_CREAT)
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
        return descriptor
    except PermissionError as error:
        locks = next((each for each in path.parents if each.name == "locks"), path)
        raise register_of_another(locks.parent) or no_permission(str(path)) from error
    except OSError as error:
        raise cannot_write(str(path), error) from error
