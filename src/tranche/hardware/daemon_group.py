"""A control group in which daemons outlive the unit, session or container that started them.

A service manager or a container runtime ends everything in its own control group. So a daemon moves to a group beside that one:
beside the kubelet's `kubepods` for a process of a pod, else at the top. This works the same with control groups of versions 1 and
2, and asks no service manager.
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
"""The control group namespace that the kernel starts with (PROC_CGROUP_INIT_INO), or of a kernel without such namespaces."""
_PODS: Final = "kubepods"
_PROCESSES: Final = "cgroup.procs"
_TRIES: Final = 10


class _Seat(NamedTuple):
    """A process's place in one hierarchy: the folder of the hierarchy's top, and the path below it, which begins with /."""

    top: Path
    path: str

    @property
    def folder(self) -> Path:
        """The daemons' group in that hierarchy."""
        return self.top / (_above_pods(self.path) or "").lstrip("/") / NAME


def move_out(pid: int, proc: Path = _SELF) -> bool:
    """Move a process to the group; returns whether nothing that ends this process's own groups ends it now.

    False if the machine's control groups are not visible, or this process may not write there. The daemon then ends with the
    process that started it.
    """
    seats = _to_be_left(proc)
    return seats is not None and all(_enter(seat.folder, pid) for seat in seats)


def why_tied(proc: Path = _SELF) -> str:
    """Why a daemon started by this process ends with this process's own control group, in words; "" if it does not."""
    seats = _to_be_left(proc)
    if seats is None:
        return "the machine's control groups are not mounted here"
    closed = [str(seat.top) for seat in seats if not os.access(seat.folder.parent, os.W_OK)]
    return f"{closed[0]} cannot be written" if closed else ""


def remove_if_empty(proc: Path = _SELF) -> None:
    """Remove the group after the last daemon has left it."""
    for seat in _to_be_left(proc) or ():
        with suppress(OSError):  # the group is in use, or was never made
            seat.folder.rmdir()


def _to_be_left(proc: Path) -> tuple[_Seat, ...] | None:
    """The hierarchies in which another program may end this process's group; None if they cannot be seen or left."""
    try:
        groups = [line.split(":", 2)[1:] for line in (proc / "cgroup").read_text().splitlines()]
        tops = list(_tops((proc / "mountinfo").read_text()))
    except OSError:
        return None
    left = [(controllers, path) for controllers, path in groups if path != "/"]
    # A hierarchy in which the pod has no group of its own cannot end the pod.
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
    """Each hierarchy whose top is mounted, with its options. They name its controllers; version 2 has only ""."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *_, options) = before.split(), after.split()
        if kind in ("cgroup", "cgroup2") and fields[3] == "/":
            yield frozenset(options.split(",") if kind == "cgroup" else ("",)), Path(fields[4])


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
