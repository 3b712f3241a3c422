"""Runs a child process in its share: environment, signals, exit code.

The child inherits the allocation's lock, so the share is kept as long as the child lives, even if this process is killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tranche.core.allocation import Allocation, FractionalShare, device_uuid
from tranche.core.errors import MpsUserRefused, SharingUnavailable, VerificationFailed
from tranche.core.sharing import MEMORY_LIMIT, Sharing
from tranche.core.state import DaemonState, GpuState
from tranche.core.wire import request_to_dict
from tranche.hardware.mps_control import client_environment
from tranche.local.child import (
    PLAIN,
    Launch,
    OrphanTracker,
    command_text,
    find_command,
    prepare_inheritance,
    reporting_not_executable,
    run_child,
)
from tranche.node.held import HeldAllocation
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore
from tranche.node.processes.processes import KEY, MARK, REGISTER, Process
from tranche.node.recovery.adoption import PARTS, REQUEST, part_word
from tranche.node.state.session import StateFolder


def part_environment(
    allocation: Allocation, gpus: Mapping[str, GpuState], records: DaemonRecordStore, uid: int | None = None
) -> dict[str, str]:
    """The variables for an allocation's parts, none without parts; `gpus` are those of its grants, as they are now.

    VerificationFailed if the daemon that keeps the limits does not serve, or the GPU is in MIG mode; MpsUserRefused if the daemon
    serves another user than `uid`, by default this process's; SharingUnavailable if one program would need two daemons.
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
    """VerificationFailed if the part is of an uncut GPU that is now in MIG mode: no limit would hold."""
    if part.slot is None and gpu.mig_enabled:
        raise VerificationFailed(
            f"{gpu.label}: the share is a part of the whole GPU, but MIG mode is now on",
            hint="run the command again after all shares of the GPU have ended",
        )


def _mps(
    parts: Sequence[FractionalShare], gpus: Mapping[str, GpuState], records: DaemonRecordStore, uid: int
) -> Mapping[str, str]:
    (part, *others) = parts
    if others:
        raise SharingUnavailable(
            f"a program can use only one MPS daemon, but each of the {len(parts)} devices has its own",
            hint="ask for one share, or for whole GPUs: --gpus",
        )
    record = _serving(part, gpus[part.gpu_uuid], records)
    if record.uid != uid and not record.every_user:
        raise MpsUserRefused(
            f"the MPS daemon of {record.device_uuid} serves user {record.uid}: user {uid}'s program would wait forever",
            hint="run the command as that user, or wait until all shares of the device have ended",
        )
    return client_environment(str(records.pipes(record.device_uuid)), part.memory, part.compute)


def _serving(part: FractionalShare, gpu: GpuState, records: DaemonRecordStore) -> DaemonRecord:
    """The record of the daemon that serves the part's device now, with a limit that holds for the part."""
    daemon = gpu.daemon_of(part.slot)
    record = records.find(part.gpu_uuid, part.slot)
    if record is None or daemon is None or daemon.state is not DaemonState.READY or daemon.limit < part.memory:
        state = "is not running" if daemon is None else f"is in state '{daemon.state}'"
        raise VerificationFailed(
            f"{gpu.label}: the MPS daemon that should limit this share {state}, so Tranche did not start the command",
            hint="run the command again after all shares of the device have ended: Tranche then starts a new daemon",
        )
    return record


VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that names the devices that CUDA offers to a program."""


def share_environment(
    held: HeldAllocation, observe: Callable[[str], GpuState], places: StateFolder, uid: int | None = None
) -> dict[str, str]:
    """The variables that confine a CUDA program of user `uid` to the allocation's grants and keep it within their limits.

    They also name the share and the folder of its register, so that a lost register can be rebuilt. VerificationFailed if a
    granted instance is not on its GPU, or no daemon keeps the limits of a part.
    """
    devices: list[str] = []
    gpus: dict[str, GpuState] = {}
    for grant in held.allocation.grants:
        gpus[grant.gpu_uuid] = gpu = observe(grant.gpu_uuid)
        uuid = device_uuid(grant, gpu)
        if not uuid:
            missing = "device" if grant.slot is None else f"{grant.slot.profile} at {grant.slot.placement}"
            raise VerificationFailed(
                f"{gpu.label}: the granted {missing} does not exist",
                hint="another tool partitioned the GPU at the same time; run the command again",
            )
        devices.append(uuid)
    joined = ",".join(devices)
    return {
        VISIBLE: joined,
        "NVIDIA_VISIBLE_DEVICES": joined,
        MARK: held.allocation.id,
        KEY: held.key,
        REGISTER: str(places.state_dir.resolve()),
        REQUEST: json.dumps(request_to_dict(held.allocation.request)),
        **part_environment(held.allocation, gpus, DaemonRecordStore(places.mps), uid),
    }


class Workload(Protocol):
    """The command that a share is for. Its launcher, the process that starts it, is this process or a client of the service.

    `pid` and `uid` are the launcher's, and `text` is the command for people.
    """

    pid: int
    uid: int
    text: str

    def note_children(self) -> None:
        """Note the launcher's children before the command starts."""
        ...

    def orphans(self) -> tuple[Process, ...]:
        """The launcher's living children of later, oldest first: what the command left."""
        ...

    def run(
        self,
        held: HeldAllocation,
        variables: Mapping[str, str],
        started: Callable[[int], None],
        starting: Callable[[], None],
    ) -> int:
        """Run the command to its end with these variables added, and return its exit code, 128 + N if signal N ended it.

        The command inherits the share's lock, and is in the share's control group from its first instruction on. `started`
        receives its pid. `starting` is called right before the command starts; it does not start if that raises.
        """
        ...


class OwnWorkload:
    """A child of this process. It receives the signals that reach this process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], launch: Launch = PLAIN) -> None:
        """CommandNotFound if there is no such command."""
        self._path = find_command(command[0], environment)
        self._command, self._environment, self._launch = command, environment, launch
        self.pid, self.uid, self.text = os.getpid(), os.geteuid(), launch.text or command_text(command)
        self._tracker: OrphanTracker | None = None

    def note_children(self) -> None:
        """Note the children that this process has now."""
        self._tracker = OrphanTracker()

    def orphans(self) -> tuple[Process, ...]:
        """The living children that this process did not have then."""
        return self._tracker.living() if self._tracker is not None else ()

    def run(
        self,
        held: HeldAllocation,
        variables: Mapping[str, str],
        started: Callable[[int], None],
        starting: Callable[[], None],
    ) -> int:
        """Run it as a child. CommandNotFound if the file cannot be executed."""
        prepare_inheritance(held.lock.descriptor)
        within = None
        if held.group is not None:
            from tranche.hardware.control_groups import inside  # seldom needed

            within = inside(held.group.folder)
        environment = {**self._environment, **variables}

        def about_to_start() -> None:
            starting()
            self._launch.starting(variables)

        with reporting_not_executable(self._command):
            return run_child(self._path, self._command, environment, started, within, about_to_start)
