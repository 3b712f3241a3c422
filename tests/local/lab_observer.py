"""Watches a lab with its own eyes: /proc, the driver and the ledger's rows. It believes nothing that Tranche says.

A process that has a share's variables holds what they name. A process that lives before and after a look at the GPUs held that
during the look.
"""

from __future__ import annotations

import json
import os
import select
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from tranche_simulator.machine import SimulatedMachine

_PAUSE_SECONDS = 0.02
_LOOKS = 3
"""A list of slices is read one by one. So one that is missing is looked for again, while others come and go."""
_MOST_SAID = 20


class Slice(NamedTuple):
    """A MIG device: its GPU, its GPU instance with its memory slices, and the compute slices that it has of that."""

    gpu: str
    instance: int
    start: int
    size: int
    slices: int
    compute_start: int
    compute_size: int


class Holder(NamedTuple):
    """A process with a share's variables. `parts` are the bytes that it may use of each device. No quota limits `preemptible`."""

    pid: int
    started: int
    uid: int
    share: str
    devices: tuple[str, ...]
    parts: tuple[tuple[str, int], ...]
    preemptible: bool


class Limits(NamedTuple):
    """The most that a user may hold."""

    gpus: float
    shares: int


@dataclass
class Seen:
    """What the observer saw: what was wrong, and how much happened."""

    wrong: list[str] = field(default_factory=list)
    looks: int = 0
    shares: set[str] = field(default_factory=set)
    most_at_once: int = 0
    most_of_a_user: float = 0.0
    gpu_seconds: dict[int, float] = field(default_factory=dict)
    """How long each user has had how many GPUs, until the last look at `at`."""
    at: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.looks} looks saw {len(self.shares)} shares, {self.most_at_once} at once, and {self.most_of_a_user:.2f} GPUs "
            "of one user"
        )

    def say(self, what: str) -> None:
        if what not in self.wrong and len(self.wrong) < _MOST_SAID:
            self.wrong.append(what)


