"""What becomes of MPS daemons. No process of Tranche's stays to watch them, so whoever decides next looks after them.

A daemon whose device nobody shares any more ends after a while; at once, when something is wrong with it. Limits that a daemon
no longer keeps are written down. Everything here runs under the decision lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tranche.core.allocation import Allocation, Grant, NodeView, Part
from tranche.core.errors import TrancheError
from tranche.core.grid import Occupant
from tranche.core.lost_limits import with_lost_limits
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, InstanceKey
from tranche.node import chronicle, journal, records, register
from tranche.node.executor import Executor
from tranche.node.ledger import Ledger
from tranche.node.mps_daemons import MpsDaemons
from tranche.node.mps_records import DaemonRecord
from tranche.planning.plan import Plan
from tranche.planning.steps import StopMps

_Key = tuple[str, InstanceKey | None]

IDLE_SECONDS = 60.0
"""For so long a daemon stays when the last share of its device has ended: the next share starts faster."""


class DaemonCare:
    """Looks after the daemons of one machine. `clock` is seconds since the epoch."""

    def __init__(
        self,
        daemons: MpsDaemons,
        ledger: Ledger,
        executor: Executor,
        *,
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self._daemons = daemons
        self._ledger = ledger
        self._executor = executor
        self._clock = clock
        self._new_id = new_id

    def needed(self) -> bool:
        """Whether a daemon has died or should go; a few files are read, and no daemon is asked."""
        known = self._daemons.records.all()
        if not known:
            return False
        with self._ledger.read() as db:
            shared = _shared_by_mps(register.allocations(db))
            plans = journal.running_plans(db, self._executor.repertoire.kinds)
        working = {gpu_uuid for plan in plans for gpu_uuid in plan.gpu_uuids}
        return any(self._to_do(each, shared) for each in known if each.gpu_uuid not in working)

    def look_after(self, view: NodeView, working: frozenset[str], session: Callable[[], str]) -> bool:
        """Do what is to be done, and leave alone the GPUs that a plan is `working` on; whether the machine was changed.

        What fails is said in an event, and tried again next time. `session` names this process in the journal.
        """
        known = [each for each in self._daemons.records.all() if each.gpu_uuid not in working]
        if not known:
            return False
        shared = _shared_by_mps(view.allocations)
        self._note_lost(view)
        for record in self._daemons.look_after([each for each in known if _key(each) in shared]):
            with self._ledger.write() as db:
                chronicle.daemon_fault(db, self._clock(), record.gpu_uuid, record.device_uuid, record.fault)
        due = [each for each in known if _key(each) not in shared and self._due(each)]
        for record in due:
            self._end(record, session())
        return bool(due)

    def given_back(self, grants: Sequence[Grant], killed: bool) -> None:
        """Note that parts of devices were given back. One that was `killed` may have wedged its server."""
        for grant in grants:
            if not isinstance(grant, Part) or grant.sharing is not Sharing.MPS:
                continue
            record = self._daemons.records.find(grant.gpu_uuid, grant.slot)
            if record is not None and killed and not record.suspect:
                self._daemons.records.write(replace(record, suspect=True))
            elif record is not None:
                self._daemons.records.touch(record)

    def _to_do(self, record: DaemonRecord, shared: Mapping[_Key, bool]) -> bool:
        if _key(record) not in shared:
            return self._due(record)
        return shared[_key(record)] and record.state is DaemonState.LOST

    def _due(self, record: DaemonRecord) -> bool:
        """Whether a daemon whose device nobody shares should go now."""
        if record.state is not DaemonState.READY or record.suspect:
            return True
        return self._clock() - self._daemons.records.idle_since(record) >= IDLE_SECONDS

    def _note_lost(self, view: NodeView) -> None:
        """Write down whose limits are not kept any more."""
        with self._ledger.read() as db:
            stored = register.allocations(db)
        for before, now in zip(stored, with_lost_limits(stored, view.node), strict=True):
            if before != now:
                with self._ledger.write() as db:
                    register.set_grants(db, now.id, now.grants)
                    chronicle.limits_lost(db, self._clock(), now)

    def _end(self, record: DaemonRecord, session: str) -> None:
        slot = record.slot
        occupant = None if slot is None else Occupant(slot.profile, slot.placement)
        plan = Plan(f"nobody shares {record.device_uuid} any more", (StopMps(record.gpu_uuid, occupant),))
        plan_id = self._new_id()
        with self._ledger.write() as db:
            journal.open_plan(db, plan_id, plan, session=session, created=self._clock())
            steps = journal.step_records(db, plan_id, self._executor.repertoire.kinds)
        error: TrancheError | None = None
        try:
            self._executor.execute(plan_id, steps)
        except TrancheError as failed:
            error = failed
        status = records.PlanStatus.DONE if error is None else records.PlanStatus.UNDONE
        with self._ledger.write() as db:
            journal.close_plan(db, plan_id, status, ended=self._clock(), counted=False)
            if error is not None:
                chronicle.undone(db, self._clock(), plan_id, error, allocation_id="")


def _key(record: DaemonRecord) -> _Key:
    return record.gpu_uuid, record.slot


def _shared_by_mps(allocations: tuple[Allocation, ...]) -> Mapping[_Key, bool]:
    """The devices of which somebody holds a part by MPS, each with whether a part of it counts as limited."""
    found: dict[_Key, bool] = {}
    for allocation in allocations:
        for grant in allocation.grants:
            if isinstance(grant, Part) and grant.sharing is Sharing.MPS:
                key = grant.gpu_uuid, grant.slot
                found[key] = found.get(key, False) or not grant.unlimited
    return found
