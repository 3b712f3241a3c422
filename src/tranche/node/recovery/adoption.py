"""Finds what a new ledger does not know by its processes: shares of commands, and MPS daemons.

A state folder can be lost while commands run. Their processes carry the share's id and its devices in their environment. The
process that makes the new ledger finds and records them before it grants anything. Only processes of root and the ledger's owner
count: others could claim what they were not given.

An MPS daemon without a record keeps serving, and its GPU stays in compute mode EXCLUSIVE_PROCESS. Tranche finds it by the socket
folder in its environment and takes it over. It then admits no clients, and ends when no share uses its device. Later decisions do
the same as soon as something shows that a record is missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from tranche.core.allocation import (
    Allocation,
    FractionalShare,
    Grant,
    NodeView,
    Phase,
    Slice,
    WholeGpu,
    device_uuid,
    nearest_request,
    parts_by,
    shareable_devices,
)
from tranche.core.errors import TrancheError
from tranche.core.request import GpuMemory, GpuShare, Request
from tranche.core.sharing import MEMORY_LIMIT, Sharing, context_memory
from tranche.core.state import ComputeMode, InstanceKey, NodeState
from tranche.core.wire import request_from_dict, request_to_dict
from tranche.hardware.mps_control import PIPES
from tranche.hardware.process_stat import process_environment, process_ids
from tranche.node.mps.mps_daemons import UNTIL, MpsDaemonManager
from tranche.node.mps.mps_records import SERVER_PROGRAM, DaemonRecord, name_of, record_of
from tranche.node.processes.processes import KEY, MARK, REGISTER, Process, digest_of, process_at
from tranche.node.state.session import boot_clock, boot_id, process_command

DEVICES = "CUDA_VISIBLE_DEVICES"

PARTS = "TRANCHE_PARTS"
"""The variable with a share's parts of devices, each as `part_word` writes it, separated by commas.

In a container, it also has the UUIDs of devices that the share has whole.
"""

REQUEST = "TRANCHE_REQUEST"
"""The variable with the request, as the JSON data of `request_to_dict`."""

_REQUEST_FIELDS = {
    "gpus": int,
    "gpu": str,
    "gpuMemoryBytes": int,
    "migProfile": str,
    "isolation": str,
    "gpuModel": str,
    "count": int,
    "computePercent": int,
    "timeLimitSeconds": int,
    "preemptible": bool,
}
_LONGEST_REQUEST = 1000
_BYTES = re.compile("[1-9][0-9]{0,14}")
_PART = re.compile("([0-9A-Za-z/-]+):([a-z-]+):([1-9][0-9]{0,14}):([1-9][0-9]?|100|):([1-9][0-9]{0,14}|)")
_ID = re.compile("[0-9a-f]{8}")  # it becomes the name of a file
_TICKS = os.sysconf("SC_CLK_TCK")


def part_word(device_uuid: str, part: FractionalShare) -> str:
    """A part in an environment: `UUID:mechanism:memory:ceiling:limit`, the last two empty if the part has none."""
    return f"{device_uuid}:{part.sharing}:{part.memory}:{part.compute or ''}:{part.limit or ''}"


def shares_of_processes(
    devices: Mapping[str, Grant],
    register: Path,
    *,
    uid: int,
    now: float,
    contexts: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Allocation, ...]:
    """The register's shares named by running processes of root or user `uid`, each kept by the oldest of its processes.

    The service gives root's shares to all users. So if `uid` is root, every user's process counts: a liar can only make a device
    look occupied, and a share that is overlooked is given twice.

    `register` is the state folder; `devices` are the machine's, by UUID; `contexts` are the bytes that a context takes of each
    GPU; `now` is in seconds since the epoch. A share's age is that of its process. Leaves out shares without any existing device.
    """
    found: dict[str, tuple[Process, tuple[Grant, ...], Mapping[str, str]]] = {}
    for process, environment in _environments():
        name = environment.get(MARK, "")
        named = environment.get(PARTS, "").split(",")  # a container has no other names of its devices
        uuids = (*environment.get(DEVICES, "").split(","), *(each.partition(":")[0] for each in named))
        grants = tuple(_given(uuid, devices[uuid], environment) for uuid in dict.fromkeys(uuids) if uuid in devices)
        older = name in found and found[name][0].started <= process.started
        here = environment.get(REGISTER) == str(register.resolve())
        if here and _ID.fullmatch(name) and grants and not older and (uid == 0 or process.uid in (0, uid)):
            found[name] = (process, grants, environment)
    booted = now - boot_clock()
    return tuple(
        Allocation(
            name,
            _request_of(environment.get(REQUEST, "")) or _likely_request(grants, contexts),
            grants,
            Phase.ACTIVE,
            min(now, booted + process.started / _TICKS),
            process_command(process.pid),
            process.keeper._replace(key_digest=digest_of(environment[KEY]) if environment.get(KEY) else ""),
        )
        for name, (process, grants, environment) in sorted(found.items())
    )


def _request_of(text: str) -> Request | None:
    """The request that an environment names; None when it names none or an impossible one."""
    try:
        data = json.loads(text) if len(text) <= _LONGEST_REQUEST else {}
        if any(type(value) is not _REQUEST_FIELDS[name] for name, value in data.items()):
            return None
        numbers = [value for value in data.values() if isinstance(value, int)]
        request = request_from_dict(data)
        sound = all(0 < number < 2**63 for number in numbers) and request_to_dict(request) == data
        return (
            request if sound and (not isinstance(request.demand, GpuShare) or 0 < request.demand.share <= 1) else None
        )
    except (ValueError, KeyError, AttributeError, ArithmeticError, RecursionError, TrancheError):
        return None


def _likely_request(grants: tuple[Grant, ...], contexts: Mapping[str, int]) -> Request:
    """The probable request. For a part, its memory without CUDA's context, which is added to every requested amount."""
    request, first = nearest_request(grants), grants[0]
    context = contexts.get(first.gpu_uuid, context_memory())
    if not isinstance(first, FractionalShare) or first.memory <= context:
        return request
    return replace(request, demand=GpuMemory(first.memory - context))


