"""A file that a person names for output: replaced in one piece, and what cannot be replaced is written to.

A name may stand for more than a file: a device, a pipe, a link to a file elsewhere, an open file of this process
(/dev/stdout). Putting a file in the place of /dev/null would take it from every program of the machine.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_MODE = 0o644
_MOST_LINKS = 40


def write_output(path: Path, data: bytes) -> None:
    """Write all of it or nothing; OSError when that fails. Pipes, devices and open files take what they can.

    A link of this user's or of root's is followed. Any other is replaced: whoever may write a folder could lead root to any
    file by a link there. A file that is there keeps its mode; a new one can be read by everybody.
    """
    if not _is_strangers_link(path):
        if _cannot_be_replaced(path):
            with open(path, "wb") as stream:
                stream.write(data)
            return
        path = Path(os.path.realpath(path))
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, _mode(path))
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _is_strangers_link(path: Path) -> bool:
    return path.is_symlink() and path.lstat().st_uid not in (0, os.geteuid())


def _cannot_be_replaced(path: Path) -> bool:
    """Whether it is a device or a pipe, or leads over /proc, where links are open files of processes."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return True
    for _ in range(_MOST_LINKS):
        if os.path.realpath(path.parent).startswith("/proc/"):
            return True
        if not path.is_symlink():
            return False
        path = path.parent / os.readlink(path)
    return False


def _mode(path: Path) -> int:
    with suppress(FileNotFoundError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            return stat.S_IMODE(status.st_mode)
    return _MODE
