"""What is written down of each MPS daemon, beside its sockets: whose device it is, which process, and what to put back.

A record is written before anything of the machine is changed, and removed when all of it is put back. So whatever a process that
was killed has left is known by its record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tranche.core.grid import Placement
from tranche.core.profile import parse_profile
from tranche.core.state import ComputeMode, DaemonState, InstanceKey, MpsDaemon
from tranche.node.session import boot_id, process_lives

_SUFFIX = ".json"
_NAME_DIGITS = 12


class DaemonRecord(NamedTuple):
    """One daemon. `profile` is empty for a GPU that is not cut; `start` and `size` are the instance's, in memory slices.

    `mode` is the compute mode that the GPU had before, "" where it was not changed. `limit` in bytes. `pid` and `started` (in
    clock ticks since that boot) name the daemon's process once it is ready, `uid` its user. `fault` says why nobody more is let
    in; `wedged` that the reason lasts until the daemon ends. `suspect` says that a client was killed, which may have wedged it.
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
        if not self.ready:
            return DaemonState.STARTING
        if self.boot != boot_id() or not process_lives(self.pid, self.started):
            return DaemonState.LOST
        return DaemonState.FAULT if self.fault else DaemonState.READY

    @property
    def seen(self) -> MpsDaemon:
        """The daemon as a view of the machine shows it."""
        return MpsDaemon(self.slot, self.device_uuid, self.state, self.limit)


def record_of(gpu_uuid: str, slot: InstanceKey | None, device_uuid: str, mode: ComputeMode | None) -> DaemonRecord:
    """The record of a daemon that is about to be started; `mode` is what is to be put back when it has gone."""
    record = DaemonRecord(gpu_uuid, device_uuid, mode="" if mode is None else str(mode))
    if slot is None:
        return record
    return record._replace(profile=str(slot.profile), start=slot.placement.start, size=slot.placement.size)


class DaemonRecords:
    """The records in a folder, each a file named after its device."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pipes(self, device_uuid: str) -> Path:
        """The folder of the sockets of that device's daemon; a MIG device's UUID itself would be too long a name."""
        import hashlib  # loads OpenSSL, and only who changes a daemon needs it

        return self.folder / hashlib.sha256(device_uuid.encode()).hexdigest()[:_NAME_DIGITS]

    def all(self) -> tuple[DaemonRecord, ...]:
        """Every record that can be read, in the order of their devices' UUIDs."""
        return tuple(sorted(self._read(), key=lambda record: record.device_uuid))

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
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(record._asdict()))
        unfinished.replace(path)

    def touch(self, record: DaemonRecord) -> None:
        """Note that the device was given back just now."""
        with suppress(OSError):
            os.utime(self._path(record.device_uuid))

    def remove(self, record: DaemonRecord) -> None:
        """Forget a daemon of which nothing is left."""
        self._path(record.device_uuid).unlink(missing_ok=True)

    def _path(self, device_uuid: str) -> Path:
        return self.pipes(device_uuid).with_suffix(_SUFFIX)

    def _read(self) -> Iterator[DaemonRecord]:
        try:
            names = [name for name in os.listdir(self.folder) if name.endswith(_SUFFIX)]
        except OSError:
            return
        for name in names:
            # A record may go meanwhile, and one that is no record is nobody's.
            with suppress(OSError, ValueError, TypeError):
                yield DaemonRecord(**json.loads((self.folder / name).read_text()))
