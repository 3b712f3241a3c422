"""The record of each MPS daemon, beside its sockets: its device, its process, and what to restore.

A record is written before any change to the machine, and removed when everything is restored. So a killed process always leaves a
record of what it changed.

Only a missing record means that there is no daemon. An unreadable one stands for a daemon known only by its device, which names
the file. That daemon is unavailable, and is ended by its folder.

The records and a few other files show whether a daemon has died or should end. If ending one failed, the retry comes after a
while, not at every look.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tranche.core.allocation import DeviceKey, shareable_devices, shared_by_mps
from tranche.core.errors import LedgerUnavailable, TrancheError
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.state import (
    ComputeMode,
    DaemonState,
    GpuProcess,
    GpuState,
    InstanceKey,
    MpsDaemon,
    NodeState,
)
from tranche.node.state.session import boot_id, children_pids, process_lives, process_stopped
from tranche.node.state.state_file import replace_state_file
from tranche.node.store import records, register

_SUFFIX = ".json"
_FAILED = ".failed"
PAUSE_SECONDS = 60.0
"""The pause before a retry."""
IDLE_SECONDS = 60.0
"""How long a daemon stays after the last share of its device: the next share starts faster."""
_SOCKET = "control"
_NAME_DIGITS = 12


class DaemonRecord(NamedTuple):
    """One daemon. `profile` is empty for an uncut GPU; `start` and `size` are the instance's, in memory slices.

    `mode` is the GPU's earlier compute mode, "" if it was not changed. `limit` is in bytes. `pid` and `started` (in clock ticks
    since that boot) name the daemon's process once it is ready. `uid` is its user; it serves only that user's programs, unless it
    serves `every_user`. `limits` is what it reported when its limits were set; `changed` means that it reported others later.
    `raising` is the limit in bytes that it is about to receive, 0 when there is none. `fault` says why it admits no more clients;
    `wedged`, that the reason lasts until the daemon ends; `told` is the reason in the last event. `suspect` means that a client
    was killed, which may have wedged it; `damaged`, that the record is unreadable and only the device is known.
    """

    gpu_uuid: str
    device_uuid: str
    profile: str = ""
    start: int = 0
    size: int = 0
    mode: str = ""
    limit: int = 0
    pid: int = 0
    started: int = 0
    boot: str = ""
    uid: int = 0
    ready: bool = False
    fault: str = ""
    suspect: bool = False
    wedged: bool = False
    damaged: bool = False
    every_user: bool = False
    told: str = ""
    limits: str = ""
    changed: bool = False
    raising: int = 0

    @property
    def slot(self) -> InstanceKey | None:
        """The slot of the device's instance; None for an uncut GPU."""
        if not self.profile:
            return None
        return InstanceKey(self.gpu_uuid, parse_profile(self.profile), Placement(self.start, self.size))

    @property
    def key(self) -> DeviceKey:
        """The device."""
        return self.gpu_uuid, self.slot

    @property
    def mode_before(self) -> ComputeMode | None:
        """The compute mode to restore; None when it was not changed."""
        return ComputeMode(self.mode) if self.mode else None

    @property
    def state(self) -> DaemonState:
        """The daemon's state, as far as known without querying it."""
        if self.damaged:
            return DaemonState.DAMAGED
        if not self.ready:
            return DaemonState.STARTING
        if self.boot != boot_id() or not process_lives(self.pid, self.started):
            return DaemonState.LOST
        return DaemonState.FAULT if self.why else DaemonState.READY

    @property
    def why(self) -> str:
        """Why a living daemon admits no clients, in words; "" if no reason is known."""
        return self.fault or self.halted

    @property
    def halted(self) -> str:
        """Says that the daemon or one of its servers is stopped, so new clients would wait; "" when none is."""
        halted = self.halted_pid
        if not halted:
            return ""
        return f"its process {halted} is stopped" if halted == self.pid else f"its server, process {halted}, is stopped"

    @property
    def halted_pid(self) -> int:
        """The stopped process, the daemon or one of its servers; 0 when none is."""
        return next(filter(process_stopped, (self.pid, *children_pids(self.pid))), 0)

    @property
    def untold(self) -> bool:
        """Whether no event has reported the current reason yet, or its end."""
        return self.state in (DaemonState.READY, DaemonState.FAULT) and self.why != self.told

    @property
    def seen(self) -> MpsDaemon:
        """The daemon as a view of the machine shows it."""
        state, every_user = self.state, self.every_user or not self.ready
        why = self.why if state is DaemonState.FAULT else ""
        return MpsDaemon(self.slot, self.device_uuid, state, self.limit, every_user, why, self.changed)


def record_of(gpu_uuid: str, slot: InstanceKey | None, device_uuid: str, mode: ComputeMode | None) -> DaemonRecord:
    """The record of a daemon about to start; `mode` is the compute mode to restore afterwards."""
    record = DaemonRecord(gpu_uuid, device_uuid, mode="" if mode is None else str(mode))
    if slot is None:
        return record
    return record._replace(profile=str(slot.profile), start=slot.placement.start, size=slot.placement.size)


