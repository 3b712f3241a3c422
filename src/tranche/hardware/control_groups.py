"""Control groups of version 2: finds this process's group, and makes a group for one command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tranche.core.errors import HardwareError

_SELF = Path("/proc/self")
_PROCESSES = "cgroup.procs"
_MARK = "trusted.tranche.register"


class _Mount(NamedTuple):
    """A mount of the hierarchy: the group that is its root there, and the folder."""

    root: str
    folder: Path


def own_group(proc: Path = _SELF) -> Path | None:
    """The folder of this process's group; None if no hierarchy of version 2 is visibly mounted."""
    try:
        groups = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return None
    path = next((line.removeprefix("0::") for line in groups if line.startswith("0::")), None)
    found = None if path is None else _mount(mounts, path)
    return None if found is None or path is None else found.folder / os.path.relpath(path, found.root)


def make_group(folder: Path) -> None:
    """Make a group; HardwareError if the kernel does not allow it."""
    try:
        folder.mkdir()
    except OSError as error:
        raise HardwareError(f"cannot make the control group {folder}: {error.strerror}") from error


def mark_group(folder: Path, owner: str) -> None:
    """Mark a group as that owner's, if the kernel allows it: only root sets and reads the mark."""
    with suppress(OSError):
        os.setxattr(folder, _MARK, os.fsencode(owner))


def marked_groups(owner: str, proc: Path = _SELF) -> Iterator[Path]:
    """The visible groups with that owner's mark."""
    top = _top(proc)
    for folder, _, _ in os.walk(top) if top is not None else ():
        with suppress(OSError):  # not marked, or gone meanwhile
            if os.fsdecode(os.getxattr(folder, _MARK)) == owner:
                yield Path(folder)


def group_namespace(proc: Path = _SELF) -> str:
    """The control group namespace in which this process's group paths hold; "" if the kernel does not report it."""
    try:
        return os.readlink(proc / "ns" / "cgroup")
    except OSError:
        return ""


def is_gone(folder: Path, *, same_namespace: bool) -> bool:
    """Whether the group no longer exists. False if that cannot be seen from here, as in a container.

    In the namespace in which the path was made, one visible group above it is enough: groups between may be gone as well. If the
    namespace is unknown, the group right above must exist.
    """
    try:
        os.lstat(folder)
        return False
    except FileNotFoundError:
        pass
    except OSError:
        return False
    above = folder.parent
    while same_namespace and not above.exists() and above != above.parent:
        above = above.parent
    return (above / _PROCESSES).exists()


def populated(folder: Path) -> bool:
    """Whether a process lives in the group or below it, or may live there because the kernel does not say."""
    try:
        return "populated 0" not in (folder / "cgroup.events").read_text()
    except OSError:
        return True


def remove_group(folder: Path) -> bool:
    """Remove a group and those below it; returns whether it is gone. A group with a living process stays."""
    try:
        for below, _, _ in os.walk(folder, topdown=False):
            os.rmdir(below)
        os.lstat(folder)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Be in that group within the block, so that what starts there is in it from its first instruction on."""
    before = own_group()
    _enter(folder)
    try:
        yield
    finally:
        if before is not None:
            _enter(before)


def _enter(folder: Path) -> None:
    move_into(folder, 0)


def move_into(folder: Path, pid: int) -> None:
    """Move a process into that group, 0 for this one; what it starts from now on is in the group, too."""
    try:
        (folder / _PROCESSES).write_text(str(pid))
    except OSError as error:
        raise HardwareError(f"cannot enter the control group {folder}: {error.strerror}") from error


def _top(proc: Path) -> Path | None:
    """The folder where the hierarchy of version 2 is mounted; None if none is visible."""
    try:
        found = _mount((proc / "mountinfo").read_text().splitlines(), None)
    except OSError:
        return None
    return None if found is None else found.folder


def _mount(mounts: Sequence[str], path: str | None) -> _Mount | None:
    """The first mount of the hierarchy that shows that group; the first at all if `path` is None."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if after.split()[:1] == ["cgroup2"] and (path is None or _below(path, fields[3])):
            return _Mount(fields[3], Path(fields[4]))
    return None


def _below(path: str, root: str) -> bool:
    return root == "/" or path == root or path.startswith(f"{root}/")
