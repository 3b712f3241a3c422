"""Control groups: finds this process's group, makes one for a command, and one in which MPS daemons outlive who started them.

A service manager or a container runtime ends everything in its own control group. So a daemon moves to a group beside that one:
beside the kubelet's `kubepods` for a process of a pod, else at the top. This works the same with control groups of versions 1 and
2, and asks no service manager. A command's group is one of version 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from tranche.core.errors import HardwareError

_SELF: Final = Path("/proc/self")
LOGINS: Final = "user.slice"
_SESSIONS: Final = (
    LOGINS,
    "system.slice/cron.service",
    "system.slice/crond.service",
    "system.slice/atd.service",
)
"""Where systemd starts what users log in to or schedule. Cron daemons and at may be absent."""
_PROCESSES: Final = "cgroup.procs"
_MARK: Final = "trusted.tranche.register"
_VERSION_2: Final = frozenset(("",))


class _Mount(NamedTuple):
    """A mount of a hierarchy: its options, which name its controllers (only "" for version 2), its root group, and the folder."""

    options: frozenset[str]
    root: str
    folder: Path


def _mounts(proc: Path) -> Iterator[_Mount]:
    """The mounted hierarchies; OSError if they cannot be seen."""
    for line in os.fsdecode((proc / "mountinfo").read_bytes()).split("\n"):
        before, _, after = line.partition(" - ")
        fields, words = before.split(), after.split()
        if words[:1] in (["cgroup"], ["cgroup2"]):
            options = frozenset(words[-1].split(",")) if words[0] == "cgroup" else _VERSION_2
            yield _Mount(options, fields[3], Path(fields[4]))


def _groups(proc: Path) -> list[tuple[str, str]]:
    """The process's group in each hierarchy, by the hierarchy's controllers ("" for version 2); OSError if unreadable."""
    lines = os.fsdecode((proc / "cgroup").read_bytes()).rstrip("\n").split("\n")
    found = (line.split(":", 2) for line in lines if line)
    return [(controllers, path) for _, controllers, path in found]


def own_group(proc: Path = _SELF) -> Path | None:
    """The folder of this process's group of version 2; None if its hierarchy is not visibly mounted."""
    try:
        for path in [path for controllers, path in _groups(proc) if not controllers]:
            for each in _mounts(proc):
                below = each.root == "/" or path == each.root or path.startswith(f"{each.root}/")
                if below and each.options == _VERSION_2:
                    return each.folder / os.path.relpath(path, each.root)
    except OSError:
        pass
    return None


def machine_group() -> Path | None:
    """The folder of the machine's topmost group of version 2; None if this process does not see it."""
    try:
        seen = group_namespace() in _MACHINES_OWN
        return next((e.folder for e in _mounts(_SELF) if seen and e.root == "/" and e.options == _VERSION_2), None)
    except OSError:
        return None


def session_groups(top: Path) -> list[str]:
    """The control groups of users' sessions that exist below the top."""
    return [each for each in _SESSIONS if (top / each).is_dir()]


def make_group(folder: Path) -> None:
    """Make a group; HardwareError if the kernel does not allow it."""
    try:
        folder.mkdir()
    except OSError as error:
        raise HardwareError(f"cannot create the control group {folder}: {error.strerror}") from error


def mark_group(folder: Path, owner: str) -> None:
    """Mark a group as that owner's, if the kernel allows it: only root sets and reads the mark."""
    with suppress(OSError):
        os.setxattr(folder, _MARK, os.fsencode(owner))


def marked_groups(owner: str) -> Iterator[Path]:
    """The visible groups with that owner's mark."""
    try:
        top = next((each.folder for each in _mounts(_SELF) if each.options == _VERSION_2), None)
    except OSError:
        return
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


def members(folder: Path) -> tuple[int, ...]:
    """The pids of the processes in a group and below it that this process can see; none if there is no such group."""
    found: list[int] = []
    for below, _, _ in os.walk(folder):
        with suppress(OSError):
            found += map(int, Path(below, _PROCESSES).read_text().split())
    return tuple(pid for pid in found if pid)


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
    move_into(folder, 0)
    try:
        yield
    finally:
        if before is not None:
            move_into(before, 0)


def move_into(folder: Path, pid: int) -> None:
    """Move a process into that group, 0 for this one; what it starts from now on is in the group, too."""
    try:
        (folder / _PROCESSES).write_text(str(pid))
    except OSError as error:
        raise HardwareError(f"cannot enter the control group {folder}: {error.strerror}") from error


NAME: Final = "tranche-mps"
_MACHINES_OWN: Final = ("cgroup:[4026531835]", "")
"""The control group namespace that the kernel starts with (PROC_CGROUP_INIT_INO), or of a kernel without such namespaces."""
_PODS: Final = "kubepods"
_TRIES: Final = 10


def move_out(pid: int, proc: Path = _SELF) -> bool:
    """Move a process to the group; returns whether nothing that ends this process's own groups ends it now.

    False if the machine's control groups are not visible, or this process may not write there. The daemon then ends with the
    process that started it.
    """
    seats = _to_be_left(proc)
    return seats is not None and all(_enter(group, pid) for _, group in seats)


def why_tied(proc: Path = _SELF) -> str:
    """Why a daemon started by this process ends with this process's own control group, in words; "" if it does not."""
    seats = _to_be_left(proc)
    if seats is None:
        return "the machine's control groups are not mounted here"
    closed = [top for top, group in seats if not os.access(group.parent, os.W_OK)]
    return f"{closed[0]} cannot be written" if closed else ""


def remove_daemon_group(proc: Path = _SELF) -> None:
    """Remove the group after the last daemon has left it."""
    for _, group in _to_be_left(proc) or ():
        with suppress(OSError):  # the group is in use, or was never made
            group.rmdir()


def _to_be_left(proc: Path) -> list[tuple[Path, Path]] | None:
    """The hierarchies in which another program may end this process's group; None if they cannot be seen or left.

    Each is given by the folder of its top and that of the daemons' group in it.
    """
    try:
        left = [(controllers, path) for controllers, path in _groups(proc) if path != "/"]
        tops = [each for each in _mounts(proc) if each.root == "/"]
    except OSError:
        return None
    # A hierarchy in which the pod has no group of its own cannot end the pod.
    pods = [(controllers, path) for controllers, path in left if _above_pods(path) is not None]
    if not pods and group_namespace(proc) not in _MACHINES_OWN:
        return None
    seats = []
    for controllers, path in pods or left:
        top = next((each.folder for each in tops if each.options.issuperset(controllers.split(","))), None)
        if top is None:
            return None
        seats.append((top, top / (_above_pods(path) or "").lstrip("/") / NAME))
    return seats


def _above_pods(path: str) -> str | None:
    """The group in which the kubelet has made its own; None for a process outside pods."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        if part.partition(".")[0].rpartition("-")[2] == _PODS:
            return "/".join(parts[:number])
    return None


def _enter(folder: Path, pid: int) -> bool:
    for _ in range(_TRIES):
        try:
            folder.mkdir(exist_ok=True)
            _furnish(folder)
            (folder / _PROCESSES).write_text(str(pid))
        except FileNotFoundError:
            continue  # the process that ended the last daemon has just removed it
        except OSError:
            return False
        return True
    return False


def _furnish(folder: Path) -> None:
    """Copy a cpuset of version 1 from its parent: a new one allows no processor and no memory node, and accepts no process."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file, above = folder / name, folder.parent / name
        if file.exists() and above.exists() and not file.read_text().strip():
            file.write_text(above.read_text())
