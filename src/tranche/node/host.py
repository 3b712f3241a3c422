"""One machine and its GPUs: decide under a lock, journal, execute, record; `tranche.node.inspection` reads the state.

Decisions are made one at a time under the decision lock. Plans run outside it, so other requests can be decided meanwhile.
Until the plan ends, its allocation protects the decision; for a declared layout, its changing GPUs do.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tranche.core.allocation import (
    Allocation,
    Grant,
    NodeView,
    Phase,
    Slice,
    WholeGpu,
    shared_memory,
    size_of,
)
from tranche.core.errors import (
    AllocationUnknown,
    LedgerUnavailable,
    PermissionDenied,
    TrancheError,
    WaitTimeout,
)
from tranche.core.keeper import Actor, Keeper, ProcessKeeper
from tranche.core.request import Request
from tranche.core.state import DeviceVisibility, NodeState
from tranche.core.usage import usage_of
from tranche.core.user_quota import within_time
from tranche.hardware.driver import meets_this_machine
from tranche.node.execution.executor import Executor, Progress, carry_out_apart, no_progress
from tranche.node.execution.guards import refuse_changing, refuse_held_by_any
from tranche.node.execution.host_context import HostContext
from tranche.node.held import HeldAllocation, QueuePlace, ReservedShare
from tranche.node.inspection import MachineReader
from tranche.node.limits.share_groups import LimitTrialRunner, share_group
from tranche.node.locks.deciding import slow_decision, taking_turn
from tranche.node.locks.interrupts import WaitInterrupted
from tranche.node.locks.locks import FileLock
from tranche.node.mps.mps_daemons import refuse_unavailable_parts
from tranche.node.processes.keeping import RemainingProcesses, note_share
from tranche.node.processes.processes import Process, digest_of
from tranche.node.recovery.daemon_reconciler import DaemonReconciler
from tranche.node.recovery.recovery import Recovery
from tranche.node.state.session import pid_namespace, process_start_time, sees_processes_of
from tranche.node.state.state_file import drop_state_file
from tranche.node.store import chronicle, journal, records, register
from tranche.node.store.holders import add_or_refuse, adopt, write_down
from tranche.planning.decide.reservations import first_used
from tranche.planning.steps.plan import Plan, refuse_recut, refuse_unavailable, with_daemons

if TYPE_CHECKING:
    from tranche.core.events import Event
    from tranche.hardware.device_filter import FenceFilter
    from tranche.planning.decide.allocate import Granted


_LOOK_SECONDS = 2.0
"""How long a look waits for others to finish deciding."""


@dataclass(eq=False, kw_only=True)
class Host(HostContext):
    """One process's access to the machine.

    `recovered` receives the purpose of each interrupted plan that this process undid. Events name the `actor`. Shares are for the
    user `uid`, by default this process's. `is_of_this_machine` tells whether a container's process uses this machine's GPUs.
    """

    is_of_this_machine: Callable[[int], bool] = meets_this_machine
    recovered: Callable[[str], None] = lambda purpose: None
    actor: Actor | None = None
    uid: int = field(default_factory=os.getuid)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._executor = Executor(self)
        self._trials = LimitTrialRunner(self.places, self.environment, self.clock)
        self._care = DaemonReconciler(self, self._executor)
        self._recovery = Recovery(self, self._executor, self._care.given_back, self.recovered)
        self._inspection = MachineReader(
            self,
            self._trials,
            recovery=self._recovery,
            care=self._care,
            session=lambda: self._session[0],
            is_of_this_machine=self.is_of_this_machine,
        )

    @cached_property
    def _session(self) -> tuple[str, FileLock]:
        """This process's name in the journal; its lock tells others whether the process still lives."""
        name = self.new_id()
        return name, FileLock(self.places.session(name))

    def close(self) -> None:
        """End the session: close the ledger and remove the session's lock file."""
        if "_session" in self.__dict__:
            self._session[1].release(remove=True)
        self.ledger.close()

    def view(self, *, seconds: float | None = None, thorough: bool = False) -> NodeView:
        """The current machine, after clearing what dead processes left behind; `thorough` puts everything else in order too.

        Raises WaitTimeout when there is something to clear and others still decide after `seconds`.
        """
        if thorough or self._inspection.something_to_clear():
            with self._deciding(seconds):
                return self._inspection.in_order(seconds)
        return self._inspection.as_it_is()

    def observe(self) -> NodeState:
        """Every GPU's current state, with its daemons."""
        return self._inspection.node()

    def look(self, unsettled: Callable[[TrancheError], None]) -> NodeView:
        """The current machine, for callers that only look.

        Remains of dead processes that cannot be cleared now, such as on a full disk, stay; `unsettled` receives the reason.
        """
        try:
            # A caller that looks repeatedly must not wait each time.
            if (slow := slow_decision(self.places)) is not None and self._inspection.something_to_clear():
                raise slow
            view = self.view(seconds=_LOOK_SECONDS)
        except (LedgerUnavailable, PermissionDenied, WaitTimeout) as error:
            view = self._inspection.as_it_is()
            unsettled(error)
            return view
        if self.ledger.unwritable is not None and self.recovery_needed():
            unsettled(self.ledger.unwritable)
        return view

    def require_whole_gpus(self) -> None:
        """Raises PermissionDenied when this process sees only parts of GPUs: such a view cannot support decisions."""
        if self.driver.scope is DeviceVisibility.PARTS:
            raise PermissionDenied(
                "NVIDIA_VISIBLE_DEVICES limits this process to part of the machine, so it can read but not change anything",
                hint="run the command outside the share or container that set it",
            )

    def recovery_needed(self) -> bool:
        """Whether a dead process left something behind. Cheap: queries no GPU."""
        return self._recovery.needed()

    def waiters(self) -> tuple[records.Waiter, ...]:
        """The queue, in the order of service."""
        with self.ledger.read() as db:
            return register.queue(db, self.clock())

    def events(self, *, after: int = 0, last: int | None = None) -> tuple[Event, ...]:
        """The events, oldest first."""
        with self.ledger.read() as db:
            return chronicle.events(db, after=after, last=last)

    def boot_ended(self, boot_id: str) -> Event | None:
        """How the cut at that boot ended; None when none did."""
        with self.ledger.read() as db:
            return chronicle.last_boot(db, boot_id)

    def change(
        self,
        decide: Callable[[NodeView], Plan],
        *,
        apart: bool = False,
        progress: Progress = no_progress,
        seconds: float | None = None,
    ) -> Plan:
        """Carry out a declared change: decide on the current state, execute, undo on failure; returns the plan.

        A failure on one GPU undoes the change on all of them; with `apart`, only on that GPU. Raises GpuBusy when another change
        works on one of its GPUs, and WaitTimeout when others still decide, or work on one of its GPUs, after `seconds`.
        """
        with self._deciding(seconds):
            view = self._inspection.in_order(seconds)
            plan = with_daemons(decide(view), (), view)
            if plan.empty:
                return plan
            refuse_changing(view, plan)
            parts = {self.new_id(): part for part in (plan.apart if apart else (plan,))}
            with self.ledger.write() as db:
                refuse_held_by_any(db, view, plan, "")
                for plan_id, part in parts.items():
                    journal.open_plan(db, plan_id, part, session=self._session[0], created=self.clock())
                    chronicle.change_begun(db, self.clock(), plan_id, part.purpose, self.actor)
            self.boundary()
        carry_out_apart(tuple(parts), lambda plan_id: self.carry_out(plan_id, "", progress, seconds))
        return plan

    def enqueue(self, request: Request, *, command: str, pid: int) -> QueuePlace:
        """Take a place at the end of the queue."""
        ticket_id = self.new_id()
        lock = FileLock(self.places.waiter(ticket_id))
        try:
            with self.ledger.write() as db:
                records.add_waiter(db, ticket_id, request, created=self.clock(), command=command, pid=pid, uid=self.uid)
        except BaseException:
            lock.release(remove=True)
            raise
        return QueuePlace(ticket_id, lock)

    def leave(self, ticket: QueuePlace) -> bool:
        """Give up a place in the queue; returns False if the request had been cancelled."""
        with self.ledger.write() as db:
            waited = records.remove_waiter(db, ticket.id)
        ticket.lock.release(remove=True)
        return waited

    def cancel(self, waiter_id: str) -> bool:
        """Remove a request from the queue; returns whether it was still waiting."""
        with self.ledger.write() as db:
            if not records.remove_waiter(db, waiter_id):
                return False
            chronicle.cancelled(db, self.clock(), waiter_id, self.actor)
        self.boundary()
        return True

    @contextmanager
    def deciding(self, seconds: float | None = None) -> Iterator[tuple[NodeView, tuple[records.Waiter, ...]]]:
        """The machine in order, and the queue. No other process decides during the block.

        Raises WaitTimeout when others still decide after `seconds`.
        """
        with self._deciding(seconds):
            yield self._inspection.in_order(seconds), self.waiters()

    def reserve(self, place: QueuePlace, decision: Granted, view: NodeView) -> ReservedShare:
        """Record a decision on that view for a waiter, who leaves the queue. Call it within `deciding`.

        One transaction writes allocation and plan; from then on the room is taken. Raises AllocationUnknown when the request was
        cancelled.
        """
        waiter = next((waiter for waiter in self.waiters() if waiter.id == place.id), None)
        if waiter is None:
            raise AllocationUnknown(f"request {place.id} is no longer in the queue")
        plan = with_daemons(decision.plan, decision.grants, view)
        key = os.urandom(16).hex()
        size = size_of(decision.grants, view.node)
        allocation = Allocation(
            id=self.new_id(),
            request=within_time(waiter.request, view.quotas, waiter.uid),
            grants=decision.grants,
            phase=Phase.PREPARING,
            created=self.clock(),
            command=waiter.command,
            keeper=ProcessKeeper(key_digest=digest_of(key), uid=self.uid),
            memory=size.memory,
            gpu_millionths=size.gpu_millionths,
        )
        # The lock comes first: an allocation without a held lock looks like one of a dead process.
        lock = FileLock(self.places.allocation(allocation.id))
        note_share(lock.path, allocation)
        plan_id = "" if plan.empty else self.new_id()
        try:
            with self.ledger.write() as db:
                add_or_refuse(db, allocation, shared_memory(allocation.grants, view.node))
                if not records.remove_waiter(db, waiter.id):
                    raise AllocationUnknown(f"request {waiter.id} is no longer in the queue")
                if view.reservations:
                    there = replace(view, asker=self.uid, time=self.clock())
                    records.use_reservations(db, first_used(there, decision.grants))
                if plan_id:
                    self.open_plan(db, plan_id, plan, view, allocation.id)
        except BaseException:
            lock.release(remove=True)
            raise
        self.boundary()
        return ReservedShare(
            HeldAllocation(allocation, lock, key), plan_id, plan, decision.note, place, waiter, view.node.driver_version
        )

    def fulfil(
        self, reservation: ReservedShare, *, progress: Progress = no_progress, seconds: float | None = None
    ) -> HeldAllocation:
        """Carry out the plan and activate the allocation.

        On failure, undoes the plan, gives the waiter its place back, and raises the error. Raises LimitsRefused when the driver
        keeps no memory limit, which the next decision knows, and WaitTimeout when others work on one of the GPUs after `seconds`.
        """
        held = reservation.held
        if reservation.plan_id:
            try:
                self.carry_out(reservation.plan_id, held.allocation.id, progress, seconds)
            except BaseException:
                self._take_back(reservation)
                raise
        try:
            refuse_unavailable_parts(self.daemons, self.ledger, held.allocation, reservation.plan, seconds)
            group = share_group(
                held.allocation,
                reservation.driver_version,
                self.share_groups,
                self._trials,
                self.ledger,
                self.clock,
                self._fence_rule(held.allocation),
            )
            held = held._replace(group=group)
        except BaseException:
            with self.ledger.write() as db:
                register.remove_allocation(db, held.allocation.id)
            self._take_back(reservation)
            raise
        with self.ledger.write() as db:
            register.activate_allocation(db, held.allocation.id)
            chronicle.granted(
                db,
                self.clock(),
                held.allocation,
                plan_id=reservation.plan_id,
                waiter_id=reservation.waiter.id,
                note=reservation.note,
            )
        self.boundary()
        reservation.place.lock.release(remove=True)
        return held

    def _fence_rule(self, allocation: Allocation) -> FenceFilter | None:
        with (
            self.ledger.read() as db
        ):  # the register has the allocation: who switches the fence on from now on sees it there
            fenced = records.fence(db) is not None
        if not fenced:
            return None
        from tranche.node.limits.fence import rule_of  # most machines have no fence

        return rule_of(allocation, self.observe_gpu, self.environment)

    def _take_back(self, reservation: ReservedShare) -> None:
        with self.ledger.write() as db:
            records.restore_waiter(db, reservation.waiter)
        reservation.held.lock.release(remove=True)

    def open_plan(self, db: sqlite3.Connection, plan_id: str, plan: Plan, view: NodeView, allocation_id: str) -> None:
        """Journal a plan that was decided on that view, unless it takes what another allocation got since."""
        refuse_held_by_any(db, view, plan, allocation_id)
        session, created = self._session[0], self.clock()
        journal.open_plan(db, plan_id, plan, session=session, created=created, allocation_id=allocation_id)

    def hand_over(self, allocation: Allocation, superseded: Collection[str] = ()) -> None:
        """Record an allocation that Tranche did not decide; it replaces those superseded.

        On return, MPS daemons in its way have ended, and those of its parts serve with verified limits. A failure is undone.
        Raises GpuBusy as `add_holder` does, when a daemon admits no clients, and when a device has been recut.
        """
        with self._deciding(None):
            view = self._inspection.in_order()
            refuse_recut(view, allocation.grants)
            refuse_unavailable(view, allocation.grants)
            plan = with_daemons(Plan(f"for {allocation.keeper}"), allocation.grants, view)
            plan_id = "" if plan.empty else self.new_id()
            promised = allocation._replace(phase=Phase.PREPARING if plan_id else Phase.ACTIVE)
            with self.ledger.write() as db:
                write_down(db, promised, superseded, shared_memory(allocation.grants, view.node))
                if plan_id:
                    self.open_plan(db, plan_id, plan, view, allocation.id)
            self.boundary()
        if plan_id:
            self.carry_out(plan_id, allocation.id)
        refuse_unavailable_parts(self.daemons, self.ledger, allocation, plan)
        if plan_id:
            with self.ledger.write() as db:
                register.activate_allocation(db, allocation.id)

    def add_holder(
        self,
        keeper: Keeper,
        request: Request,
        grants: tuple[Grant, ...],
        superseded: Collection[str] = (),
        memory: Mapping[WholeGpu | Slice, int] | None = None,
    ) -> str:
        """Record that `keeper` holds these grants from now on; returns the allocation's id. It replaces those superseded.

        `memory` gives the bytes of each device with granted parts. Queries no GPU. Raises GpuBusy when another allocation holds
        some of it, or an open plan is about to take it.
        """
        allocation = Allocation(self.new_id(), request, grants, Phase.ACTIVE, self.clock(), keeper=keeper)
        with self.ledger.write() as db:
            write_down(db, allocation, superseded, memory)
        self.boundary()
        return allocation.id

    def settle(
        self,
        removed: Collection[str],
        keepers: Mapping[str, Keeper],
        added: Sequence[Allocation],
        memory: Mapping[WholeGpu | Slice, int] | None = None,
    ) -> tuple[Allocation, ...]:
        """Write new knowledge of holders, all or nothing; returns every allocation afterwards. `memory` as for `add_holder`.

        Leaves out an allocation if the register has another holder, and writes an event: the first holder keeps it.
        """
        with self.ledger.write() as db:
            for allocation_id in removed:
                register.remove_allocation(db, allocation_id)
            for allocation_id, keeper in keepers.items():
                register.set_keeper(db, allocation_id, keeper)
            adopt(db, added, memory, self.clock())
            settled = register.allocations(db)
        self.boundary()
        return settled

    def given_back(self, grants: Sequence[Grant]) -> None:
        """Note that holders gave these back. How they ended is unknown: they may have been killed."""
        self._care.given_back(grants, True)

    def set_holder(self, held: HeldAllocation, pid: int) -> None:
        """Record the workload's process, so that the share is kept while it lives even if it closes inherited files."""
        started = process_start_time(pid) if sees_processes_of(pid_namespace()) else 0
        keeper = ProcessKeeper(pid, started, pid_namespace(), digest_of(held.key), uid=self.uid, begun=started)
        note_share(held.lock.path, held.allocation._replace(keeper=keeper))
        with self.ledger.write() as db:
            register.set_keeper(db, held.allocation.id, keeper)

    def release(self, allocation_id: str, *, why: str) -> None:
        """Take back a share; its instance stays, idle. Raises AllocationUnknown when no share has that id."""
        found = self.allocation(allocation_id)
        unknown = AllocationUnknown(f"no allocation {allocation_id}", hint="list the allocations with: tranche ps")
        if found is None:
            raise unknown
        # Note it first: no other process would if this one were killed after freeing the share.
        self._care.given_back(found.grants, True)
        with self.ledger.write() as db:
            if not register.remove_allocation(db, allocation_id):
                raise unknown
            chronicle.released(db, self.clock(), allocation_id, why, self.actor)
            records.add_usage(db, usage_of(found, self.clock()))
        self.boundary()
        drop_state_file(self.places.allocation(allocation_id))
        self.drop_spec(self.spec_file(allocation_id))

    def give_back(
        self, held: HeldAllocation, *, why: str, orphans: Sequence[Process] = (), killed: bool = False
    ) -> RemainingProcesses:
        """Give back the share of an ended command; processes that the command left keep the share while they live.

        `orphans` are this process's children that the command left, oldest first. `killed` means that a signal ended the command.
        """
        try:
            if orphans:
                # Only this process can find them: the register must name one before the lock is free.
                self._recovery.settle_share(held.allocation.id, why=why, orphans=orphans, killed=killed)
            held.lock.release()
            remains = self._recovery.settle_share(held.allocation.id, why=why, orphans=orphans, killed=killed)
        except LedgerUnavailable:
            self._recovery.name_in_new_ledger(held.allocation, orphans)
            raise
        self.boundary()
        return remains

    def carry_out(
        self, plan_id: str, allocation_id: str, progress: Progress = no_progress, seconds: float | None = None
    ) -> None:
        """Carry out a journaled plan, or undo it on failure, which also removes its allocation."""
        with self.ledger.read() as db:
            steps = journal.step_records(db, plan_id)
        try:
            self._executor.execute(plan_id, steps, allocation_id=allocation_id, progress=progress, seconds=seconds)
        except (TrancheError, WaitInterrupted) as error:
            # The executor has undone the plan. After any other exception the next command undoes it, as after a crash.
            with self.ledger.write() as db:
                purpose = next(each.purpose for each in records.open_plans(db) if each.id == plan_id)
                journal.close_plan(db, plan_id, records.PlanStatus.UNDONE, ended=self.clock())
                register.remove_allocation(db, allocation_id)
                if isinstance(error, TrancheError):
                    chronicle.undone(db, self.clock(), plan_id, error, allocation_id=allocation_id)
                else:
                    chronicle.recovered(db, self.clock(), plan_id, purpose, allocation_id=allocation_id)
            raise
        with self.ledger.write() as db:
            journal.close_plan(db, plan_id, records.PlanStatus.DONE, ended=self.clock())
        self.boundary()

    @contextmanager
    def _deciding(self, seconds: float | None) -> Iterator[None]:
        """Decide and record the decision. Raises WaitTimeout when others take longer than `seconds` for either."""
        self.require_whole_gpus()
        with taking_turn(self.places, seconds), self.ledger.waiting(seconds):
            yield
