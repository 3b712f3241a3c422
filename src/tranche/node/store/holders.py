"""Holders without a plan: pods that others report as having a device.

One transaction checks who has the device now and records the new holder. A plan is written in the same way, so the second always
finds the first: no device gets a holder while a plan takes it away.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence

from tranche.core.allocation import Allocation, Grant, Slice, WholeGpu
from tranche.core.errors import GpuBusy
from tranche.core.keeper import PodKeeper
from tranche.node.store import chronicle, journal, register
from tranche.node.store.journal import PlanRecord
from tranche.planning.steps import Step
from tranche.planning.steps.plan import StepStatus


def write_down(
    db: sqlite3.Connection,
    allocation: Allocation,
    superseded: Collection[str],
    memory: Mapping[WholeGpu | Slice, int] | None,
    plans: Sequence[PlanRecord] | None = None,
) -> None:
    """Record the holder of an allocation, which replaces those superseded; `memory` as for `register.add_allocation`.

    The caller may pass the open plans that it read in its transaction. Raises GpuBusy when another allocation holds some of it,
    or an open plan is about to take it.
    """
    for allocation_id in superseded:
        register.remove_allocation(db, allocation_id)
    _refuse_planned(journal.running_plans(db) if plans is None else plans, allocation.grants)
    add_or_refuse(db, allocation, memory)


def adopt(
    db: sqlite3.Connection,
    allocations: Sequence[Allocation],
    memory: Mapping[WholeGpu | Slice, int] | None,
    now: float,
) -> None:
    """Add reported allocations. If one is already held, the first holder keeps it, and an event says so."""
    for allocation in allocations:
        try:
            add_or_refuse(db, allocation, memory)
        except GpuBusy as error:
            chronicle.held_twice(db, now, allocation, error)


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
    return bool(step.takes) if grant.slot is None else step.meets(grant.slot.placement)


def _named(grant: Grant) -> str:
    return f"GPU {grant.gpu_uuid}" if grant.slot is None else str(grant.slot)