@dataclass(frozen=True)
class Observer:
    """`users` are the uids of the lab; `limits` hold for each of them, `group_limits` in GPUs for members of a group together."""

    machine: SimulatedMachine
    state: Path
    users: range
    limits: Limits
    groups: Mapping[str, frozenset[int]]
    group_limits: Mapping[str, float]
    alarm: Path
    """The file that tells others that something is wrong."""

    def watch(self, stop: int) -> Seen:
        """Look again and again, until the descriptor is readable."""
        self.machine.preload()
        pynvml.nvmlInit()
        seen = Seen()
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        while not poll.poll(_PAUSE_SECONDS * 1000):
            self._look(seen)
            if seen.wrong:
                self.alarm.write_text("\n".join(seen.wrong))
        return seen

    def _look(self, seen: Seen) -> None:
        before = list(self._holders())
        slices, clients = self._slices(), self.machine.clients()
        rows = self._ledger()
        for _ in range(_LOOKS):
            missing = {each for one in before for each in one.devices if each.startswith("MIG-")} - set(slices)
            if not missing:
                break
            slices |= self._slices()
        there = [each for each in before if started(each.pid) == each.started]
        seen.looks += 1
        shares: dict[str, Holder] = {}
        for each in there:
            other = shares.setdefault(each.share, each)
            if (other.uid, other.devices, other.parts) != (each.uid, each.devices, each.parts):
                seen.say(f"two processes have one share: {other} and {each}")
            if each.share not in rows:
                seen.say(f"{each} lives, and the ledger has no such share")
            for device in each.devices:
                if device.startswith("MIG-") and device not in slices:
                    seen.say(f"{each} lives, and its slice {device} is gone")
        seen.shares |= set(shares)
        seen.most_at_once = max(seen.most_at_once, len(shares))
        self._check_apart(seen, tuple(shares.values()), slices)
        self._check_limits(seen, [each for each in shares.values() if not each.preemptible], slices)
        self._check_clients(seen, there, slices, clients)

    def _holders(self) -> Iterator[Holder]:
        register = b"TRANCHE_REGISTER=" + os.fsencode(self.state)
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                uid = os.stat(f"/proc/{name}").st_uid
                if uid not in self.users:
                    continue
                begun = started(int(name))
                environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if register not in environment or not begun:
                    continue
                found = dict(each.decode().partition("=")[::2] for each in environment if b"=" in each)
                words = [each.split(":") for each in found.get("TRANCHE_PARTS", "").split(",") if each]
                yield Holder(
                    int(name),
                    begun,
                    uid,
                    found["TRANCHE_ALLOCATION"],
                    tuple(found["CUDA_VISIBLE_DEVICES"].split(",")),
                    tuple((uuid, int(memory)) for uuid, _, memory, *_ in words),
                    "preemptible" in json.loads(found["TRANCHE_REQUEST"]),
                )

    def _slices(self) -> dict[str, Slice]:
        """Every MIG device there is, by UUID."""
        found: dict[str, Slice] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(gpu))
            if not pynvml.nvmlDeviceGetMigMode(gpu)[0]:
                continue
            for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
                with suppress(pynvml.NVMLError):  # none of that number, or it is just going
                    found |= [self._slice(gpu, uuid, number)]
        return found

    def _slice(self, gpu: Any, uuid: str, number: int) -> tuple[str, Slice]:
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
        name = str(pynvml.nvmlDeviceGetUUID(device))
        instance_id = pynvml.nvmlDeviceGetGpuInstanceId(device)
        instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu, instance_id)
        compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, pynvml.nvmlDeviceGetComputeInstanceId(device))
        place = pynvml.nvmlGpuInstanceGetInfo(instance).placement
        inside = pynvml.nvmlComputeInstanceGetInfo_v2(compute).placement
        slices = pynvml.nvmlDeviceGetAttributes(device).gpuInstanceSliceCount
        return name, Slice(uuid, instance_id, place.start, place.size, slices, inside.start, inside.size)

    def _ledger(self) -> set[str]:
        """The ids of all shares that are written down."""
        uri = f"file:{self.state}/ledger.db?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=60)) as db:
            return {row[0] for row in db.execute("SELECT id FROM allocations")}

    def _check_apart(self, seen: Seen, holders: Iterable[Holder], slices: Mapping[str, Slice]) -> None:
        """Nobody has what another has, and parts of a device are no more than the device."""
        exclusive: list[tuple[str, Slice | None, Holder]] = []
        shared: dict[str, list[tuple[int, Holder]]] = defaultdict(list)
        for holder in holders:
            parts = dict(holder.parts)
            for device in holder.devices:
                if device in parts:
                    shared[device].append((parts[device], holder))
                elif device.startswith("GPU-") or device in slices:
                    exclusive.append((device, slices.get(device), holder))
        devices = [*exclusive, *((device, slices.get(device), all_of[0][1]) for device, all_of in shared.items())]
        for (name, one, first), (other_name, other, second) in combinations(devices, 2):
            if _overlap(name, one, other_name, other):
                seen.say(f"{name} {one} of {first} is also {other_name} {other} of {second}")
        for device, all_of in shared.items():
            if (taken := sum(memory for memory, _ in all_of)) > (memory := _memory(device)):
                seen.say(f"{taken} of {memory} bytes of {device} are given: {all_of}")

    def _check_limits(self, seen: Seen, holders: Iterable[Holder], slices: Mapping[str, Slice]) -> None:
        shares = Counter[int]()
        gpus_of: dict[int, float] = defaultdict(float)
        for holder in holders:
            parts = dict(holder.parts)
            for device in holder.devices:
                shares[holder.uid] += 1
                place = slices.get(device)
                if device in parts:
                    gpus_of[holder.uid] += parts[device] / _memory(place.gpu if place else device)
                else:
                    gpus_of[holder.uid] += 1.0 if place is None else max(place.size / 8, place.slices / 7)
        now = time.monotonic()
        before, seen.at = seen.at or now, now
        for uid, gpus in gpus_of.items():
            seen.gpu_seconds[uid] = seen.gpu_seconds.get(uid, 0.0) + gpus * (now - before)
        seen.most_of_a_user = max(seen.most_of_a_user, *gpus_of.values(), 0.0)
        for uid, gpus in gpus_of.items():
            if gpus > self.limits.gpus + 1e-6:
                seen.say(f"user {uid} has {gpus:.3f} GPUs")
            if shares[uid] > self.limits.shares:
                seen.say(f"user {uid} has {shares[uid]} shares")
        for group, most in self.group_limits.items():
            if (gpus := sum(gpus_of[uid] for uid in self.groups[group] & set(gpus_of))) > most + 1e-6:
                those = [
                    (each, [slices.get(one) for one in each.devices])
                    for each in holders
                    if each.uid in self.groups[group]
                ]
                seen.say(f"group {group} has {gpus:.3f} GPUs: {those} {dict(gpus_of)}")

    def _check_clients(
        self, seen: Seen, holders: Sequence[Holder], slices: Mapping[str, Slice], clients: Sequence[Any]
    ) -> None:
        """A program is on no other GPU and no other slice than those of its share."""
        by_pid = {each.pid: each for each in holders}
        gpus = [each.uuid for each in self.machine.gpus()]
        for client in clients:
            holder = by_pid.get(client.pid)
            if holder is None:
                continue
            places = [
                (slices[each].gpu, slices[each].instance) if each in slices else (each, None)
                for each in holder.devices
                if each in slices or each.startswith("GPU-")
            ]
            if (gpus[client.gpu], client.gpu_instance_id) not in places:
                seen.say(f"{client} is not on its share: {holder}")


def _overlap(name: str, one: Slice | None, other_name: str, other: Slice | None) -> bool:
    gpu, other_gpu = one.gpu if one else name, other.gpu if other else other_name
    if gpu != other_gpu:
        return False
    if one is None or other is None:
        return True
    if one.instance == other.instance:
        return one.compute_start < other.compute_start + other.compute_size and (
            other.compute_start < one.compute_start + one.compute_size
        )
    return one.start < other.start + other.size and other.start < one.start + one.size


def _memory(device: str) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(device)).total)


def started(pid: int) -> int:
    """When the process started; 0 if it does not live."""
    with suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if state in "ZX" else int(rest[18])
    return 0


def lines_of(path: Path) -> list[str]:
    """The lines of a file that may not be there yet."""
    with suppress(OSError):
        return path.read_text().splitlines()
    return []


def state_of(path: Path) -> dict[str, Any]:
    """What a detached run has written down; empty if it is not there yet."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return {}


def await_true(condition: Any, seconds: float) -> bool:
    """Whether the condition came true in that time."""
    deadline = time.monotonic() + seconds
    while not (found := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
