"""What is written down of each MPS daemon, beside its sockets: whose device it is, which process, and what to put back.

A record is written before anything of the machine is changed, and removed when all of it is put back. So whatever a process that
was killed has left is known by its record.

Only a record that is not there says that there is no daemon. One that cannot be read stands for a daemon of which nothing is
known but its device, by the name of the file: it is unavailable, and ended by its folder.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tranche.core.allocation import shareable_devices
from tranche.core.errors import LedgerUnavailable, TrancheError
from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.state import (
    ComputeMode,
    DaemonState,
    GpuInstance,
    GpuProcess,
    GpuState,
    InstanceKey,
    MpsDaemon,
    NodeState,
)
from tranche.node.state.session import boot_id, children_pids, process_lives, process_stopped

_SUFFIX = ".json"
_SOCKET = "control"
_NAME_DIGITS = 12


class DaemonRecord(NamedTuple):
    """One daemon. `profile` is empty for a GPU that is not cut; `start` and `size` are the instance's, in memory slices.

    `mode` is the compute mode that the GPU had before, "" where it was not changed. `limit` in bytes. `pid` and `started` (in
    clock ticks since that boot) name the daemon's process once it is ready, `uid` its user, whose programs alone it serves unless
    it serves `every_user`. `limits` is what it said of its limits when they were set, `changed` that it said something else
    later; `raising` is the limit in bytes that it is about to be told, 0 when nobody is at it. `fault` says why nobody more is
    let in; `wedged` that the reason lasts until the daemon ends; `told` the reason that an event gave last. `suspect` says that a
    client was killed, which may have wedged it. `damaged`: the record cannot be read, and no more than the device is known.
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
        """The slot of the device's instance; None for a GPU that is not cut."""
        if not self.profile:
            return None
        return InstanceKey(self.gpu_uuid, parse_profile(self.profile), Placement(self.start, self.size))

    @property
    def key(self) -> tuple[str, InstanceKey | None]:
        """The device by its GPU's UUID and the slot of its instance."""
        return self.gpu_uuid, self.slot

    @property
    def mode_before(self) -> ComputeMode | None:
        """The compute mode to be put back; None where none was changed."""
        return ComputeMode(self.mode) if self.mode else None

    @property
    def state(self) -> DaemonState:
        """What can be said of the daemon without asking it."""
        if self.damaged:
            return DaemonState.DAMAGED
        if not self.ready:
            return DaemonState.STARTING
        if self.boot != boot_id() or not process_lives(self.pid, self.started):
            return DaemonState.LOST
        return DaemonState.FAULT if self.why else DaemonState.READY

    @property
    def why(self) -> str:
        """Why a daemon that lives lets nobody in, in words; "" where nothing is known."""
        return self.fault or self.halted

    @property
    def halted(self) -> str:
        """That the daemon or a server of it is stopped, in words: whoever comes would wait until it is continued."""
        halted = self.halted_pid
        if not halted:
            return ""
        return f"its process {halted} is stopped" if halted == self.pid else f"its server, process {halted}, is stopped"

    @property
    def halted_pid(self) -> int:
        """The process that is stopped, the daemon or a server of it; 0 when none is."""
        return next(filter(process_stopped, (self.pid, *children_pids(self.pid))), 0)

    @property
    def untold(self) -> bool:
        """Whether no event gave the present reason yet, or none said that it has gone."""
        return self.state in (DaemonState.READY, DaemonState.FAULT) and self.why != self.told

    @property
    def seen(self) -> MpsDaemon:
        """The daemon as a view of the machine shows it."""
        state, every_user = self.state, self.every_user or not self.ready
        why = self.why if state is DaemonState.FAULT else ""
        return MpsDaemon(self.slot, self.device_uuid, state, self.limit, every_user, why, self.changed)


def record_of(gpu_uuid: str, slot: InstanceKey | None, device_uuid: str, mode: ComputeMode | None) -> DaemonRecord:
    """The record of a daemon that is about to be started; `mode` is what is to be put back when it has gone."""
    record = DaemonRecord(gpu_uuid, device_uuid, mode="" if mode is None else str(mode))
    if slot is None:
        return record
    return record._replace(profile=str(slot.profile), start=slot.placement.start, size=slot.placement.size)


