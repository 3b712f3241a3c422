"""Pods' processes on this machine: their pod, by their cgroups, and the devices that their environment names.

A kubelet puts a pod's containers below a cgroup named after the pod's uid: `pod<uid>`, with underscores for dashes if systemd
makes it. No pod can change that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from tranche.core.allocation import Allocation, Grant, Phase, nearest_request
from tranche.core.keeper import PodKeeper
from tranche.hardware.process_stat import PROC, process_environment, process_groups, process_ids, process_stat
from tranche.node.state.session import sees_every_process

DEVICES = "NVIDIA_VISIBLE_DEVICES"
_MARK = "TRANCHE_DEVICE_"
_POD = re.compile(r"[/-]pod([0-9a-zA-Z_-]+?)(?:\.slice)?(?:/|$)", re.MULTILINE)


def pods_with_processes(uids: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """The given pods, by uid, with a living process. Zombies do not count: they have lost their files and the driver."""
    return frozenset(uid for _, uid in _processes(proc) if uid in uids)


def devices_told(uids: Collection[str], proc: Path = PROC) -> Mapping[str, frozenset[str] | None]:
    """The given pods with a living process, by uid, each with the device UUIDs in the environments of its processes.

    None for a pod with an unreadable process.
    """
    found: dict[str, frozenset[str] | None] = {}
    for pid, uid in _processes(proc):
        if uid not in uids:
            continue
        so_far = found.setdefault(uid, frozenset())
        try:
            environment = process_environment(pid, proc)
        except PermissionError:
            found[uid] = None
        except OSError:
            continue  # it ended meanwhile
        else:
            found[uid] = None if so_far is None else so_far | _named(environment)
    return found


def running_pods(proc: Path = PROC) -> frozenset[str]:
    """The uids of pods with a living process here."""
    return frozenset(uid for _, uid in _processes(proc))


def any_pod_runs(proc: Path = PROC, sees_all: Callable[[], bool] = sees_every_process) -> bool | None:
    """Whether a process of any pod lives on this machine; None when this process cannot see the machine's processes."""
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
    """The shares of pods by their processes' environment, for a new register. Each keeper knows only its pod's uid.

    `devices` are the machine's, by UUID; `now` is in seconds since the epoch; `of_this_machine` tells whether a pid uses this
    machine's GPUs. Devices passed to a container in another way are not found.
    """
    found: dict[tuple[str, Grant], Allocation] = {}
    for pid, uid in _processes(proc):
        try:
            environment = process_environment(pid, proc)
        except OSError:
            continue
        named = _named(environment)
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
    """The environment variable that names a device in every container that received it."""
    return f"{_MARK}{uuid.replace('-', '_')}"


def claim_mark(uid: str) -> str:
    """The environment variable that names a claim in every process that runs with it."""
    return f"TRANCHE_CLAIM_{uid.replace('-', '_')}"


def claims_with_processes(uids: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """The given claims, by uid, that some pod's process runs with; all of them when a process is unreadable."""
    marks = {f"{claim_mark(uid)}=".encode(): uid for uid in uids}
    found: set[str] = set()
    for pid, _ in _processes(proc):
        try:
            environment = process_environment(pid, proc)
        except PermissionError:
            return frozenset(uids)
        except OSError:
            continue  # it ended meanwhile
        found |= {uid for mark, uid in marks.items() if any(pair.startswith(mark) for pair in environment)}
    return frozenset(found)


def pod_of(cgroups: str) -> str:
    """The uid of the pod that owns these control groups, as the kernel lists them; "" when no pod does."""
    named = _POD.search(cgroups)
    return named[1].replace("_", "-") if named else ""


def _named(environment: Iterable[bytes]) -> frozenset[str]:
    """The device UUIDs in an environment, and any other values of NVIDIA_VISIBLE_DEVICES."""
    values = dict(os.fsdecode(pair).partition("=")[::2] for pair in environment)
    return frozenset((*values.get(DEVICES, "").split(","), *(values[key] for key in values if key.startswith(_MARK))))


def _processes(proc: Path) -> Iterator[tuple[int, str]]:
    """Each living process of a pod, with the pod's uid."""
    for pid in process_ids(proc):
        try:
            uid = pod_of(process_groups(pid, proc))
        except OSError:  # it ended meanwhile: every user can read these two files
            continue
        if uid and (stat := process_stat(pid, proc)) is not None and stat.lives:
            yield pid, uid
