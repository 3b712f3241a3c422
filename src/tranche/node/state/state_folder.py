"""Can the state folder keep records? Tries what commands need of it, and leaves nothing behind."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tranche.core.errors import LedgerUnavailable, PermissionDenied, TrancheError
from tranche.node.state.session import StateFolder
from tranche.node.state.state_file import what_it_is

_ROOM = 2**20
"""In bytes: a new ledger with its log needs a third of this."""
_FILES = 16
"""Files and folders that a first request makes."""
_CHOOSE = "fix or remove it"


def try_state_folder(places: StateFolder) -> str:
    """Do what commands do with files in the state folder; returns a sentence about the result.

    Raises PermissionDenied or LedgerUnavailable, naming the path in the way.
    """
    folder = places.state_dir
    if not os.path.lexists(folder):
        _try_folder(next(path for path in folder.absolute().parents if os.path.lexists(path)))
        return f"the state folder {folder} can be made"
    _try_folder(folder, f"the state folder {folder}")
    for each in _lock_folders(places):
        if os.path.lexists(each):
            _try_folder(each)
    for file in _files(places):
        try_file(file)
    return f"the state folder {folder} can be written"


def try_file(path: Path) -> bool:
    """Open a file for writing, without waiting for the other end of a pipe; False when there is none yet.

    Raises PermissionDenied or LedgerUnavailable.
    """
    if not os.path.lexists(path):
        return False
    try:
        if not os.path.isfile(path):
            raise LedgerUnavailable(f"{path} {what_it_is(path)}, not a file", hint=_CHOOSE)
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise _refused(str(path), error) from error
    return True


def _lock_folders(places: StateFolder) -> tuple[Path, ...]:
    of_names = (places.session(""), places.allocation(""), places.waiter(""))
    return (places.gpu_locks.parent, places.gpu_locks, *of_names)


def _files(places: StateFolder) -> Iterator[Path]:
    yield places.decision_lock
    for suffix in ("-wal", "-shm", ".creating"):
        yield places.ledger.with_name(places.ledger.name + suffix)
    if places.gpu_locks.is_dir():
        yield from sorted(places.gpu_locks.iterdir())


def _try_folder(folder: Path, name: str = "") -> None:
    """Make, lock, fill and remove files and a pipe in it."""
    name = name or str(folder)
    if not os.path.isdir(folder):
        raise LedgerUnavailable(f"{name} {what_it_is(folder)}, not a folder", hint=_CHOOSE)
    try:
        trial = Path(tempfile.mkdtemp(prefix=".tranche-doctor-", dir=folder))
    except OSError as error:
        raise _refused(name, error) from error
    try:
        for number in range(_FILES - 1):
            (trial / str(number)).touch()
        os.mkfifo(trial / "pipe")
        with (trial / "0").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(file.fileno(), 0, _ROOM)
    except OSError as error:
        raise _refused(name, error) from error
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _refused(path: str, error: OSError) -> TrancheError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(
            f"{path} cannot be written: {error.strerror}",
            hint="run as root, or check whether it is immutable (lsattr)",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LedgerUnavailable(
            f"{path} has no room: less than {_ROOM // 2**20} MiB or {_FILES} files are left",
            hint="make room on its file system",
        )
    return LedgerUnavailable(f"{path} cannot be used: {error.strerror}", hint=_CHOOSE)
