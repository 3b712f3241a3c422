"""A control group in which daemons live on when the unit, the session or the container that started them ends.

A service manager and a container runtime end what is in the control group that they made, whoever started it. So a daemon goes
to a group beside theirs: beside the kubelet's `kubepods` for a process of a pod, and at the top for all others. The way is the
same with version 1 and version 2 of control groups, and asks no service manager.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tranche.hardware.control_groups import group_namespace

NAME: Final = "tranche-mps"
_SELF: Final = Path("/proc/self")
_MACHINES_OWN: Final = ("cgroup:[4026531835]", "")
"""The namespace of control groups that the kernel starts with (PROC_CGROUP_INIT_INO); a kernel without such namespaces."""
_PODS: Final = "kubepods"
_PROCESSES: Final = "cgroup.procs"
_TRIES: Final = 10


class _Seat(NamedTuple):
    """Where a process is in one hierarchy: the folder of the hierarchy's top, and the path below it, which begins with /."""

    top: Path
    path: str

    @property
    def folder(self) -> Path:
        """The daemons' group in that hierarchy."""
        return self.top / (_above_pods(self.path) or "").lstrip("/") / NAME


def move_out(pid: int, proc: Path = _SELF) -> bool:
    """Take a process to the group; whether nothing that ends this process's own groups ends it now.

    False where the machine's control groups are not in sight, or this process may not write there: the daemon then lives and
    ends with whoever started it.
    """
    seats = _to_be_left(proc)
    return seats is not None and all(_enter(seat.folder, pid) for seat in seats)


def why_tied(proc: Path = _SELF) -> str:
    """Why a daemon that this process starts ends with this process's own control group, in words; "" when it does not."""
    seats = _to_be_left(proc)
    if seats is None:
        return "the machine's control groups are not mounted here"
    closed = [str(seat.top) for seat in seats if not os.access(seat.folder.parent, os.W_OK)]
    return f"{closed[0]} cannot be written" if closed else ""


def remove_if_empty(proc: Path = _SELF) -> None:
    """Remove the group when the last daemon has left it."""
    for seat in _to_be_left(proc) or ():
        with suppress(OSError):  # somebody is in it, or it was never made
            seat.folder.rmdir()


def _to_be_left(proc: Path) -> tuple[_Seat, ...] | None:
    """In which hierarchies this process is in a group that somebody may end; None where that cannot be seen or left."""
    try:
        groups = [line.split(":", 2)[1:] for line in (proc / "cgroup").read_text().splitlines()]
        tops = list(_tops((proc / "mountinfo").read_text()))
    except OSError:
        return None
    left = [(controllers, path) for controllers, path in groups if path != "/"]
    # A hierarchy in which the pod has no group of its own is none by which the pod is ended.
    pods = [(controllers, path) for controllers, path in left if _above_pods(path) is not None]
    if not pods and group_namespace(proc) not in _MACHINES_OWN:
        return None
    seats = []
    for controllers, path in pods or left:
        top = next((top for named, top in tops if named.issuperset(controllers.split(","))), None)
        if top is None:
            return None
        seats.append(_Seat(top, path))
    return tuple(seats)


def _tops(mountinfo: str) -> Iterator[tuple[frozenset[str], Path]]:
    """Each hierarchy whose top is mounted, by its options: they name its controllers, and version 2 has "" as its own."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *_, options) = before.split(), after.split()
        if kind in ("cgroup", "cgroup2") and fields[3] == "/":
            yield frozenset(options.split(",") if kind == "cgroup" else ("",)), Path(fields[4])


def _above_pods(path: str) -> str | None:
    """The group in which the kubelet has made its own; None for a process that is in no pod."""
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
            continue  # whoever ended the last daemon in it has just removed it
        except OSError:
            return False
        return True
    return False


def _furnish(folder: Path) -> None:
    """A new cpuset of version 1 allows no processor and no memory node, and takes in nobody: it is given its parent's."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file, above = folder / name, folder.parent / name
        if file.exists() and above.exists() and not file.read_text().strip():
            file.write_text(above.read_text())