class DaemonRecordList(NamedTuple):
    """The records in a folder; `damaged` are the names of unreadable ones, without their suffixes."""

    records: tuple[DaemonRecord, ...] = ()
    damaged: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.records or self.damaged)

    def on(self, gpu: GpuState) -> tuple[DaemonRecord, ...]:
        """The records of the daemons on that GPU, including those that only name a device."""
        ours = tuple(record for record in self.records if record.gpu_uuid == gpu.uuid)
        if not self.damaged:
            return ours
        devices = shareable_devices(gpu).items()
        return ours + tuple(_damaged(gpu.uuid, slot, uuid) for uuid, slot in devices if name_of(uuid) in self.damaged)

    def unclaimed(self, gpus: Iterable[GpuState]) -> frozenset[str]:
        """The names of damaged records of devices that are on none of those GPUs."""
        return (
            self.damaged - {name_of(uuid) for gpu in gpus for uuid in shareable_devices(gpu)}
            if self.damaged
            else self.damaged
        )


def name_of(device_uuid: str) -> str:
    """The name of the device's daemon files; a MIG device's UUID would be too long for a socket's name."""
    import hashlib  # loads OpenSSL, and only changes to a daemon need it

    return hashlib.sha256(device_uuid.encode()).hexdigest()[:_NAME_DIGITS]


class DaemonRecordStore:
    """The records in a folder, each a file named after its device."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pipes(self, device_uuid: str) -> Path:
        """The socket folder of that device's daemon."""
        return self.folder / name_of(device_uuid)

    def reachable(self, record: DaemonRecord) -> bool:
        """Whether the daemon's socket is where clients look for it. Without one, they silently run without MPS.

        Only a socket known to be gone is unreachable, not one in a folder that this user may not read.
        """
        try:
            return (self.pipes(record.device_uuid) / _SOCKET).is_socket()
        except OSError:
            return True

    @property
    def writable(self) -> bool:
        """Whether this user may write records; others do not judge daemons."""
        return os.access(self.folder, os.W_OK | os.X_OK)

    def look(self) -> DaemonRecordList:
        """All records. Raises LedgerUnavailable when the folder is unreadable."""
        try:
            names = [name for name in os.listdir(self.folder) if name.endswith(_SUFFIX)]
        except FileNotFoundError:
            return DaemonRecordList()
        except OSError as error:
            raise LedgerUnavailable(
                f"cannot read the records of MPS daemons in {self.folder}: {error.strerror}",
                hint="Tranche makes no decisions until it can read them: check the folder's permissions and the disk",
            ) from error
        found, damaged = [], set()
        for name in names:
            try:
                found.append(_decode((self.folder / name).read_text()))
            except FileNotFoundError:
                pass  # it disappeared meanwhile
            except (OSError, ValueError, TypeError, KeyError, RecursionError, TrancheError):
                damaged.add(name.removesuffix(_SUFFIX))
        return DaemonRecordList(tuple(sorted(found, key=lambda record: record.device_uuid)), frozenset(damaged))

    def without_record(self) -> frozenset[str]:
        """The names of socket folders without a record, though records are written before them and removed after them."""
        with suppress(OSError):
            names = [name for name in os.listdir(self.folder) if len(name) == _NAME_DIGITS and name.isalnum()]
            return frozenset(name for name in names if not self._written(name) and (self.folder / name).is_dir())
        return frozenset()

    def all(self) -> tuple[DaemonRecord, ...]:
        """Every readable record, in the order of device UUIDs."""
        return self.look().records

    def on(self, gpu_uuid: str) -> tuple[DaemonRecord, ...]:
        """The records of daemons on that GPU."""
        return tuple(record for record in self.all() if record.gpu_uuid == gpu_uuid)

    def find(self, gpu_uuid: str, slot: InstanceKey | None) -> DaemonRecord | None:
        """The record of the daemon of the instance in that slot, or of the GPU itself."""
        return next((record for record in self.on(gpu_uuid) if record.slot == slot), None)

    def idle_since(self, record: DaemonRecord) -> float:
        """When the record was last written or its device last given back, in seconds since the epoch; 0 when it is gone."""
        with suppress(FileNotFoundError):
            return self._path(record.device_uuid).stat().st_mtime
        return 0.0

    def write(self, record: DaemonRecord) -> None:
        """Write a record, replacing an older one, atomically. Raises LedgerUnavailable on failure."""
        replace_state_file(self._path(record.device_uuid), json.dumps(record._asdict()))

    def touch(self, record: DaemonRecord) -> None:
        """Note that the device was given back just now."""
        with suppress(OSError):
            os.utime(self._path(record.device_uuid))

    def failed_lately(self, record: DaemonRecord, now: float) -> bool:
        """Whether to leave the daemon alone for now, because something failed; `now` is in seconds since the epoch.

        Ignores future times, from a clock that was set back.
        """
        try:
            return 0.0 <= now - self._failure(record).stat().st_mtime < PAUSE_SECONDS
        except OSError:
            return False

    def note_failure(self, record: DaemonRecord, now: float) -> None:
        """Note a failure as a file's mtime. If the disk is full, the retry comes sooner."""
        path = self._failure(record)
        with suppress(OSError):
            path.touch()
            os.utime(path, (now, now))

    def clear_failure(self, record: DaemonRecord) -> None:
        """Forget the failures of a daemon that has ended."""
        with suppress(OSError):
            self._failure(record).unlink(missing_ok=True)

    def expire(self) -> None:
        """Make every unneeded daemon end with the next decision, even if it was idle only briefly."""
        for record in self.all():
            with suppress(OSError):
                os.utime(self._path(record.device_uuid), (0, 0))

    def remove(self, record: DaemonRecord) -> None:
        """Forget a daemon that left nothing behind."""
        self._path(record.device_uuid).unlink(missing_ok=True)

    def write_damaged(self, name: str) -> None:
        """Note a daemon known only by the name of its folder."""
        replace_state_file((self.folder / name).with_suffix(_SUFFIX), "{}")

    def remove_damaged(self, name: str) -> None:
        """Forget a daemon that left nothing behind and was known only by the name of its record."""
        (self.folder / name).with_suffix(_SUFFIX).unlink(missing_ok=True)

    def _written(self, name: str) -> bool:
        return os.path.lexists((self.folder / name).with_suffix(_SUFFIX))

    def _failure(self, record: DaemonRecord) -> Path:
        return self.pipes(record.device_uuid).with_suffix(_FAILED)

    def _path(self, device_uuid: str) -> Path:
        return self.pipes(device_uuid).with_suffix(_SUFFIX)