class DaemonRecordList(NamedTuple):
    """What a folder of records holds; `damaged` are the names of those that cannot be read, without their endings."""

    records: tuple[DaemonRecord, ...] = ()
    damaged: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.records or self.damaged)

    def on(self, gpu: GpuState) -> tuple[DaemonRecord, ...]:
        """The records of the daemons on that GPU, also of those of which only the device is known."""
        ours = tuple(record for record in self.records if record.gpu_uuid == gpu.uuid)
        if not self.damaged:
            return ours
        devices = shareable_devices(gpu).items()
        return ours + tuple(_damaged(gpu.uuid, slot, uuid) for uuid, slot in devices if name_of(uuid) in self.damaged)

    def unclaimed(self, gpus: Iterable[GpuState]) -> frozenset[str]:
        """The names of damaged records of devices that none of those GPUs has."""
        return (
            self.damaged - {name_of(uuid) for gpu in gpus for uuid in shareable_devices(gpu)}
            if self.damaged
            else self.damaged
        )


def name_of(device_uuid: str) -> str:
    """The name of the files of that device's daemon; a MIG device's UUID itself would be too long for the name of a socket."""
    import hashlib  # loads OpenSSL, and only who changes a daemon needs it

    return hashlib.sha256(device_uuid.encode()).hexdigest()[:_NAME_DIGITS]


class DaemonRecordStore:
    """The records in a folder, each a file named after its device."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pipes(self, device_uuid: str) -> Path:
        """The folder of the sockets of that device's daemon."""
        return self.folder / name_of(device_uuid)

    def reachable(self, record: DaemonRecord) -> bool:
        """Whether the daemon's socket is where clients look for it: without one they run without MPS, and are not told.

        Only what is known to be gone is out of reach: not a socket in a folder that this user may not look into.
        """
        try:
            return (self.pipes(record.device_uuid) / _SOCKET).is_socket()
        except OSError:
            return True

    @property
    def writable(self) -> bool:
        """Whether this user may write records: nobody else judges a daemon."""
        return os.access(self.folder, os.W_OK | os.X_OK)

    def look(self) -> DaemonRecordList:
        """Everything that is there; LedgerUnavailable when the folder cannot be looked at."""
        try:
            names = [name for name in os.listdir(self.folder) if name.endswith(_SUFFIX)]
        except FileNotFoundError:
            return DaemonRecordList()
        except OSError as error:
            raise LedgerUnavailable(
                f"cannot read what is known of MPS daemons in {self.folder}: {error.strerror}",
                hint="nothing is decided before it can be read: see who may read the folder, and the disk",
            ) from error
        found, damaged = [], set()
        for name in names:
            try:
                found.append(_decode((self.folder / name).read_text()))
            except FileNotFoundError:
                pass  # it went meanwhile
            except (OSError, ValueError, TypeError, KeyError, RecursionError, TrancheError):
                damaged.add(name.removesuffix(_SUFFIX))
        return DaemonRecordList(tuple(sorted(found, key=lambda record: record.device_uuid)), frozenset(damaged))

    def without_record(self) -> frozenset[str]:
        """The names of the folders of sockets beside which no record is, though it is written before them and removed after."""
        with suppress(OSError):
            names = [name for name in os.listdir(self.folder) if len(name) == _NAME_DIGITS and name.isalnum()]
            return frozenset(name for name in names if not self._written(name) and (self.folder / name).is_dir())
        return frozenset()

    def all(self) -> tuple[DaemonRecord, ...]:
        """Every record that can be read, in the order of their devices' UUIDs."""
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
        """Write a record in the place of an older one, whole or not at all."""
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        path = self._path(record.device_uuid)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        with unfinished.open("w") as file:
            json.dump(record._asdict(), file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)

    def touch(self, record: DaemonRecord) -> None:
        """Note that the device was given back just now."""
        with suppress(OSError):
            os.utime(self._path(record.device_uuid))

    def expire(self) -> None:
        """Have every daemon that nobody needs end with the next decision, however short it has been idle."""
        for record in self.all():
            with suppress(OSError):
                os.utime(self._path(record.device_uuid), (0, 0))

    def remove(self, record: DaemonRecord) -> None:
        """Forget a daemon of which nothing is left."""
        self._path(record.device_uuid).unlink(missing_ok=True)

    def write_damaged(self, name: str) -> None:
        """Note a daemon of which no more is known than the name of its folder."""
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        (self.folder / name).with_suffix(_SUFFIX).write_text("{}")

    def remove_damaged(self, name: str) -> None:
        """Forget a daemon of which nothing is left and never more was known than the name of its record."""
        (self.folder / name).with_suffix(_SUFFIX).unlink(missing_ok=True)

    def _written(self, name: str) -> bool:
        return os.path.lexists((self.folder / name).with_suffix(_SUFFIX))

    def _path(self, device_uuid: str) -> Path:
        return self.pipes(device_uuid).with_suffix(_SUFFIX)


