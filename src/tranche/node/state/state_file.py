"""Opens files by name safely when the path may be something else: a silent pipe, a device, a link.

Opening a pipe waits for its other end, and reading a device may never end. All files of the state folder are opened here.

Output files that users name are replaced in one piece. Devices, pipes and this process's open files (/dev/stdout) are written to
instead: replacing /dev/null with a file would break every program of the machine.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from tranche.core.errors import LedgerUnavailable, PermissionDenied

_MODE = 0o644
_MOST_LINKS = 40
_NEEDS_ROOT = "run the command with sudo, or ask an administrator to start the service: tranche serve"


def write_output(path: Path, data: bytes) -> None:
    """Write all of `data` or nothing. Raises OSError on failure. Pipes, devices and open files take what they can.

    Follows links of this user or root and replaces all others: a user with write access to a folder could point root to any file
    by a link there. An existing file keeps its mode; every user can read a new one.
    """
    if not _is_strangers_link(path):
        if _cannot_be_replaced(path):
            with open(path, "wb") as stream:
                stream.write(data)
            return
        path = Path(os.path.realpath(path))
    import tempfile  # slow to import, and most commands write no such file

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
    """Whether the path is a device or a pipe, or leads through /proc, where links are open files of processes."""
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


_LIMIT = 2**16
"""In bytes: a path or a name is shorter."""
_MAKE_ROOM = "free up space on its file system"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def what_it_is(path: Path) -> str:
    """The kind of file at the path, following links, in words: `is a pipe`."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return "is a dangling symbolic link"
    return f"is {_KINDS[stat.S_IFMT(mode)]}"


def refuse_no_file(path: Path) -> None:
    """Raises LedgerUnavailable when the path exists but is not a regular file."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise LedgerUnavailable(f"{path} {what_it_is(path)}, not a file", hint="remove it, and run the command again")


def open_state_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the file, created with mode 0600 if the flags ask for it.

    Raises LedgerUnavailable when it is not a regular file, and OSError when it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, 0o600)
    except OSError:
        refuse_no_file(path)
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    refuse_no_file(path)
    raise LedgerUnavailable(f"{path} was replaced while it was being opened")


def read_state_file(path: Path, *, limit: int = _LIMIT) -> bytes:
    """All of a small file. Raises LedgerUnavailable if it is not regular or exceeds `limit` bytes, else OSError on failure."""
    with open(open_state_file(path), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise LedgerUnavailable(f"{path} is longer than {limit} bytes", hint="remove it, and run the command again")
    return content


def replace_state_file(path: Path, text: str) -> None:
    """Write all of a small file or nothing, and make its folder; raises LedgerUnavailable on failure.

    Until it is whole, the file has another name, with a dot and this thread's numbers at its end.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with unfinished.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a power loss must not leave an empty file under the final name
        unfinished.replace(path)
    except OSError as error:
        drop_state_file(unfinished)
        raise cannot_write(str(path), error) from error


def drop_state_file(path: Path) -> None:
    """Remove a meaningless file if possible: a leftover does no harm."""
    with suppress(OSError):
        path.unlink()


def cannot_write(what: str, error: OSError) -> LedgerUnavailable:
    """The error for a failed write or creation, except for missing permission."""
    hint = _MAKE_ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return LedgerUnavailable(f"cannot write {what}: {error.strerror}", hint=hint)


def no_files_left(folder: Path) -> bool:
    """Whether the folder's file system has no room for one more file."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_files > 0 and found.f_ffree == 0


def no_permission(what: str) -> PermissionDenied:
    """The error when this user may not write; root may write everything except immutable files."""
    hint = "check whether it is immutable: lsattr" if os.geteuid() == 0 else _NEEDS_ROOT
    return PermissionDenied(f"no permission to write {what}", hint=hint)


def _needs_root(folder: Path) -> str:
    """What a user may do who may not write root's state folder; a service that runs there would have been asked."""
    return "run the command with sudo" if os.path.exists(folder / "socket") else _NEEDS_ROOT


def register_of_another(folder: Path) -> PermissionDenied | None:
    """The error for a state folder that another user owns and this user may not write; None for other causes."""
    if os.geteuid() == 0:
        return None
    try:
        owner = os.stat(folder).st_uid
        files = [path for path in (folder, folder / "ledger.db") if os.path.exists(path)]
    except OSError:
        return None
    if owner == os.geteuid() or all(os.access(path, os.W_OK, effective_ids=True) for path in files):
        return None
    import pwd  # rarely needed

    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"uid {owner}"
    return PermissionDenied(
        f"only {name} may change this machine's register, {folder}, and share its GPUs",
        hint=_needs_root(folder) if owner == 0 else f"run the command as {name}, or with sudo",
    )
