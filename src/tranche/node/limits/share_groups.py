"""Enforces a share's memory limits and the fence on its own control group, or finds that this driver enforces no limits.

Each such share has a group, and a note of it in the state folder for cleanup. The note is written before the group is made and
removed after it. If a process is killed, its note stays. The next command that decides removes the limits and the group, once the
share is over and the group is empty.

A driver release with limits may still refuse them, for example when its memory accounting is off. So the first look tries a limit
on a temporary control group. The first share tests whether the driver enforces the limit that it shows: a small program asks for
more than its limit, within the memory promised to the share. The result is remembered for this boot and this driver.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tranche.core.allocation import Allocation, FractionalShare, parts_by
from tranche.core.errors import FenceUnavailable, HardwareError, LedgerUnavailable, TrancheError
from tranche.core.quantity import MIB
from tranche.core.sharing import MachineSharing, Sharing
from tranche.core.state import DeviceVisibility, GpuState, NodeState
from tranche.hardware.process_stat import process_group
from tranche.node.state.session import StateFolder, boot_id
from tranche.node.state.state_file import read_state_file, replace_state_file
from tranche.node.store import chronicle
from tranche.node.store.ledger import Ledger

if TYPE_CHECKING:
    from tranche.hardware.device_filter import FenceFilter

_NAME: Final = "tranche-"


class ShareGroup(NamedTuple):
    """The group of one share, and the GPUs on which it has limits. If it is `fenced`, its processes can open no other devices.

    Its path is valid in the control group namespace `namespace`, and its boot of the machine is `boot`; unknown is "".
    """

    allocation_id: str
    folder: Path
    gpu_uuids: tuple[str, ...]
    namespace: str = ""
    boot: str = ""
    fenced: bool = False


class ShareGroupManager:
    """The groups of the shares of one machine."""

    def __init__(self, places: StateFolder) -> None:
        self._register = places.state_dir
        self._notes = places.share_groups

    @property
    def owner(self) -> str:
        """The register, as groups and device filters name it."""
        return os.path.realpath(self._register)

    def make(self, allocation: Allocation, rule: FenceFilter | None = None) -> ShareGroup | None:
        """Make an allocation's group with its limits and the `rule` of the fence, and verify them; None when it needs neither.

        Raises FenceUnavailable if the kernel does not enforce the rule.
        """
        parts = parts_by(Sharing.MEMORY_LIMITS, allocation.grants)
        if not parts and rule is None:
            return None
        from tranche.hardware.control_groups import group_namespace, make_group, mark_group, own_group

        if rule is not None:
            from tranche.hardware.device_filter import attach_filter
            from tranche.node.limits.fence import fenced_groups
        parent = own_group() if rule is None else fenced_groups()
        if parent is None:
            raise HardwareError("the driver's memory limits need cgroup v2, which is not available here")
        group = ShareGroup(
            allocation.id,
            parent / f"{_NAME}{allocation.id}",
            tuple(part.gpu_uuid for part in parts),
            group_namespace(),
            boot_id(),
            rule is not None,
        )
        self._note(group)
        try:
            make_group(group.folder)
            mark_group(group.folder, self.owner)
            if rule is not None:
                attach_filter(group.folder, rule, self.owner)
        except TrancheError as error:
            self.drop(group._replace(gpu_uuids=()))
            if rule is None or isinstance(error, FenceUnavailable):
                raise
            raise FenceUnavailable(error.message, hint=error.hint) from error
        if parts:
            self._limit(group, parts)
        return group

    def _limit(self, group: ShareGroup, parts: Sequence[FractionalShare]) -> None:
        from tranche.hardware.memory_limits import limit_memory, verify_limit

        limited: list[str] = []
        try:
            for part in parts:
                limit_memory(part.gpu_uuid, group.folder, soft=part.memory, hard=part.memory)
                limited.append(part.gpu_uuid)
                verify_limit(part.gpu_uuid, group.folder, soft=part.memory, hard=part.memory)
        except TrancheError as error:
            error.gpu_uuid = parts[min(len(limited), len(parts) - 1)].gpu_uuid
            begun = group._replace(gpu_uuids=tuple(limited))
            self._note(begun)
            self.drop(begun)
            raise

    def close(self, group: ShareGroup) -> None:
        """Leave the group the smallest limit there is, too small for any program; HardwareError if the driver refuses."""
        from tranche.hardware.memory_limits import limit_memory, verify_limit

        for gpu_uuid in group.gpu_uuids:
            limit_memory(gpu_uuid, group.folder, soft=0, hard=MIB)
            verify_limit(gpu_uuid, group.folder, soft=0, hard=MIB)

    def strays(self) -> tuple[Path, ...]:
        """The groups of this register's shares without a note: the note was lost with the state folder."""
        from tranche.hardware.control_groups import marked_groups

        found = marked_groups(self.owner)
        return tuple(each for each in found if not (self._notes / each.name.removeprefix(_NAME)).exists())

    def find_again(self, gpu_uuids: Collection[str]) -> None:
        """Rewrite the lost notes of groups, each with the GPUs on which it has limits."""
        from tranche.hardware.control_groups import group_namespace
        from tranche.hardware.device_filter import attached_filters
        from tranche.hardware.memory_limits import has_limit

        for folder in self.strays():
            limited = tuple(each for each in gpu_uuids if has_limit(each, folder))
            name = folder.name.removeprefix(_NAME)
            fenced = False
            with suppress(TrancheError):
                fenced = bool(attached_filters(folder, self.owner))
            self._note(ShareGroup(name, folder, limited, group_namespace(), boot_id(), fenced))

    def left(self, living: Collection[str]) -> tuple[ShareGroup, ...]:
        """The groups of allocations that are not in `living`."""
        return tuple(each for each in self._noted(living))

    def fenced(self) -> frozenset[str]:
        """The ids of the allocations with a fenced group."""
        return frozenset(each.allocation_id for each in self._noted(()) if each.fenced)

    def around(self, pid: int) -> Iterator[str]:
        """The ids of the allocations that have a group around the process, which no process leaves by itself."""
        with suppress(OSError):  # it has ended
            names = process_group(pid).split("/")
            yield from (name.removeprefix(_NAME) for name in names if name.startswith(_NAME))

    def _noted(self, without: Collection[str]) -> Iterator[ShareGroup]:
        try:
            names = os.listdir(self._notes)
        except OSError:
            return
        for name in sorted(set(names) - set(without)):
            # A note may disappear meanwhile. Other files are ignored, and so are notes that are being written.
            if "." in name:
                continue
            with suppress(OSError, ValueError, KeyError, TypeError):
                note = json.loads((self._notes / name).read_text())
                words = str(note.get("namespace", "")), str(note.get("boot", ""))
                yield ShareGroup(name, Path(note["group"]), tuple(note["gpus"]), *words, bool(note.get("fenced")))

    def drop(self, group: ShareGroup) -> bool:
        """Remove the limits and the group, then the note; returns whether all are gone.

        Group and note stay while something may run in the group, while the driver refuses to lift a limit on a GPU that answers,
        and while this process cannot tell whether the group exists.
        """
        from tranche.hardware.control_groups import populated, remove_group

        if not _ended(group) and (populated(group.folder) or not _lifted(group) or not remove_group(group.folder)):
            return False
        (self._notes / group.allocation_id).unlink(missing_ok=True)
        return True

    def _note(self, group: ShareGroup) -> None:
        note = {
            "group": str(group.folder),
            "gpus": list(group.gpu_uuids),
            "namespace": group.namespace,
            "boot": group.boot,
            "fenced": group.fenced,
        }
        replace_state_file(self._notes / group.allocation_id, json.dumps(note))