def _damaged(gpu_uuid: str, slot: InstanceKey | None, device_uuid: str) -> DaemonRecord:
    """The record of a daemon of which only the device is known; a GPU that is not cut then goes to the driver's own mode."""
    return record_of(gpu_uuid, slot, device_uuid, ComputeMode.DEFAULT if slot is None else None)._replace(damaged=True)


def _decode(text: str) -> DaemonRecord:
    """The record; ValueError, TypeError, KeyError or UsageError when it is none. Fields of later releases are passed over."""
    data: Mapping[str, Any] = json.loads(text)
    known = {name: data[name] for name in DaemonRecord._fields if name in data}
    record = DaemonRecord(**known)
    if any(type(value) is not type(like) for value, like in zip(record, _LIKE, strict=True)):
        raise TypeError("a field has a value of another kind")
    if not record.gpu_uuid or not record.device_uuid:
        raise ValueError("no device is named")
    _ = record.slot, record.mode_before
    return record


_LIKE = DaemonRecord("", "")


SERVER_PROGRAM = "nvidia-cuda-mps-server"


def node_with_daemons(node: NodeState, known: DaemonRecordStore) -> NodeState:
    """The node with its daemons."""
    try:
        found = known.look()
    except LedgerUnavailable:
        # Whoever only looks gets an answer; whoever decides asks the records too, and is refused.
        found = DaemonRecordList(damaged=frozenset(name_of(uuid) for gpu in node for uuid in shareable_devices(gpu)))
    if not found:
        return node
    return replace(node, gpus=tuple(with_daemons_of(gpu, found) for gpu in node.gpus))


def with_daemons_of(gpu: GpuState, found: DaemonRecordList) -> GpuState:
    """The GPU with those of the daemons that are on it; their servers do not count among the processes that use it."""
    ours = found.on(gpu)
    if not ours:
        return gpu
    pids = {record.pid for record in ours if record.state in (DaemonState.READY, DaemonState.FAULT)}
    orphaned = any(record.state in (DaemonState.LOST, DaemonState.DAMAGED) for record in ours)

    def users(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
        return tuple(each for each in processes if not _is_server(each, pids, orphaned))

    return replace(
        gpu,
        daemons=tuple(record.seen for record in ours),
        processes=users(gpu.processes),
        instances=tuple(_used_by(instance, users) for instance in gpu.instances),
    )


def _used_by(instance: GpuInstance, users: Callable[[tuple[GpuProcess, ...]], tuple[GpuProcess, ...]]) -> GpuInstance:
    if not instance.has_processes:
        return instance
    inside = tuple(replace(each, processes=users(each.processes)) for each in instance.compute_instances)
    return replace(instance, compute_instances=inside, stray_processes=users(instance.stray_processes))


def _is_server(process: GpuProcess, daemons: set[int], orphaned: bool) -> bool:
    """Whether one of the daemons has started the process; the server of one that has died has another parent now."""
    if orphaned and process.name == SERVER_PROGRAM:
        return True
    from tranche.node.processes.processes import process_at  # slow to import, and seldom needed

    found = process_at(process.pid)
    return found is not None and found.parent in daemons
