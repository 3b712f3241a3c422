"""Shares that a new ledger does not know: their processes carry the share's id and its devices in their environment.

A state folder can be lost while commands run. Whoever makes the new ledger finds them by this and writes them down again, before
anything is given away. Only processes of root and of the ledger's owner count: others could claim what they were not given.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tranche.core.allocation import Allocation, FractionalShare, Grant, Phase, Slice, WholeGpu, nearest_request
from tranche.core.errors import TrancheError
from tranche.core.request import GpuMemory, GpuShare, Request
from tranche.core.sharing import Sharing
from tranche.core.wire import request_from_dict, request_to_dict
from tranche.hardware.mps_environment import PIPES
from tranche.hardware.process_stat import PROC
from tranche.node.processes.processes import KEY, MARK, REGISTER, Process, digest_of, process_at
from tranche.node.state.session import process_command
from tranche.planning.decide.share_costs import CONTEXT_MEMORY

DEVICES = "CUDA_VISIBLE_DEVICES"

MEMORY_LIMIT = "TRANCHE_GPU_MEMORY_LIMIT"
"""The variable with the most that a program may have of each device, in bytes. Under MPS CUDA shows the whole device."""

PARTS = "TRANCHE_PARTS"
"""The variable with the parts of devices that a share consists of, each as `part_word` writes it, separated by commas."""

REQUEST = "TRANCHE_REQUEST"
"""The variable with what was asked for, as the JSON data of `request_to_dict`."""

_REQUEST_FIELDS = {
    "gpus": int,
    "gpu": str,
    "gpuMemoryBytes": int,
    "migProfile": str,
    "isolation": str,
    "gpuModel": str,
    "count": int,
    "computePercent": int,
}
_LONGEST_REQUEST = 1000
_BYTES = re.compile("[1-9][0-9]{0,14}")
_PART = re.compile("([0-9A-Za-z/-]+):([a-z-]+):([1-9][0-9]{0,14}):([1-9][0-9]?|100|):([1-9][0-9]{0,14}|)")
_ID = re.compile("[0-9a-f]{8}")  # it becomes the name of a file


def part_word(device_uuid: str, part: FractionalShare) -> str:
    """A part in an environment: `UUID:mechanism:memory:ceiling:limit`, the last two empty where the part has none."""
    return f"{device_uuid}:{part.sharing}:{part.memory}:{part.compute or ''}:{part.limit or ''}"


def shares_of_processes(
    devices: Mapping[str, Grant], register: Path, *, uid: int, now: float, proc: Path = PROC
) -> tuple[Allocation, ...]:
    """The shares of that register that running processes of root or of user `uid` name, each kept by the oldest of them.

    `register` is the state folder; `devices` are the machine's, by UUID; `now` is in seconds since the epoch. A share of which no
    device is there is left out.
    """
    found: dict[str, tuple[Process, tuple[Grant, ...], Mapping[str, str]]] = {}
    for process, environment in _environments(proc):
        name = environment.get(MARK, "")
        uuids = environment.get(DEVICES, "").split(",")
        grants = tuple(_given(uuid, devices[uuid], environment) for uuid in dict.fromkeys(uuids) if uuid in devices)
        older = name in found and found[name][0].started <= process.started
        here = environment.get(REGISTER) == str(register.resolve())
        if here and _ID.fullmatch(name) and grants and not older and process.uid in (0, uid):
            found[name] = (process, grants, environment)
    return tuple(
        Allocation(
            name,
            _request_of(environment.get(REQUEST, "")) or _likely_request(grants),
            grants,
            Phase.ACTIVE,
            now,
            process_command(process.pid, proc),
            replace(process.keeper, key_digest=digest_of(environment[KEY]) if environment.get(KEY) else ""),
        )
        for name, (process, grants, environment) in sorted(found.items())
    )


def _request_of(text: str) -> Request | None:
    """The request that an environment names; None when it names none, or what nobody could have asked for."""
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


def _likely_request(grants: tuple[Grant, ...]) -> Request:
    """What was probably asked for: of a part the memory without CUDA's context, which whoever names an amount gets on top."""
    request, first = nearest_request(grants), grants[0]
    if not isinstance(first, FractionalShare) or first.memory <= CONTEXT_MEMORY[first.sharing]:
        return request
    return replace(request, demand=GpuMemory(first.memory - CONTEXT_MEMORY[first.sharing]))


def _given(uuid: str, device: Grant, environment: Mapping[str, str]) -> Grant:
    """What the process has of the device: all of it, or the part that its environment limits it to."""
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


def _environments(proc: Path) -> Iterator[tuple[Process, Mapping[str, str]]]:
    for entry in os.scandir(proc):
        if not entry.name.isdigit():
            continue
        # A process may end meanwhile, or be somebody else's.
        with suppress(OSError):
            pairs = Path(entry.path, "environ").read_bytes().split(b"\0")
            if not any(pair.startswith(f"{MARK}=".encode()) for pair in pairs):
                continue
            process = process_at(int(entry.name), proc)
            if process is not None:
                decoded = (os.fsdecode(pair).partition("=") for pair in pairs)
                yield process, {name: value for name, _, value in decoded}