def _damaged(gpu_uuid: str, slot: InstanceKey | None, device_uuid: str) -> DaemonRecord:
    """The record of a daemon known only by its device; an uncut GPU then gets the driver's default compute mode."""
    return record_of(gpu_uuid, slot, device_uuid, ComputeMode.DEFAULT if slot is None else None)._replace(damaged=True)


def _decode(text: str) -> DaemonRecord:
    """Decode a record, ignoring fields of later releases. Raises ValueError, TypeError, KeyError or UsageError if invalid."""
    data: Mapping[str, Any] = json.loads(text)
    known = {name: data[name] for name in DaemonRecord._fields if name in data}
    record = DaemonRecord(**known)
    if any(type(value) is not type(like) for value, like in zip(record, _LIKE, strict=True)):
        raise TypeError("a field has the wrong type")
    if not record.gpu_uuid or not record.device_uuid:
        raise ValueError("no device is named")
    _ = record.slot, record.mode_before
    return record


_LIKE = DaemonRecord("", "")


def care_needed(db: sqlite3.Connection, known: DaemonRecordStore, now: float) -> bool:
    """Whether a daemon needs care; `now` is in seconds since the epoch. False while a plan is open."""
    found, damaged = known.look()
    if not (found or damaged) or records.open_plans(db):
        return False
    if damaged or any(each.untold for each in found):
        return True
    shared = shared_by_mps(register.allocations(db))
    return any(
        shared[each.key] and (each.changed or each.state is DaemonState.LOST)
        if each.key in shared
        else is_due(each, known, now)
        for each in found
    )


def is_due(record: DaemonRecord, known: DaemonRecordStore, now: float) -> bool:
    """Whether the daemon of an unshared device should end now: something is wrong with it, or it was idle for long.

    False shortly after a failure to end it.
    """
    if known.failed_lately(record, now):
        return False
    if record.state is not DaemonState.READY or record.suspect or not known.reachable(record):
        return True
    return now - known.idle_since(record) >= IDLE_SECONDS


SERVER_PROGRAM = "nvidia-cuda-mps-server"


def node_with_daemons(node: NodeState, known: DaemonRecordStore) -> NodeState:
    """The node with its daemons."""
    try:
        found = known.look()
    except LedgerUnavailable:
        # A look gets an answer; a decision reads the records too, and is refused.
        found = DaemonRecordList(damaged=frozenset(name_of(uuid) for gpu in node for uuid in shareable_devices(gpu)))
    if not found:
        return node
    return replace(node, gpus=tuple(with_daemons_of(gpu, found) for gpu in node.gpus))


def with_daemons_of(gpu: GpuState, found: DaemonRecordList) -> GpuState:
    """The GPU with its daemons; their servers do not count as processes that use it."""
    ours = found.on(gpu)
    if not ours:
        return gpu
    pids = {record.pid for record in ours if record.state in (DaemonState.READY, DaemonState.FAULT)}
    orphaned = any(record.state in (DaemonState.LOST, DaemonState.DAMAGED) for record in ours)

    def users(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
        return tuple(each for each in processes if not _is_server(each, pids, orphaned))

    return replace(gpu.with_processes(users), daemons=tuple(record.seen for record in ours))


def _is_server(process: GpuProcess, daemons: set[int], orphaned: bool) -> bool:
    """Whether one of the daemons started the process. The server of a dead daemon has another parent now."""
    if orphaned and process.name == SERVER_PROGRAM:
        return True
    from tranche.node.processes.processes import process_at  # slow to import, rarely needed

    found = process_at(process.pid)
    return found is not None and found.parent in daemons