def _given(uuid: str, device: Grant, environment: Mapping[str, str]) -> Grant:
    """The process's grant of the device: all of it, or the part that its environment names."""
    if not isinstance(device, WholeGpu | Slice):
        return device
    for word in environment.get(PARTS, "").split(","):
        found = _PART.fullmatch(word)
        if found is not None and found[1] == uuid and found[2] in set(Sharing):
            compute, limit = (int(each) if each else None for each in found.group(4, 5))
            return FractionalShare(device, int(found[3]), Sharing(found[2]), compute, limit)
    limit_text = environment.get(MEMORY_LIMIT, "")
    if PIPES in environment and _BYTES.fullmatch(limit_text):
        return FractionalShare(device, int(limit_text), Sharing.MPS)
    return device


def _environments() -> Iterator[tuple[Process, Mapping[str, str]]]:
    mark = f"{MARK}=".encode()
    for pid in process_ids():
        # A process may end meanwhile, or belong to another user.
        with suppress(OSError):
            pairs = process_environment(pid)
            marked = any(pair.startswith(mark) for pair in pairs)
            if marked and (process := process_at(pid)) is not None:
                decoded = (os.fsdecode(pair).partition("=") for pair in pairs)
                yield process, {name: value for name, _, value in decoded}


_LOST = "its record was lost"


def find_strays(daemons: MpsDaemonManager, uid: int) -> Mapping[str, str]:
    """The daemons of root and user `uid` with sockets in the state folder, now or before, but no record.

    Each is named by its folder, and given by its device's UUID. A server that a daemon left counts, too.
    """
    from tranche.hardware.mps_process import served_folders  # slow to import, and a ledger is rarely new

    found = served_folders(daemons.records.folder, uid)
    if not found:
        return found
    known = daemons.records.look()
    names = {name_of(record.device_uuid) for record in known.records} | known.damaged
    return {name: device for name, device in sorted(found.items()) if name not in names}


def take_over(daemons: MpsDaemonManager, node: NodeState, uid: int, *, whole: bool) -> None:
    """Record the strays. If a stray's device is missing in a view of the `whole` machine, records only its name."""
    homes = {uuid: (gpu.uuid, slot) for gpu in node for uuid, slot in shareable_devices(gpu).items()}
    for name, device in find_strays(daemons, uid).items():
        home = homes.get(device)
        if home is not None and name_of(device) == name:
            daemons.records.write(_record(daemons, *home, device))
        elif whole:
            daemons.records.write_damaged(name)


def note_missing(daemons: MpsDaemonManager, node: NodeState, grants: Iterable[Grant]) -> None:
    """Record the daemons that these grants must have had: dead ones left a compute mode or a server."""
    for part in parts_by(Sharing.MPS, grants):
        gpu = node.gpu(part.gpu_uuid)
        if gpu.daemon_of(part.slot) is None and (uuid := device_uuid(part, gpu)):
            daemons.records.write(_record(daemons, gpu.uuid, part.slot, uuid))


def record_missing(daemons: MpsDaemonManager, view: NodeView, working: Container[str]) -> bool:
    """Whether sockets, an MPS server or a share by MPS show that a daemon has lost its record.

    Ignores shares on GPUs that a plan is `working` on. A server may also belong to a daemon that is not Tranche's.
    """
    return (
        bool(daemons.records.without_record())
        or bool(list(_without_daemon(view, working)))
        or any(each.name == SERVER_PROGRAM for gpu in view.node for each in gpu.all_processes)
    )


def find_again(daemons: MpsDaemonManager, view: NodeView, working: Collection[str], uid: int, *, whole: bool) -> None:
    """Record the daemons that have lost their records, and remove the sockets that no process serves."""
    take_over(daemons, view.node, uid, whole=whole)
    note_missing(daemons, daemons.on_node(view.node), list(_without_daemon(view, working)))
    if not working:
        for name in daemons.records.without_record():
            shutil.rmtree(daemons.records.folder / name, ignore_errors=True)


def _without_daemon(view: NodeView, working: Container[str]) -> Iterator[FractionalShare]:
    """The held parts by MPS of existing devices without a daemon."""
    gpus = {gpu.uuid: gpu for gpu in view.node if not gpu.lost and gpu.uuid not in working}
    for allocation in view.allocations:
        for part in parts_by(Sharing.MPS, allocation.grants):
            gpu = gpus.get(part.gpu_uuid)
            if gpu is not None and gpu.daemon_of(part.slot) is None and device_uuid(part, gpu):
                yield part


def _record(daemons: MpsDaemonManager, gpu_uuid: str, slot: InstanceKey | None, device_uuid: str) -> DaemonRecord:
    """The record of a stray daemon: unavailable if its sockets exist, else lost, since clients cannot reach it.

    The GPU's earlier compute mode is unknown: it gets the driver's default.
    """
    record = record_of(gpu_uuid, slot, device_uuid, ComputeMode.DEFAULT if slot is None else None)
    record = record._replace(ready=True, wedged=True, fault=_LOST + UNTIL)
    found = daemons.process(device_uuid).find()
    if found is None or not daemons.records.reachable(record):
        return record
    return record._replace(
        pid=found.pid, started=found.started, uid=found.uid, every_user=found.every_user, boot=boot_id()
    )
