"""What a program needs in its environment to run in its part of a shared device, and within its limits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.devices import device_uuid
from tranche.core.errors import MpsUserRefused, SharingUnavailable, VerificationFailed
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, GpuState
from tranche.hardware.mps_environment import client_environment
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore
from tranche.node.processes.adoption import MEMORY_LIMIT, PARTS, part_word


def part_environment(
    allocation: Allocation, gpus: Mapping[str, GpuState], records: DaemonRecordStore, uid: int | None = None
) -> dict[str, str]:
    """The variables for the parts of an allocation, none where it has none; `gpus` are those of its grants, as they are now.

    VerificationFailed when the daemon that keeps the limits does not serve, or the GPU is in MIG mode; MpsUserRefused when the
    daemon serves another user than `uid`, this process's by default; SharingUnavailable when one program would need two daemons.
    """
    parts = [grant for grant in allocation.grants if isinstance(grant, FractionalShare)]
    for part in parts:
        _refuse_cut(part, gpus[part.gpu_uuid])
    words = [part_word(device_uuid(part, gpus[part.gpu_uuid]), part) for part in parts]
    found = {PARTS: ",".join(words)} if parts else {}
    if any(part.sharing is not Sharing.TIME_SLICING for part in parts):
        found[MEMORY_LIMIT] = str(min(part.memory for part in parts))
    by_mps = [part for part in parts if part.sharing is Sharing.MPS]
    return {**found, **_mps(by_mps, gpus, records, os.geteuid() if uid is None else uid)} if by_mps else found


def _refuse_cut(part: FractionalShare, gpu: GpuState) -> None:
    """VerificationFailed when the part is of a GPU that is not cut, and the GPU is in MIG mode: no limit would hold."""
    if part.slot is None and gpu.mig_enabled:
        raise VerificationFailed(
            f"{gpu.label}: the share is a part of the uncut GPU, and somebody has turned MIG mode on",
            hint="run it again when nobody shares the GPU any more",
        )


def _mps(
    parts: Sequence[FractionalShare], gpus: Mapping[str, GpuState], records: DaemonRecordStore, uid: int
) -> Mapping[str, str]:
    (part, *others) = parts
    if others:
        raise SharingUnavailable(
            f"a program can use one MPS daemon, and parts of {len(parts)} devices have one each",
            hint="ask for one share, or for whole GPUs: --gpus",
        )
    record = _serving(part, gpus[part.gpu_uuid], records)
    if record.uid != uid and not record.every_user:
        raise MpsUserRefused(
            f"the MPS daemon of {record.device_uuid} serves user {record.uid}: a program of user {uid} would wait without end",
            hint="run the command as that user, or when nobody shares the device any more",
        )
    return client_environment(str(records.pipes(record.device_uuid)), part.memory, part.compute)


def _serving(part: FractionalShare, gpu: GpuState, records: DaemonRecordStore) -> DaemonRecord:
    """The record of the daemon that serves the part's device now, with a limit that holds for the part."""
    daemon = gpu.daemon_of(part.slot)
    record = records.find(part.gpu_uuid, part.slot)
    if record is None or daemon is None or daemon.state is not DaemonState.READY or daemon.limit < part.memory:
        state = "is not there" if daemon is None else f"is in state '{daemon.state}'"
        raise VerificationFailed(
            f"{gpu.label}: the MPS daemon that should limit this share {state}, so the command is not started",
            hint="run it again: a daemon is started anew when nobody shares the device any more",
        )
    return record
