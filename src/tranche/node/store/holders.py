"""Holders that no plan was made for: pods, of which others say that they have a device.

What they get is written in one transaction with the look at who has it now. A plan is written in the same way, so whichever
comes second finds the first: no device goes to somebody while a plan takes it away.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import assert_never

from tranche.core.allocation import Allocation, Grant, Phase, Slice, WholeGpu
from tranche.core.errors import GpuBusy
from tranche.core.keeper import Keeper, PodKeeper
from tranche.core.request import Request
from tranche.node.store import chronicle, journal, register
from tranche.node.store.journal import PlanRecord
from tranche.node.store.ledger import Ledger
from tranche.planning.steps import Step, TakesGpu, TakesInstance, TakesRoom, TakesSharing
from tranche.planning.steps.undo import StepStatus


class HolderRegister:
    """Writes of holders who are not processes. `clock` is seconds since the epoch."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        boundary: Callable[[], None],
    ) -> None:
        self.clock = clock
        self.new_id = new_id
        self._ledger = ledger
        self._boundary = boundary

    def add(
        self,
        keeper: Keeper,
        request: Request,
        grants: tuple[Grant, ...],
        superseded: Collection[str] = (),
        memory: Mapping[WholeGpu | Slice, int] | None = None,
    ) -> str:
        """Record that somebody holds these from now on; the allocation's id. Those superseded end with it.

        `memory` gives the bytes of each device that parts are granted of.
        GpuBusy when another allocation holds something of it, or an open plan is about to take it.
        """
        allocation = Allocation(self.new_id(), request, grants, Phase.ACTIVE, self.clock(), keeper=keeper)
        with self._ledger.write() as db:
            self.write_down(db, allocation, superseded, memory)
        self._boundary()
        return allocation.id

    def write_down(
        self,
        db: sqlite3.Connection,
        allocation: Allocation,
        superseded: Collection[str],
        memory: Mapping[WholeGpu | Slice, int] | None,
        plans: Sequence[PlanRecord] | None = None,
    ) -> None:
        """The same within a transaction of the caller's, who may have read the `open_plans` in it before."""
        for allocation_id in superseded:
            register.remove_allocation(db, allocation_id)
        _refuse_planned(self.open_plans(db) if plans is None else plans, allocation.grants)
        add_or_refuse(db, allocation, memory)

    def open_plans(self, db: sqlite3.Connection) -> tuple[PlanRecord, ...]:
        """Every plan without an end."""
        return journal.running_plans(db)

    def settle(
        self,
        removed: Collection[str],
        keepers: Mapping[str, Keeper],
        added: Sequence[Allocation],
        memory: Mapping[WholeGpu | Slice, int] | None = None,
    ) -> tuple[Allocation, ...]:
        """Write what has become known of holders, all or nothing; every allocation after it. `memory` as for `add`.

        What cannot be added, because somebody else has it by the register, is left out and said in an event: it stays with the
        one who had it first, and nobody is given it.
        """
        with self._ledger.write() as db:
            for allocation_id in removed:
                register.remove_allocation(db, allocation_id)
            for allocation_id, keeper in keepers.items():
                register.set_keeper(db, allocation_id, keeper)
            self.adopt(db, added, memory)
            settled = register.allocations(db)
        self._boundary()
        return settled

    def adopt(
        self,
        db: sqlite3.Connection,
        allocations: Sequence[Allocation],
        memory: Mapping[WholeGpu | Slice, int] | None = None,
    ) -> None:
        """Add what others say that they hold; what another holds already stays with the first, and is said in an event."""
        for allocation in allocations:
            try:
                add_or_refuse(db, allocation, memory)
            except GpuBusy as error:
                chronicle.held_twice(db, self.clock(), allocation, error)


def add_or_refuse(
    db: sqlite3.Connection, allocation: Allocation, memory: Mapping[WholeGpu | Slice, int] | None = None
) -> None:
    """Add an allocation to the register; GpuBusy, and nothing is written, when somebody else has something of it.

    `memory` as for `register.add_allocation`.
    """
    if isinstance(allocation.keeper, PodKeeper) and allocation.keeper.replicas:
        _refuse_counted_twice(db, allocation.keeper)
    db.execute("SAVEPOINT adding")
    try:
        register.add_allocation(db, allocation, memory)
    except sqlite3.IntegrityError as error:
        db.execute("ROLLBACK TO adding")
        wanted = ", ".join(map(_named, allocation.grants))
        raise GpuBusy(f"somebody else now holds a part of {wanted}", hint="see who: tranche ps") from error
    finally:
        db.execute("RELEASE adding")


def _refuse_counted_twice(db: sqlite3.Connection, keeper: PodKeeper) -> None:
    """Parts of one device are alike: only their ids tell which of them somebody has."""
    for other in register.allocations(db):
        held = other.keeper.replicas if isinstance(other.keeper, PodKeeper) else ()
        if twice := set(held).intersection(keeper.replicas):
            raise GpuBusy(f"somebody else now holds {', '.join(sorted(twice))}", hint="see who: tranche ps")


def _refuse_planned(plans: Sequence[PlanRecord], grants: Sequence[Grant]) -> None:
    for plan in plans:
        steps = [record.step for record in plan.steps if record.status is not StepStatus.NEEDLESS]
        for grant in grants:
            if any(takes(step, grant) for step in steps):
                raise GpuBusy(f"{_named(grant)} is about to be taken away: {plan.purpose}")


def takes(step: Step, grant: Grant) -> bool:
    """Whether the step takes something of what is granted."""
    if step.gpu_uuid != grant.gpu_uuid:
        return False
    for taking in step.takes:
        match taking:
            case TakesInstance(occupant) | TakesRoom(occupant):
                if grant.slot is None or grant.slot.placement.overlaps(occupant.placement):
                    return True
            case TakesSharing(of):
                if of is None or grant.slot is None or grant.slot.placement.overlaps(of.placement):
                    return True
            case TakesGpu():
                return True
            case _:
                assert_never(taking)
    return False


def _named(grant: Grant) -> str:
    return f"GPU {grant.gpu_uuid}" if grant.slot is None else str(grant.slot)
