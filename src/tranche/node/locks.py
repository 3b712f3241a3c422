"""Locks that die with their holder: advisory file locks, which the kernel releases however a process ends.

A lock belongs to the open file, so a child that inherits the descriptor keeps it held after its parent has died. That is how
a share outlives a killed `tranche run` for exactly as long as the workload does.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from tranche.core.errors import LedgerUnavailable, PermissionDenied
from tranche.node.stalled import continuing_who_holds


class FileLock:
    """An exclusive lock on a file, held from creation until release() or the death of every process that has it open."""

    def __init__(self, path: Path, *, wait: bool = True) -> None:
        """Without `wait`, BlockingIOError while somebody else holds the lock; else a stopped holder is continued."""
        self.path = path
        self._descriptor: int | None = None
        while self._descriptor is None:
            self._descriptor = open_lock_file(path)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    self.release()
                    raise
                with continuing_who_holds(self._descriptor):
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            # A file that was removed before it was locked is no lock: there is a new one, or must be.
            if not self.in_place:
                self.release()

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
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


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
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def is_held(path: Path) -> bool:
    """Whether some process holds the lock; a missing file is held by nobody, one that may not be opened counts as held."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
        return descriptor
    except PermissionError as error:
        raise PermissionDenied(f"no permission to write {path}", hint="run the command with sudo") from error
    except OSError as error:
        raise LedgerUnavailable(f"cannot write {path}: {error.strerror}") from error
