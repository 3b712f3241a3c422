"""Takes care of MPS daemons. No Tranche process stays to watch them, so the next decision does.

A daemon of an unshared device ends after a while, or at once if something is wrong with it. Limits that a daemon no longer
enforces are recorded. Everything here runs under the decision lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tranche.core.allocation import (
    Allocation,
    DeviceKey,
    Grant,
    NodeView,
    Phase,
    parts_by,
    shared_by_mps,
    with_lost_limits,
)
from tranche.core.errors import MpsFailed, TrancheError
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, NodeState
from tranche.node.execution.executor import Executor
from tranche.node.execution.host_context import HostContext
from tranche.node.limits.overdrawn import with_overdrawn
from tranche.node.mps.mps_daemons import FATAL, LOOK_SECONDS, what_changed
from tranche.node.mps.mps_records import DaemonRecord, care_needed, is_due
from tranche.node.store import chronicle, journal, records, register
from tranche.planning.steps import SetTimeslice, StartMps, StopMps
from tranche.planning.steps.plan import Plan


class DaemonReconciler:
    """Looks after the daemons of one machine."""

    def __init__(self, machine: HostContext, executor: Executor) -> None:
        self._machine = machine
        self._daemons, self._groups, self._timeslices = machine.daemons, machine.share_groups, machine.timeslices
        self._executor = executor
        self._noting = threading.Lock()

    def needed(self) -> bool:
        """Whether a share left something, or a daemon has died or should end. Reads files, and queries no daemon."""
        with self._machine.ledger.read() as db:
            allocations = register.allocations(db)
            left = self._groups.left([each.id for each in allocations]) or self._timeslices.left(
                allocations, self._machine.clock()
            )
            return bool(left) or care_needed(db, self._daemons.records, self._machine.clock())

    def look_after(
        self,
        view: NodeView,
        working: frozenset[str],
        session: Callable[[], str],
        *,
        whole: bool = False,
        seconds: float | None = None,
    ) -> bool:
        """Do what is needed, except on GPUs that a plan is `working` on; returns whether the view is outdated now.

        Reports a failure in an event and retries it after a while. `session` names this process in the journal. If the view shows
        the `whole` machine, also ends the daemons of devices that are not in it. Queries the remaining daemons for `seconds` at
        most.
        """
        for group in self._groups.left([each.id for each in view.allocations]):
            self._groups.drop(group)
        self._note_overdrawn(view, working)
        put_back = self._put_timeslices_back(view, working, session)
        put_back = self._complete_raises(view, working, session) or put_back
        found = self._daemons.records.look()
        if not found:
            return put_back
        damaged = [each for gpu in view.node for each in found.on(gpu) if each.damaged]
        known = [each for each in (*found.records, *damaged) if each.gpu_uuid not in working]
        shared = shared_by_mps(view.allocations)
        patience = LOOK_SECONDS if seconds is None else min(seconds, LOOK_SECONDS)

        def due_now() -> list[DaemonRecord]:
            now = {each.key: each for each in self._daemons.records.all()}
            idle = [now.get(each.key, each) for each in known if each.key not in shared]
            return [each for each in idle if is_due(each, self._daemons.records, self._machine.clock())]

        ending = {each.key for each in due_now()}
        self._daemons.look([each for each in known if each.key not in ending], patience)
        told = self._tell(known, view.allocations)
        self._note_lost(replace(view, node=self._daemons.on_node(view.node)), working)
        kept = self._keep_compute_modes(view, working, shared, session)
        due = due_now()
        gpus = {gpu.uuid: gpu for gpu in view.node}
        lost = any(gpu.lost for gpu in view.node)  # it may be shown under an unknown UUID
        for record in due:
            gpu = gpus.get(record.gpu_uuid)
            if gpu is not None and not gpu.lost:
                self._end(record, session())
            elif lost:
                self._daemons.records.note_failure(
                    record, self._machine.clock()
                )  # it does not answer, so nothing can be restored yet
            elif whole:
                self._end_without_gpu(record)
        if whole and not working and not lost:
            for name in found.unclaimed(view.node):
                with suppress(MpsFailed):  # its record stays for a retry
                    self._daemons.end_unclaimed(name)
        return bool(due or told or kept or put_back or self._daemons.records.look() != found)

    def _put_timeslices_back(self, view: NodeView, working: frozenset[str], session: Callable[[], str]) -> bool:
        gpus = {gpu.uuid: gpu for gpu in view.node}
        done = False
        for gpu_uuid in self._timeslices.left(view.allocations, self._machine.clock()):
            gpu = gpus.get(gpu_uuid)
            if gpu is None or gpu_uuid in working:
                continue
            if gpu.timeslice is None:
                self._timeslices.forget(gpu_uuid)  # the driver has forgotten it too
            elif gpu.lost or not self._carried_out(
                Plan(f"no share uses time-slicing on {gpu.label} any more", (SetTimeslice(gpu_uuid, None),)), session()
            ):
                self._timeslices.note_failure(gpu_uuid, self._machine.clock())
            done = True
        return done

    def _complete_raises(self, view: NodeView, working: frozenset[str], session: Callable[[], str]) -> bool:
        """Complete raises of limits that a kill interrupted; returns whether there were any.

        Which limit such a daemon received is unknown until it receives it again.
        """
        done = False
        shared = shared_by_mps(view.allocations)
        gpus = {gpu.uuid for gpu in view.node if not gpu.lost} - working
        for record in self._daemons.records.all():
            if (
                record.raising
                and record.gpu_uuid in gpus
                and record.key in shared
                and record.state is DaemonState.READY
            ):
                self._start(record, record.raising, f"the limit of {record.device_uuid} was being raised", session)
                done = True
        return done

    def _keep_compute_modes(
        self, view: NodeView, working: frozenset[str], shared: Mapping[DeviceKey, bool], session: Callable[[], str]
    ) -> bool:
        """Set shared GPUs back to a compute mode that keeps out programs without MPS; returns whether any needed it.

        A prohibited GPU stays so. A daemon that admits no clients is left out: it would have to be restarted.
        """
        done = False
        for gpu in view.node:
            record = self._daemons.records.find(gpu.uuid, None) if gpu.mps_passable else None
            ours = record is not None and record.key in shared and gpu.uuid not in working
            if record is None or not ours or record.state is not DaemonState.READY:
                continue
            why = f"the compute mode of {gpu.label} was set to DEFAULT while it is shared by MPS: Tranche restores it"
            done = self._start(record, record.limit, why, session, told=True) or done
        return done

    def _start(
        self, record: DaemonRecord, limit: int, why: str, session: Callable[[], str], *, told: bool = False
    ) -> bool:
        """Start the daemon again, with that limit, unless it failed lately; returns whether it was tried."""
        if self._daemons.records.failed_lately(record, self._machine.clock()):
            return False
        step = StartMps(record.gpu_uuid, record.slot and record.slot.place, limit)
        if not self._carried_out(Plan(why, (step,)), session(), told=told):
            self._daemons.records.note_failure(record, self._machine.clock())
        return True

    def _tell(self, known: Sequence[DaemonRecord], allocations: Sequence[Allocation]) -> bool:
        """Record which daemons stopped admitting clients and why, and which admit them again; returns whether there was news.

        MPS does not say which program caused a fault that ended all, so the events name every share of the device.
        """
        told = False
        for key in {each.key for each in known if not each.damaged}:
            record = self._daemons.records.find(*key)
            if record is None or not record.untold:
                continue
            with self._machine.ledger.write() as db:
                position = chronicle.daemon_fault(
                    db, self._machine.clock(), record.gpu_uuid, record.device_uuid, record.why
                )
                for each in allocations if record.why.startswith(FATAL) else ():
                    if record.key in shared_by_mps([each]) and each.phase is Phase.ACTIVE:
                        chronicle.fault_shared(db, self._machine.clock(), each, record.device_uuid, position)
            self._daemons.records.write(record._replace(told=record.why))
            told = True
        return told

    def given_back(self, grants: Sequence[Grant], killed: bool) -> None:
        """Note that parts of devices were given back. A `killed` program may have wedged its server."""
        with self._noting:
            for part in parts_by(Sharing.MPS, grants):
                record = self._daemons.records.find(part.gpu_uuid, part.slot)
                if record is not None and killed and not record.suspect:
                    self._daemons.records.write(record._replace(suspect=True))
                elif record is not None:
                    self._daemons.records.touch(record)

    def _note_lost(self, view: NodeView, working: frozenset[str]) -> None:
        """Record the shares with limits that are no longer enforced.

        Ignores shares that became active after the view was taken, since it does not show their daemons.
        """
        for now in self._changed(view, working, with_lost_limits):
            with self._machine.ledger.write() as db:
                register.set_grants(db, now.id, now.grants)
                chronicle.limits_lost(db, self._machine.clock(), now, changed=self._limits_changed(now))

    def _limits_changed(self, allocation: Allocation) -> str | None:
        """The limits that others have changed, as `what_changed` says; None when there are none."""
        parts = parts_by(Sharing.MPS, allocation.grants)
        found = (self._daemons.records.find(each.gpu_uuid, each.slot) for each in parts)
        return next((what_changed(record) for record in found if record is not None and record.changed), None)

    def _note_overdrawn(self, view: NodeView, working: frozenset[str]) -> None:
        """Record the shares with processes that use more memory than they were given."""
        for now in self._changed(view, working, with_overdrawn):
            with self._machine.ledger.write() as db:
                register.set_grants(db, now.id, now.grants)
                chronicle.limit_exceeded(db, self._machine.clock(), now)

    def _changed(
        self,
        view: NodeView,
        working: frozenset[str],
        as_is: Callable[[tuple[Allocation, ...], NodeState], tuple[Allocation, ...]],
    ) -> Iterator[Allocation]:
        """The view's active allocations that differ from the register, leaving out GPUs that are changing."""
        active = {each.id for each in view.allocations if each.phase is Phase.ACTIVE}
        node = replace(view.node, gpus=tuple(gpu for gpu in view.node if gpu.uuid not in working))
        with self._machine.ledger.read() as db:
            stored = tuple(each for each in register.allocations(db) if each.id in active)
        yield from (now for before, now in zip(stored, as_is(stored, node), strict=True) if before != now)

    def _end(self, record: DaemonRecord, session: str) -> None:
        plan = Plan(
            f"{record.device_uuid} has no shares left", (StopMps(record.gpu_uuid, record.slot and record.slot.place),)
        )
        self._note(record, done=self._carried_out(plan, session))

    def _carried_out(self, plan: Plan, session: str, *, told: bool = False) -> bool:
        plan_id = self._machine.new_id()
        with self._machine.ledger.write() as db:
            if told:
                chronicle.change_begun(db, self._machine.clock(), plan_id, plan.purpose)
            journal.open_plan(db, plan_id, plan, session=session, created=self._machine.clock())
            steps = journal.step_records(db, plan_id)
        error: TrancheError | None = None
        try:
            self._executor.execute(plan_id, steps)
        except TrancheError as failed:
            error = failed
        status = records.PlanStatus.DONE if error is None else records.PlanStatus.UNDONE
        with self._machine.ledger.write() as db:
            journal.close_plan(db, plan_id, status, ended=self._machine.clock(), counted=False)
            if error is not None:
                chronicle.undone(db, self._machine.clock(), plan_id, error, allocation_id="")
        return error is None

    def _end_without_gpu(self, record: DaemonRecord) -> None:
        gone = False
        with suppress(MpsFailed):
            gone = self._daemons.end_without_gpu(record)
        self._note(record, done=gone)

    def _note(self, record: DaemonRecord, *, done: bool) -> None:
        """Note whether what was done with the daemon has succeeded, so that a failure is retried only after a while."""
        if done:
            self._daemons.records.clear_failure(record)
        else:
            self._daemons.records.note_failure(record, self._machine.clock())
