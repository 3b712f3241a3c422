"""Pods' processes on this machine: whose they are, by their cgroups, and which devices their environment names.

A kubelet puts the containers of a pod below a cgroup that is named for the pod's uid: `pod<uid>`, with underscores for dashes
where systemd makes it. No pod can change that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from tranche.core.allocation import Allocation, Grant, Phase, nearest_request
from tranche.core.keeper import PodKeeper
from tranche.hardware.process_stat import PROC, process_stat
from tranche.node.state.session import sees_every_process

DEVICES = "NVIDIA_VISIBLE_DEVICES"
_MARK = "TRANCHE_DEVICE_"
_POD = re.compile(r"[/-]pod([0-9a-zA-Z_-]+?)(?:\.slice)?(?:/|$)", re.MULTILINE)


def pods_with_processes(uids: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Those of the uids of which a process lives, a zombie aside: the kernel has taken its files and its driver from it."""
    return frozenset(uid for _, uid in _processes(proc) if uid in uids)


def devices_told(uids: Collection[str], proc: Path = PROC) -> Mapping[str, frozenset[str] | None]:
    """Those of the uids of which a process lives, each with every UUID that the environment of its processes names as a device.

    None for a pod with a process that cannot be looked into.
    """
    found: dict[str, frozenset[str] | None] = {}
    for pid, uid in _processes(proc):
        if uid not in uids:
            continue
        so_far = found.setdefault(uid, frozenset())
        try:
            content = (proc / str(pid) / "environ").read_bytes()
        except PermissionError:
            found[uid] = None
        except OSError:
            continue  # it ended meanwhile
        else:
            found[uid] = None if so_far is None else so_far | _named(content)
    return found


def running_pods(proc: Path = PROC) -> frozenset[str]:
    """The uids of all pods of which a process lives here."""
    return frozenset(uid for _, uid in _processes(proc))


def any_pod_runs(proc: Path = PROC, sees_all: Callable[[], bool] = sees_every_process) -> bool | None:
    """Whether a process of any pod lives on this machine; None where this process does not see those of the machine."""
    if any(True for _ in _processes(proc)):
        return True
    return False if sees_all() else None


def devices_of_pods(
    devices: Mapping[str, Grant],
    *,
    now: float,
    new_id: Callable[[], str],
    of_this_machine: Callable[[int], bool],
    proc: Path = PROC,
) -> tuple[Allocation, ...]:
    """What pods have by their processes' environment, for a register that is new; only the pod's uid is known of each keeper.

    `devices` are the machine's, by UUID; `now` is in seconds since the epoch; `of_this_machine` says of a pid whether it meets
    this machine's GPUs. Devices that a container is told of in another way are not found.
    """
    found: dict[tuple[str, Grant], Allocation] = {}
    for pid, uid in _processes(proc):
        try:
            content = (proc / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        named = _named(content)
        grants = [grant for uuid, grant in devices.items() if uuid in named]
        if not grants or not of_this_machine(pid):
            continue
        for grant in grants:
            if (uid, grant) not in found:
                keeper = PodKeeper("", uid=uid)
                found[uid, grant] = Allocation(
                    new_id(), nearest_request((grant,)), (grant,), Phase.ACTIVE, now, keeper=keeper
                )
    return tuple(found.values())


def device_mark(uuid: str) -> str:
    """The variable that names a device in the environment of a container that was given it, in whatever way."""
    return f"{_MARK}{uuid.replace('-', '_')}"


def claim_mark(uid: str) -> str:
    """The variable that names a claim in the environment of whatever runs with it."""
    return f"TRANCHE_CLAIM_{uid.replace('-', '_')}"


def claims_with_processes(uids: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Those of the claims, by uid, with which a process of a pod runs; all of them where a process cannot be looked into."""
    marks = {f"{claim_mark(uid)}=".encode(): uid for uid in uids}
    found: set[str] = set()
    for pid, _ in _processes(proc):
        try:
            content = (proc / str(pid) / "environ").read_bytes()
        except PermissionError:
            return frozenset(uids)
        except OSError:
            continue  # it ended meanwhile
        pairs = content.split(b"\0")
        found |= {uid for mark, uid in marks.items() if any(pair.startswith(mark) for pair in pairs)}
    return frozenset(found)


def pod_of(cgroups: str) -> str:
    """The uid of the pod whose process is in these control groups, as the kernel lists them; "" for no pod's."""
    named = _POD.search(cgroups)
    return named[1].replace("_", "-") if named else ""


def _named(environment: bytes) -> frozenset[str]:
    """The devices that an environment names, by UUID; for NVIDIA_VISIBLE_DEVICES whatever else stands there too."""
    values = dict(os.fsdecode(pair).partition("=")[::2] for pair in environment.split(b"\0"))
    return frozenset((*values.get(DEVICES, "").split(","), *(values[key] for key in values if key.startswith(_MARK))))


def _processes(proc: Path) -> Iterator[tuple[int, str]]:
    """Each living process of a pod, with the pod's uid."""
    with os.scandir(proc) as entries:
        names = [entry.name for entry in entries if entry.name.isdecimal()]
    for name in names:
        try:
            uid = pod_of((proc / name / "cgroup").read_text())
        except OSError:  # it ended meanwhile: these two files are readable for everybody
            continue
        if uid and (stat := process_stat(int(name), proc)) is not None and stat.lives:
            yield int(name), uid
