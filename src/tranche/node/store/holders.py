"""Holders without a plan: pods that others report as having a device.

One transaction checks who has the device now and records the new holder. A plan is written in the same way, so the second always
finds the first: no device gets a holder while a plan takes it away.
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
    """Writes holders that are not processes. `clock` is seconds since the epoch."""

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
        """Record that `keeper` holds these grants from now on; returns the allocation's id. It replaces those superseded.

        `memory` gives the bytes of each device with granted parts.

        Raises GpuBusy when another allocation holds some of it, or an open plan is about to take it.
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
        """Like `add`, within the caller's transaction. The caller may pass the `open_plans` that it read in it."""
        for allocation_id in superseded:
            register.remove_allocation(db, allocation_id)
        _refuse_planned(self.open_plans(db) if plans is None else plans, allocation.grants)
        add_or_refuse(db, allocation, memory)

    def open_plans(self, db: sqlite3.Connection) -> tuple[PlanRecord, ...]:
        """Every open plan."""
        return journal.running_plans(db)

    def settle(
        self,
        removed: Collection[str],
        keepers: Mapping[str, Keeper],
        added: Sequence[Allocation],
        memory: Mapping[WholeGpu | Slice, int] | None = None,
    ) -> tuple[Allocation, ...]:
        """Write new knowledge of holders, all or nothing; returns every allocation afterwards. `memory` as for `add`.

        Leaves out an allocation if the register has another holder, and writes an event: the first holder keeps it.
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
        """Add reported allocations. If one is already held, the first holder keeps it, and an event says so."""
        for allocation in allocations:
            try:
                add_or_refuse(db, allocation, memory)
            except GpuBusy as error:
                chronicle.held_twice(db, self.clock(), allocation, error)


def add_or_refuse(
    db: sqlite3.Connection, allocation: Allocation, memory: Mapping[WholeGpu | Slice, int] | None = None
) -> None:
    """Add an allocation to the register. Raises GpuBusy, and writes nothing, when another allocation has some of it.


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
        raise GpuBusy(f"another share now holds a part of {wanted}", hint="list the shares with: tranche ps") from error
    finally:
        db.execute("RELEASE adding")


def _refuse_counted_twice(db: sqlite3.Connection, keeper: PodKeeper) -> None:
    """Parts of one device are alike: only their ids tell which one a holder has."""
    for other in register.allocations(db):
        held = other.keeper.replicas if isinstance(other.keeper, PodKeeper) else ()
        if twice := set(held).intersection(keeper.replicas):
            raise GpuBusy(
                f"another share now holds {', '.join(sorted(twice))}", hint="list the shares with: tranche ps"
            )


def _refuse_planned(plans: Sequence[PlanRecord], grants: Sequence[Grant]) -> None:
    for plan in plans:
        steps = [record.step for record in plan.steps if record.status is not StepStatus.NEEDLESS]
        for grant in grants:
            if any(takes(step, grant) for step in steps):
                raise GpuBusy(f"{_named(grant)} is about to be removed: {plan.purpose}")


def takes(step: Step, grant: Grant) -> bool:
    """Whether the step takes some of the grant."""
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
