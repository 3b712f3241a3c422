"""The current machine: what the ledger says, what the GPUs show, and what must be put in order before a decision."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from tranche.core.allocation import (
    Allocation,
    FractionalShare,
    Grant,
    NodeView,
    Phase,
    Slice,
    WholeGpu,
    cordoned,
    device_uuid,
    devices,
    nearest_request,
    shared_memory,
    size_of,
    with_lost_limits,
)
from tranche.core.errors import TrancheError
from tranche.core.keeper import NOT_KNOWN_YET
from tranche.core.state import DeviceVisibility, GpuState, NodeState
from tranche.hardware.control_groups import machine_group, session_groups
from tranche.node.execution.host_context import HostContext
from tranche.node.limits.overdrawn import with_overdrawn
from tranche.node.limits.share_groups import LimitTrialRunner
from tranche.node.locks.locks import is_held
from tranche.node.processes.keeping import noted_shares
from tranche.node.processes.pod_processes import devices_of_pods
from tranche.node.recovery.adoption import find_again, note_missing, record_missing, shares_of_processes, take_over
from tranche.node.recovery.daemon_reconciler import DaemonReconciler
from tranche.node.recovery.recovery import Recovery
from tranche.node.state.known_gpus import lost_or_back, with_lost_named
from tranche.node.store import chronicle, journal, records, register
from tranche.node.store.holders import adopt
from tranche.node.store.register import clear, contradictory_tables, grants_without_allocation, memory_of_devices
from tranche.node.store.schema import ADOPT_SHARES
from tranche.planning.decide.reservations import first_used, over


class MachineReader:
    """Looks at one machine. `session` names this process in the journal."""

    def __init__(
        self,
        machine: HostContext,
        trials: LimitTrialRunner,
        *,
        recovery: Recovery,
        care: DaemonReconciler,
        session: Callable[[], str],
        is_of_this_machine: Callable[[int], bool],
    ) -> None:
        self._machine = machine
        self._driver, self._ledger, self._places = machine.driver, machine.ledger, machine.places
        self._daemons = machine.daemons
        self._trials = trials
        self._recovery = recovery
        self._care = care
        self._session = session
        self._is_of_this_machine = is_of_this_machine

    def node(self) -> NodeState:
        """Every GPU's current state, with its daemons. The first process that may tries the driver's memory limits."""
        remember = not self._ledger.read_only
        found = with_lost_named(self._driver.observe(), self._places, remember=remember)
        found = self._trials.on_node(found, remember=remember)
        return self._machine.timeslices.on_node(self._daemons.on_node(found))

    def something_to_clear(self) -> bool:
        """Whether anything must be put in order and this process may do it."""
        may = not self._ledger.read_only and self._driver.scope is not DeviceVisibility.PARTS
        return may and (
            self._recovery.needed()
            or self._adoption_due()
            or bool(self._daemons.records.without_record())
            or self._care.needed()
            or bool(self._recovery.left_specs())
            or self._reservations_due()
        )

    def as_it_is(self) -> NodeView:
        """The machine, with anything that is out of order."""
        return self._gather()[0]

    def in_order(self, seconds: float | None = None) -> NodeView:
        """The machine after putting everything in order, under the decision lock. Queries daemons for `seconds` at most."""
        self._recovery.run()
        view, working = self._gather()
        if self._adoption_due():
            self._adopt_shares(view)
            view, working = self._gather()
        for each in self._recovery.left_specs():
            self._machine.drop_spec(each)
        whole = view.node.scope is DeviceVisibility.ALL
        if record_missing(self._daemons, view, working):
            find_again(self._daemons, view, working, self._owner, whole=whole)
            view, working = self._gather()
        if self._care.look_after(view, working, self._session, whole=whole, seconds=seconds):
            view, working = self._gather()
        return self._tend_reservations(self._recovery.forget_gone_instances(view, working))

    @property
    def _owner(self) -> int:
        """The uid of the ledger's owner."""
        return os.stat(self._places.ledger).st_uid

    def _adoption_due(self) -> bool:
        with self._ledger.read() as db:
            # Only a view of the whole machine shows what the register must hold.
            broken = self._driver.scope is DeviceVisibility.ALL and contradictory_tables(db, self._places)
            return bool(broken) or register.is_new(db)

    def _adopt_shares(self, view: NodeView) -> None:
        """Record shares of running commands and pods that a new or damaged ledger does not know.

        Also records the daemons and control groups that they need, or that others left.
        """
        owner, whole = self._owner, view.node.scope is DeviceVisibility.ALL
        take_over(self._daemons, view.node, owner, whole=whole)
        self._machine.share_groups.find_again([gpu.uuid for gpu in view.node if not gpu.lost])
        there, now = devices(view.node), self._machine.clock()
        contexts = {gpu.uuid: gpu.context_memory for gpu in view.node}
        processes = shares_of_processes(there, self._places.state_dir, uid=owner, now=now, contexts=contexts)
        found = self._with_noted(view, processes)
        found += devices_of_pods(there, now=now, new_id=self._machine.new_id, of_this_machine=self._is_of_this_machine)
        found = tuple(each._replace(**size_of(each.grants, view.node)._asdict()) for each in found)
        note_missing(self._daemons, self.node(), [grant for each in found for grant in each.grants])
        with self._ledger.write() as db:
            known = register.allocations(db)
            memory = _shared_memory(found, view.node)
            if whole and contradictory_tables(db, self._places):
                known = self._still_held(db, known, found)
                memory = memory_of_devices(db, (*known, *found), memory)
                clear(db, self._places)
                adopt(db, known, memory, now)
            ids = {each.id for each in known}
            adopt(db, [each for each in found if each.id not in ids], memory, now)
            if whole:
                self._restore_fence(db)
                register.chore_done(db, ADOPT_SHARES)

    def _with_noted(self, view: NodeView, found: Collection[Allocation]) -> tuple[Allocation, ...]:
        """The shares found by processes, and those of held locks, as the locks note them: a process may hide or change its word.

        Leaves out devices of GPUs that this machine does not have.
        """
        gpus, shares = {gpu.uuid: gpu for gpu in view.node}, {each.id: each for each in found}
        for each in noted_shares(self._places.allocation("")):
            there = tuple(g for g in each.grants if (gpu := gpus.get(g.gpu_uuid)) and _may_be_there(g, gpu))
            if there:
                keeper = shares[each.id].keeper if each.id in shares else each.keeper
                shares[each.id] = each._replace(grants=there, keeper=keeper)
        return tuple(shares.values())

    def _restore_fence(self, db: sqlite3.Connection) -> None:
        """Note the fence of a lost ledger. It exempts root alone, for nobody knows whom the administrator exempted."""
        top = machine_group()
        if top is None or not session_groups(top) or chronicle.knows_fence(db):
            return
        from tranche.node.limits.fence import sessions_fenced  # slow to import; most machines have no sessions of users

        if sessions_fenced(self._machine.share_groups.owner):
            records.set_fence(db, frozenset())
            chronicle.fence_changed(db, self._machine.clock(), records.fence(db))

    def _still_held(
        self, db: sqlite3.Connection, known: Sequence[Allocation], found: Sequence[Allocation]
    ) -> tuple[Allocation, ...]:
        """The allocations of a register that lost rows, as far as its rows and the processes `found` show them."""
        running = {each.id: each.grants for each in found}
        # If a share lost some of its grants, its processes know more than the register.
        whole = (each._replace(grants=max(each.grants, running.get(each.id, ()), key=len)) for each in known)
        held = [each for each in whole if each.grants]
        for name, grants in grants_without_allocation(db).items():
            if name not in running and is_held(self._places.allocation(name)):
                request = nearest_request(grants)
                held.append(
                    Allocation(name, request, grants, Phase.ACTIVE, self._machine.clock(), keeper=NOT_KNOWN_YET)
                )
        return tuple(held)

    def _gather(self) -> tuple[NodeView, frozenset[str]]:
        """The view, and the GPUs that some plan was working on.

        Reads the ledger before observing the GPUs. If a plan of another process changes something in between, its promise still
        covers that, and an instance that it destroys never looks idle.
        """
        with self._ledger.read() as db:
            allocations = register.allocations(db)
            owned, requested = records.owned_instances(db), records.requested_instances(db)
            changing, policy = records.changing_gpus(db), records.sharing_policy(db)
            now, reservations = self._machine.clock(), records.reservations(db)
            limits = register.user_limits(db, allocations, now)
            idle = records.idle_shares(db, self._machine.boot_clock())
            plans, withheld = journal.running_plans(db), cordoned(records.cordons(db))
            lost = register.lost_gpus(db)
        working = frozenset(gpu_uuid for plan in plans for gpu_uuid in plan.gpu_uuids)
        ours = owned | journal.being_made(plans)
        node = self.node()
        if lost_or_back(node, lost, working) and not self._ledger.read_only:
            self._record_lost(node, working)
        held = with_overdrawn(with_lost_limits(allocations, node), node)
        view = NodeView(node, held, ours, changing, policy.on(node), withheld, requested, *limits, idle=idle)
        if reservations:
            view = replace(view, reservations=reservations, time=now)
        return view, working

    def _reservations_due(self) -> bool:
        with self._ledger.read() as db:
            return register.reservations_due(db, self._machine.clock())

    def _tend_reservations(self, view: NodeView) -> NodeView:
        """End reservations that are over or given up, and note which are used."""
        if not view.reservations:
            return view
        with self._ledger.read() as db:
            used = [*first_used(view, waiting={each.uid for each in records.waiters(db)})]
        ended = {each.id: why for each in view.reservations if each not in used and (why := over(view, each))}
        if not ended and not used:
            return view
        with self._ledger.write() as db:
            for reservation_id, why in ended.items():
                if records.remove_reservation(db, reservation_id):
                    chronicle.reservation_ended(db, view.time, reservation_id, why)
            records.use_reservations(db, used)
            return replace(view, reservations=records.reservations(db))

    def _record_lost(self, node: NodeState, working: frozenset[str]) -> None:
        """Record which GPUs were lost or have returned, unless another process has. After a failure, the next look does."""
        with suppress(TrancheError), self._ledger.waiting(0.0), self._ledger.write() as db:
            for gpu in lost_or_back(node, register.lost_gpus(db), working):
                register.set_lost(db, gpu.uuid, lost=gpu.lost)
                chronicle.gpu_lost(db, self._machine.clock(), gpu)


def _may_be_there(grant: Grant, gpu: GpuState) -> bool:
    """A process may be creating the slice right now, and a lost GPU shows none."""
    return gpu.lost or not isinstance(grant, FractionalShare) or bool(device_uuid(grant, gpu))


def _shared_memory(found: Sequence[Allocation], node: NodeState) -> dict[WholeGpu | Slice, int]:
    """The usable bytes of each shared device; on a lost GPU, which does not show them, what its known parts have together."""
    grants = [grant for each in found for grant in each.grants]
    memory = shared_memory(grants, node)
    parts = [each for each in grants if isinstance(each, FractionalShare) and node.gpu(each.gpu_uuid).lost]
    return memory | {each.device: sum(other.memory for other in parts if other.device == each.device) for each in parts}
