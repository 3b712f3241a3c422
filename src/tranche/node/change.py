"""Carries out a declared change: runs its hooks, waits for what is in use, and makes one plan for everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from tranche.core.allocation import NodeView
from tranche.core.errors import GpuBusy, HookFailed, ModeChangePending, WaitTimeout
from tranche.core.hooks import APPLY_EXIT, APPLY_START, PRE_APPLY_CONFIG, PRE_APPLY_MODE
from tranche.core.state import DeviceVisibility
from tranche.node.execution.executor import Progress, no_progress
from tranche.node.execution.hook_runner import HookRunner
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.store import records
from tranche.planning.layouts.reconfigure import LayoutDecision
from tranche.planning.layouts.restore import as_saved, users_hit_by
from tranche.planning.occupancy.layout_occupancy import busy_error
from tranche.planning.steps.plan import Plan

_POLL_SECONDS = 0.5


class Change:
    """One declared change of a machine, from the first hook to the last.

    The order: decide once, to refuse the impossible before any hook runs; run apply-start; run the pre-apply hooks of what will
    change, which may stop the clients in the way; decide again and carry out the whole plan or none of it; run apply-exit, even
    after a failure. If nothing changes, no pre-apply hook runs and there is no plan.
    """

    def __init__(
        self,
        host: Host,
        hooks: HookRunner,
        patience: WaitLimit,
        *,
        progress: Progress = no_progress,
        waiting: Callable[[GpuBusy], None] = lambda reason: None,
        exit_hook_failed: Callable[[HookFailed], None] = lambda error: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`waiting` receives the reason for a wait, `exit_hook_failed` a failure of apply-exit after another failure."""
        self._host = host
        self._hooks = hooks
        self._patience = patience
        self._progress = progress
        self._waiting = waiting
        self._exit_hook_failed = exit_hook_failed
        self._clock = clock
        self._sleep = sleep
        self.made = False
        """Whether the GPUs are as declared: what follows, such as a hook, changes none of them."""

    def to_layout(self, decide: Callable[[NodeView], LayoutDecision], *, mode_only: bool = False) -> LayoutDecision:
        """Carry out a decision; returns the last one. Raises GpuBusy or WaitTimeout when something in use blocks it."""
        last = decide(self._host.view(seconds=self._patience.with_others(0.0)))
        if self._host.driver.scope is DeviceVisibility.PARTS:
            last.refuse_if_blocked()
            self._host.require_whole_gpus()

        def decide_now(view: NodeView) -> Plan:
            nonlocal last
            last = decide(view)
            last.refuse_if_blocked()
            return last.plan

        def act() -> None:
            self._before(last.changes_mode, last.changes_cut and not mode_only)
            self._patiently(lambda seconds: self._host.change(decide_now, progress=self._progress, seconds=seconds))
            if not mode_only:
                keep_for_layout(self._host, [each.gpu.uuid for each in last.changes])
            if last.waiting_for_reset and not mode_only:
                gpus = ", ".join(gpu.label for gpu in last.waiting_for_reset)
                raise ModeChangePending(
                    f"the MIG mode change of {gpus} is pending because resets are skipped; Tranche created no slices there",
                    hint="reset the GPU or restart the machine, then apply the layout again",
                )

        self._between_hooks(act)
        return last

    def as_saved(self, plan: Plan) -> None:
        """Carry out a saved plan. Raises StateMoved when a GPU has changed since the plan was made."""
        self._host.require_whole_gpus()
        changes_mode = any(step.changes_mode for step in plan.steps)
        changes_cut = any(step.changes_cut for step in plan.steps)

        def carry_out(seconds: float | None) -> None:
            if in_the_way := users_hit_by(self._host.view(seconds=seconds), plan):
                raise busy_error(plan.purpose, in_the_way)
            self._host.change(lambda view: as_saved(plan, view), progress=self._progress, seconds=seconds)

        def act() -> None:
            self._before(changes_mode, changes_cut)
            self._patiently(carry_out)
            keep_for_layout(self._host, plan.gpu_uuids)

        self._between_hooks(act)

    def _before(self, changes_mode: bool, changes_cut: bool) -> None:
        if changes_mode:
            self._hooks.run(PRE_APPLY_MODE)
        if changes_cut:
            self._hooks.run(PRE_APPLY_CONFIG)

    def _between_hooks(self, act: Callable[[], None]) -> None:
        self._hooks.run(APPLY_START)
        try:
            act()
        except BaseException:
            try:
                self._hooks.run(APPLY_EXIT)
            except HookFailed as error:
                self._exit_hook_failed(error)
            raise
        self._hooks.run(APPLY_EXIT)

    def _patiently(self, act: Callable[[float | None], object]) -> None:
        """Retry `act` while GPUs are busy and patience lasts.

        `act` receives the seconds that it may wait for others.
        """
        begun = self._clock()
        while True:
            try:
                act(self._patience.with_others(self._clock() - begun))
                self.made = True
                return
            except GpuBusy as error:
                if not self._patience.wait:
                    raise
                left = None if self._patience.seconds is None else begun + self._patience.seconds - self._clock()
                if left is not None and left <= 0:
                    raise WaitTimeout(
                        f"gave up after {self._patience.seconds:g} s: {error.message}", hint=error.hint
                    ) from error
                self._waiting(error)
            self._sleep(_POLL_SECONDS if left is None else min(_POLL_SECONDS, left))


def keep_for_layout(host: Host, gpu_uuids: Collection[str]) -> None:
    """Record that a layout wants the current instances of these GPUs, even those made for requests."""
    with host.ledger.read() as db:
        requested = {key.gpu_uuid for key in records.requested_instances(db)}.intersection(gpu_uuids)
    if requested:
        with host.ledger.write() as db:
            records.want_instances(db, requested)
