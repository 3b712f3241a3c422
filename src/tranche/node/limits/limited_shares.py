"""Puts a share's memory limits in force, or finds that this driver keeps none.

A driver of a release that has limits may still refuse them, as when its memory accounting is off. So the first look tries one on
a control group that is thrown away. The first share tries whether the driver also keeps what it shows: a small program asks for
more, within the memory that the share was promised. What that has shown is remembered for this start of the machine and this
driver.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from tranche.core.allocation import Allocation, FractionalShare
from tranche.core.errors import TrancheError
from tranche.core.sharing import CONTEXT_MEMORY, MachineSharing, Sharing
from tranche.core.state import GpuState, NodeState
from tranche.node.limits.memory_groups import MemoryGroup, MemoryGroupManager
from tranche.node.state.session import StateFolder, boot_id
from tranche.node.state.state_file import cannot_write, read_state_file
from tranche.node.store import chronicle
from tranche.node.store.ledger import Ledger

CANARY = "TRANCHE_LIMIT_CANARY"
"""The variable that says `off` where no program may ask for more than its limit."""

_AGAIN_SECONDS = 600.0
_NOT_KEPT = "the driver shows a limit and lets a program have more"


class _LimitTrial(NamedTuple):
    """What is known. `refused` says why limits are not offered, "" when they are; `kept` that a program was refused more.

    `until` is when a refusal is tried again, in seconds since the epoch; 0 for never.
    """

    boot: str
    driver: str
    refused: str = ""
    until: float = 0.0
    kept: bool = False


class LimitTrialRunner:
    """The trials of one machine. `environment` leads to the driver, `clock` is in seconds since the epoch."""

    def __init__(
        self, places: StateFolder, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = places.limit_trial
        self._environment = environment
        self._clock = clock

    def on_node(self, node: NodeState, *, may_try: bool, remember: bool = True) -> NodeState:
        """The node, with what trials have shown of limits that its driver should have; one that is due is made by who may try."""
        if Sharing.MEMORY_LIMITS not in node.sharing.offered:
            return node
        trial = self._read(node.driver_version)
        if trial is None and may_try:
            trial = self._try(node)
            if trial is not None and remember:
                with suppress(TrancheError):  # the next look tries it again
                    self._write(trial)
        return node if trial is None else replace(node, sharing=_as_tried(node.sharing, trial))

    def refuse(self, driver: str, error: TrancheError) -> str:
        """Remember that the driver refused the limit of a share; why limits are not offered for a while, in words.

        "" when it is the trouble of one GPU, which does not answer.
        """
        from tranche.hardware.limit_trial import refusal_of
        from tranche.hardware.memory_limits import gpu_answers

        if error.gpu_uuid and not gpu_answers(error.gpu_uuid):
            return ""
        trial = _LimitTrial(boot_id(), driver, refusal_of(error), self._clock() + _AGAIN_SECONDS)
        self._write(trial)
        return trial.refused

    def prove(self, driver: str, part: FractionalShare) -> str:
        """Have a program ask for more than its limit, once; why limits are not offered from now on, "" when they are.

        It has no more of the GPU than the part, of which nobody uses anything yet.
        """
        known = self._read(driver)
        if (known is not None and known.kept) or self._environment.get(CANARY) == "off":
            return ""
        from tranche.hardware.limit_trial import keeps_limits

        kept = keeps_limits(part.gpu_uuid, part.memory, CONTEXT_MEMORY[Sharing.MEMORY_LIMITS], self._environment)
        if kept is None:
            return ""
        trial = _LimitTrial(boot_id(), driver, "" if kept else _NOT_KEPT, kept=kept)
        self._write(trial)
        return trial.refused

    def _try(self, node: NodeState) -> _LimitTrial | None:
        """None where no GPU can tell: a GPU in MIG mode has no limits."""
        from tranche.hardware.limit_trial import why_refused

        gpu = next((each for each in node if _can_tell(each)), None)
        why = None if gpu is None else why_refused(gpu.uuid)
        if why is None:
            return None
        return _LimitTrial(boot_id(), node.driver_version, why, self._clock() + _AGAIN_SECONDS if why else 0.0)

    def _read(self, driver: str) -> _LimitTrial | None:
        """What is known of this driver since the machine started; None when it is to be tried."""
        try:
            trial = _LimitTrial(**json.loads(read_state_file(self._file)))
            fresh = (trial.boot, trial.driver) == (boot_id(), driver)
            return trial if fresh and (not trial.until or self._clock() < trial.until) else None
        except (OSError, TrancheError, ValueError, TypeError):
            return None

    def _write(self, trial: _LimitTrial) -> None:
        unfinished = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            self._file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(trial._asdict()))
            unfinished.replace(self._file)
        except OSError as error:
            raise cannot_write(str(self._file), error) from error


def _as_tried(means: MachineSharing, trial: _LimitTrial) -> MachineSharing:
    if not trial.refused:
        return means
    refused = {**means.refused, Sharing.MEMORY_LIMITS: trial.refused}
    return replace(means, offered=means.offered - {Sharing.MEMORY_LIMITS}, refused=refused)


def _can_tell(gpu: GpuState) -> bool:
    return not (gpu.lost or gpu.mig_enabled or gpu.mode_pending)


class LimitsRefused(Exception):
    """The driver keeps no memory limits. That is remembered, and nothing is shared by them from now on."""


class MemoryLimitManager:
    """The shares of one machine whose memory the driver limits. `clock` is seconds since the epoch."""

    def __init__(
        self, groups: MemoryGroupManager, trials: LimitTrialRunner, ledger: Ledger, clock: Callable[[], float]
    ) -> None:
        self._groups = groups
        self._trials = trials
        self._ledger = ledger
        self._clock = clock

    def limit(self, allocation: Allocation, driver: str) -> MemoryGroup | None:
        """The group with the allocation's limits, kept as far as that could be tried; None when it has no part that needs one.

        LimitsRefused when the driver of that version keeps none; another error when a GPU does not answer.
        """
        try:
            group = self._groups.make(allocation)
        except TrancheError as error:
            why = self._trials.refuse(driver, error)
            if not why:
                raise
        else:
            if group is None:
                return None
            why = self._trials.prove(driver, _limited_part(allocation))
            if not why:
                return group
            self._groups.drop(group)
        with self._ledger.write() as db:
            chronicle.sharing_refused(db, self._clock(), Sharing.MEMORY_LIMITS, why)
        raise LimitsRefused


def _limited_part(allocation: Allocation) -> FractionalShare:
    return next(
        each
        for each in allocation.grants
        if isinstance(each, FractionalShare) and each.sharing is Sharing.MEMORY_LIMITS
    )
