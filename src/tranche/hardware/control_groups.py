"""Control groups of version 2: where this process is, and a group of its own for one command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tranche.core.errors import HardwareError

_SELF = Path("/proc/self")
_PROCESSES = "cgroup.procs"


def own_group(proc: Path = _SELF) -> Path | None:
    """The folder of this process's group; None where no hierarchy of version 2 is mounted in sight."""
    try:
        groups = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return None
    path = next((line.removeprefix("0::") for line in groups if line.startswith("0::")), None)
    if path is None:
        return None
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if after.split()[:1] == ["cgroup2"] and _below(path, fields[3]):
            return Path(fields[4]) / os.path.relpath(path, fields[3])
    return None


def make_group(folder: Path) -> None:
    """Make a group; HardwareError when the kernel does not let this process."""
    try:
        folder.mkdir()
    except OSError as error:
        raise HardwareError(f"cannot make the control group {folder}: {error.strerror}") from error


def group_namespace(proc: Path = _SELF) -> str:
    """The control group namespace of this process, in which its paths of groups hold; "" where the kernel does not tell."""
    try:
        return os.readlink(proc / "ns" / "cgroup")
    except OSError:
        return ""


def is_gone(folder: Path, *, same_namespace: bool) -> bool:
    """Whether there is no such group any more. False where that cannot be seen from here, as in a container.

    In the namespace in which the path was made, a group above it that is there is enough: groups between may be gone as well.
    Where that is not known, the group right above must be there.
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
    """Whether a process lives in the group or in one below it, or may live there: the kernel does not say."""
    try:
        return "populated 0" not in (folder / "cgroup.events").read_text()
    except OSError:
        return True


def remove_group(folder: Path) -> bool:
    """Remove a group with those below it; whether it is gone. One in which a process lives stays."""
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
    """Be in that group within the block, so that what is started there is in it from its first instruction on."""
    before = own_group()
    _enter(folder)
    try:
        yield
    finally:
        if before is not None:
            _enter(before)


def _enter(folder: Path) -> None:
    try:
        (folder / _PROCESSES).write_text("0")
    except OSError as error:
        raise HardwareError(f"cannot enter the control group {folder}: {error.strerror}") from error


def _below(path: str, root: str) -> bool:
    return root == "/" or path == root or path.startswith(f"{root}/")
