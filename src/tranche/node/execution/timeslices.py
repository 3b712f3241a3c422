"""The lengths of time slices that Tranche has set, and the previous values.

A record is written before the driver is told, so after a kill the next process knows what to restore. The driver forgets a length
when it is unloaded, so a record counts for one boot of the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.errors import HardwareError, TrancheError, VerificationFailed
from tranche.core.sharing import EVERY_GPU, Timeslice
from tranche.core.state import GpuState, NodeState
from tranche.node.state.session import StateFolder, boot_id
from tranche.node.state.state_file import cannot_write, read_state_file, replace_state_file

if TYPE_CHECKING:
    from tranche.hardware.nvml import NvmlDriver

_SUFFIX: Final = ".json"
_PAUSE_SECONDS: Final = 60.0


class _TimesliceRecord(NamedTuple):
    """A GPU's lengths, each a length's word or "": the one `set` by Tranche, and the one `before`.

    `boot` is the boot of the machine when it was set. `tried` is when restoring it failed, in seconds since the epoch.
    """

    set: str = ""
    before: str = ""
    boot: str = ""
    tried: float = 0.0


class TimesliceStore:
    """The records of one machine, each a file named after its GPU."""

    def __init__(self, places: StateFolder, wanted: Callable[[], Mapping[str, Timeslice]] = dict) -> None:
        self._folder = places.timeslices
        self._wanted = wanted

    def on_node(self, node: NodeState) -> NodeState:
        """The node with its time slices: those set, and those that the administrator wants."""
        wanted = self._wanted()
        if not wanted and not os.path.isdir(self._folder):
            return node
        return replace(node, gpus=tuple(self._on_gpu(gpu, wanted) for gpu in node.gpus))

    def on_gpu(self, gpu: GpuState) -> GpuState:
        """The GPU with its time slices."""
        return self._on_gpu(gpu, self._wanted())

    def _on_gpu(self, gpu: GpuState, lengths: Mapping[str, Timeslice]) -> GpuState:
        record, wanted = self._read(gpu.uuid), lengths.get(gpu.uuid, lengths.get(EVERY_GPU))
        now = Timeslice(record.set) if record.set and record.boot == boot_id() else None
        return gpu if now is wanted is None else replace(gpu, timeslice=now, timeslice_wanted=wanted)

    def left(self, allocations: Iterable[Allocation], now: float) -> tuple[str, ...]:
        """The GPUs with a length set by Tranche and no share in turns, except those where restoring failed lately."""
        try:
            names = [name.removesuffix(_SUFFIX) for name in os.listdir(self._folder) if name.endswith(_SUFFIX)]
        except OSError:
            return ()
        records = {name: self._read(name) for name in names}
        late = {name for name, each in records.items() if each.set and not 0.0 <= now - each.tried < _PAUSE_SECONDS}
        turns = {
            grant.gpu_uuid
            for each in allocations
            for grant in each.grants
            if isinstance(grant, FractionalShare) and grant.in_turns
        }
        return tuple(sorted(late - turns))

    def set(self, gpu: GpuState, length: Timeslice, driver: NvmlDriver) -> None:
        """Let the driver use that length. Raises VerificationFailed when it does not show it."""
        if gpu.mig_enabled:
            raise HardwareError(f"{gpu.label} is in MIG mode, but a time slice can be set only with MIG mode off")
        record = self._read(gpu.uuid)
        there = record.set and record.boot == boot_id()
        before = record.before if there else str(driver.timeslice(gpu.uuid))
        self._write(gpu.uuid, record._replace(set=str(length), before=before, boot=boot_id(), tried=0.0))
        try:
            _tell(gpu, length, driver)
        except TrancheError:
            # A driver that refuses has changed nothing, and could not restore anything either.
            with suppress(TrancheError):
                if driver.timeslice(gpu.uuid) is Timeslice(before):
                    self._write(gpu.uuid, record if there else record._replace(set="", before="", boot=""))
            raise

    def put_back(self, gpu: GpuState, driver: NvmlDriver) -> None:
        """Let the driver use the previous length, unless it was changed since. Raises VerificationFailed when it does not."""
        record = self._read(gpu.uuid)
        if record.set and record.boot == boot_id() and driver.timeslice(gpu.uuid) is Timeslice(record.set):
            _tell(gpu, Timeslice(record.before), driver)
        self.forget(gpu.uuid)

    def forget(self, gpu_uuid: str) -> None:
        """Forget the length set on that GPU."""
        self._write(gpu_uuid, _TimesliceRecord())

    def note_failure(self, gpu_uuid: str, now: float) -> None:
        """Note that restoring the length failed, to retry it after a while."""
        with suppress(TrancheError):
            self._write(gpu_uuid, self._read(gpu_uuid)._replace(tried=now))

    def _read(self, name: str) -> _TimesliceRecord:
        """The record; an empty one when it is missing or unreadable."""
        try:
            record = _TimesliceRecord(**json.loads(read_state_file(self._path(name))))
            words = [word for word in (record.set, record.before) if word]
            return record if all(word in list(Timeslice) for word in words) else _TimesliceRecord()
        except (OSError, TrancheError, ValueError, TypeError):
            return _TimesliceRecord()

    def _write(self, name: str, record: _TimesliceRecord) -> None:
        path = self._path(name)
        if record != _TimesliceRecord():
            replace_state_file(path, json.dumps(record._asdict()))
            return
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(str(path), error) from error

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"


def _tell(gpu: GpuState, length: Timeslice, driver: NvmlDriver) -> None:
    driver.set_timeslice(gpu.uuid, length)
    now = driver.timeslice(gpu.uuid)
    if now is not length:
        raise VerificationFailed(f"{gpu.label}: the time slice was set to {length}, but is {now}")