def _ended(group: ShareGroup) -> bool:
    """Whether the group is gone: it ended with the boot, or was removed."""
    from tranche.hardware.control_groups import group_namespace, is_gone

    if group.boot not in ("", boot_id()) and boot_id():
        return True
    if group.namespace not in ("", group_namespace()):
        return False
    return is_gone(group.folder, same_namespace=bool(group.namespace))


def _lifted(group: ShareGroup) -> bool:
    """Lift as many of the group's limits as possible; returns whether none is left."""
    from tranche.hardware.memory_limits import lift_limit

    left = False
    for gpu_uuid in group.gpu_uuids:
        try:
            lift_limit(gpu_uuid, group.folder)
        except TrancheError:
            left = True
    return not left


CANARY = "TRANCHE_LIMIT_CANARY"
"""Set this variable to `off` to keep Tranche's test program from asking for more than its limit."""

_CANARY_CONTEXT = 544 * MIB
"""The context of the program that tests a limit: 527 MiB on an H200, the largest GPU tried."""
_AGAIN_SECONDS = 600.0
_NOT_KEPT = "the driver reports a limit but lets a program exceed it"


class _LimitTrial(NamedTuple):
    """The known results. `refused` says why limits are not offered, "" when they are; `kept`, that a program was refused more.

    `until` is when to retry a refused limit, in seconds since the epoch; 0 means never.
    """

    boot: str
    driver: str
    refused: str = ""
    until: float = 0.0
    kept: bool = False


