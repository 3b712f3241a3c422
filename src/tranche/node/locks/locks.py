"""Locks that die with their holder: advisory file locks, which the kernel releases however a process ends.

A lock belongs to the open file, so a child that inherits the descriptor keeps it held after its parent has died. That is how
a share outlives a killed `tranche run` for exactly as long as the workload does. The kernel's table of file locks (/proc/locks)
names the process that took a lock, to everybody, but not processes that only a PID namespace outside of this one knows.

Locks are held for one decision, for one plan, or for one transaction, and a process that is stopped meanwhile holds up everybody
who waits. A stop that comes from a terminal, Ctrl-Z say, takes effect when the lock is free. A process that was stopped all the
same, by SIGSTOP say, is continued by the process that waits. It is not stopped again: its owner may have continued it as well,
and the kernel does not tell who did.
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
"""Characters of a command line that are shown."""


class LockHolder(NamedTuple):
    """Who has a file lock: `pid` is 0 for a process that is not seen from here; `seconds` is for how long."""

    pid: int
    seconds: float

    def __str__(self) -> str:
        if not self.pid:
            return "a process that is not seen from here"
        command = one_line(process_command(self.pid))
        command = command if len(command) <= _SHOWN else f"{command[:_SHOWN]}..."
        return f"pid {self.pid} ({command})" if command else f"pid {self.pid}"


def lock_pids(file: int | Path, *, kind: str = "FLOCK", byte: int = 0, table: Path = _TABLE) -> tuple[int, ...]:
    """The processes that hold a lock of that kind on the file, which is open or at a path, and on that byte of it.

    Kinds are FLOCK, for the whole file, and POSIX. None when the table or the file cannot be read.
    """
    try:
        found = os.stat(file)
        lines = table.read_text().splitlines()
    except OSError:
        return ()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    # "7: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF"; who waits has an arrow after the number.
    fields = (line.split() for line in lines)
    return tuple(int(each[4]) for each in fields if each[1] == kind and each[5] == place and _covers(each, byte))


def _covers(fields: list[str], byte: int) -> bool:
    first, last = fields[6], fields[7]
    return int(first) <= byte and (last == "EOF" or byte <= int(last))


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


class LockTimeout(TimeoutError):
    """Somebody else has the lock still, after all the time that the caller has."""


class FileLock:
    """An exclusive lock on a file, held from creation until release() or the death of every process that has it open."""

    def __init__(self, path: Path, *, wait: bool = True, seconds: float | None = None) -> None:
        """Without `wait`, BlockingIOError while somebody else holds the lock; else a stopped holder is continued.

        StillHeld when somebody else has it for `seconds` more; None waits for as long as it takes.
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
            # A file that was removed before it was locked is no lock: there is a new one, or must be.
            if not self.in_place:
                self.release()
        with suppress(OSError):
            os.utime(self._descriptor)  # for whoever asks since when

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
            # Whoever asks now and then comes last where many wait, and a wait in the kernel has no end. So a thread waits, and
            # gives the lock back when nobody wants it any more.
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
                raise LockTimeout(f"{self.path} is held by somebody else")
            self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """The open file that carries the lock, to be passed to a child."""
        assert self._descriptor is not None, f"{self.path} was released"
        return self._descriptor

    @property
    def in_place(self) -> bool:
        """Whether its path still leads to it; after its deletion somebody else can have a lock of that name."""
        return leads_to(self.path, self.descriptor)

    def release(self, *, remove: bool = False) -> None:
        """Give the lock back; with `remove` the file goes too, for a lock whose name is never used again."""
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
    """A thread that waits for the lock on an open file, which is this object's until the lock is got."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._turn = threading.Lock()
        self._got = threading.Event()
        self._wanted = True
        threading.Thread(target=self._run, name="lock", daemon=True).start()

    def until(self, deadline: float) -> bool:
        """Sleep until the lock is got, at most until the deadline; whether it is."""
        return self._got.wait(max(0.0, deadline - time.monotonic()))

    def give_up(self) -> bool:
        """Want the lock no more; True when it was got meanwhile and is the caller's."""
        with self._turn:
            self._wanted = False
            return self._got.is_set()

    def _run(self) -> None:
        with suppress(OSError):  # a lock that cannot be got is not got in time
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with self._turn:
                if self._wanted:
                    self._got.set()
                    return
        os.close(self._descriptor)


def lock_holder(path: Path) -> LockHolder | None:
    """Who has the lock now; None when nobody has, or when it may not be asked."""
    pids = lock_pids(path)
    try:
        taken = path.stat().st_mtime
        if not pids and not (os.access(path, os.R_OK, effective_ids=True) and is_held(path)):
            return None
    except (OSError, LedgerUnavailable):
        return None
    return LockHolder(pids[0] if pids else 0, max(0.0, time.time() - taken))


def leads_to(path: Path, descriptor: int) -> bool:
    """Whether the path leads to that open file."""
    try:
        found, own = os.stat(path), os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)


def remove_if_free(path: Path) -> bool:
    """Remove a lock file that nobody holds; whether it is gone."""
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
    """Whether some process holds the lock; a missing file is held by nobody, one that may not be opened counts as held."""
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
    """A descriptor of the lock file, which is made when it is not there.

    Nobody but its owner may open it: whoever may read a file may lock it, and hold everybody up.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_state_file(path, os.O_RDWR | os.O_CREAT)
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
        return descriptor
    except PermissionError as error:
        locks = next((each for each in path.parents if each.name == "locks"), path)
        raise register_of_another(locks.parent) or no_permission(str(path)) from error
    except OSError as error:
        raise cannot_write(str(path), error) from error