class LimitTrialRunner:
    """The trials of one machine. `environment` locates the driver; `clock` is in seconds since the epoch."""

    def __init__(
        self, places: StateFolder, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = places.limit_trial
        self._environment = environment
        self._clock = clock

    def on_node(self, node: NodeState, *, remember: bool) -> NodeState:
        """The node with the trials' results for limits that its driver should have.

        Makes a due trial, unless only parts of GPUs are visible.
        """
        if Sharing.MEMORY_LIMITS not in node.sharing.offered:
            return node
        trial = self._read(node.driver_version)
        if trial is None and node.scope is not DeviceVisibility.PARTS:
            trial = self._try(node)
            if trial is not None and remember:
                with suppress(TrancheError):  # the next look tries it again
                    self._write(trial)
        return node if trial is None else replace(node, sharing=_as_tried(node.sharing, trial))

    def refuse(self, driver: str, error: TrancheError) -> str:
        """Remember that the driver refused a share's limit; returns why limits are not offered for a while, in words.

        Returns "" when the cause is one GPU that does not answer.
        """
        from tranche.hardware.memory_limits import gpu_answers, refusal_of

        if error.gpu_uuid and not gpu_answers(error.gpu_uuid):
            return ""
        trial = _LimitTrial(boot_id(), driver, refusal_of(error), self._clock() + _AGAIN_SECONDS)
        self._write(trial)
        return trial.refused

    def prove(self, driver: str, part: FractionalShare) -> str:
        """Run a program that asks for more than its limit, once; returns why limits are no longer offered, "" when they are.

        The program has no more of the GPU than the part, which is still unused.
        """
        known = self._read(driver)
        if (known is not None and known.kept) or self._environment.get(CANARY) == "off":
            return ""
        from tranche.hardware.memory_limits import keeps_limits

        kept = keeps_limits(part.gpu_uuid, part.memory, _CANARY_CONTEXT, self._environment)
        if kept is None:
            return ""
        trial = _LimitTrial(boot_id(), driver, "" if kept else _NOT_KEPT, kept=kept)
        self._write(trial)
        return trial.refused

    def _try(self, node: NodeState) -> _LimitTrial | None:
        """None when no GPU can show it: a GPU in MIG mode has no limits."""
        from tranche.hardware.memory_limits import why_refused

        gpu = next((each for each in node if _can_tell(each)), None)
        why = None if gpu is None else why_refused(gpu.uuid)
        if why is None:
            return None
        return _LimitTrial(boot_id(), node.driver_version, why, self._clock() + _AGAIN_SECONDS if why else 0.0)

    def _read(self, driver: str) -> _LimitTrial | None:
        """The result for this driver since the machine started; None when a trial is due."""
        try:
            trial = _LimitTrial(**json.loads(read_state_file(self._file)))
            fresh = (trial.boot, trial.driver) == (boot_id(), driver)
            return trial if fresh and (not trial.until or self._clock() < trial.until) else None
        except (OSError, TrancheError, ValueError, TypeError):
            return None

    def _write(self, trial: _LimitTrial) -> None:
        replace_state_file(self._file, json.dumps(trial._asdict()))


def _as_tried(means: MachineSharing, trial: _LimitTrial) -> MachineSharing:
    if not trial.refused:
        return means
    refused = {**means.refused, Sharing.MEMORY_LIMITS: trial.refused}
    return replace(means, offered=means.offered - {Sharing.MEMORY_LIMITS}, refused=refused)


def _can_tell(gpu: GpuState) -> bool:
    return not (gpu.lost or gpu.mig_enabled or gpu.mode_pending)


class LimitsRefused(Exception):
    """The driver enforces no memory limits. This is remembered, and nothing is shared by them from now on."""


def share_group(
    allocation: Allocation,
    driver: str,
    groups: ShareGroupManager,
    trials: LimitTrialRunner,
    ledger: Ledger,
    clock: Callable[[], float],
    rule: FenceFilter | None = None,
) -> ShareGroup | None:
    """The group with the allocation's limits, which were tested if possible, and the fence's `rule`; None when it needs neither.

    Raises LimitsRefused when that driver version enforces none, FenceUnavailable when the kernel does not enforce the rule, and
    another error when a GPU does not answer.
    """
    try:
        group = groups.make(allocation, rule)
    except (LedgerUnavailable, FenceUnavailable):
        raise
    except TrancheError as error:
        why = trials.refuse(driver, error)
        if not why:
            raise
    else:
        if group is None or not group.gpu_uuids:
            return group
        why = trials.prove(driver, parts_by(Sharing.MEMORY_LIMITS, allocation.grants)[0])
        if not why:
            return group
        groups.drop(group)
    with ledger.write() as db:
        chronicle.sharing_refused(db, clock(), Sharing.MEMORY_LIMITS, why)
    raise LimitsRefused
