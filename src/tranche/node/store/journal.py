"""The journal of plans: the intent of each step before it and its outcome after it, for recovery after a crash.

Separate totals keep the number and duration of changes across processes and restarts: the journal forgets them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from tranche.core.state import InstanceKey
from tranche.node.store.records import OpenPlan, PlanStatus, open_plans
from tranche.planning.steps import PriorState, before_from_dict, before_to_dict, step_from_dict
from tranche.planning.steps.plan import Plan, StepRecord, StepStatus

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, float("inf"))
"""Upper bounds in seconds for counting changes; the last takes all others."""


class ChangeKind(StrEnum):
    """LAYOUT: declared by an administrator. REQUEST: what a request needed."""

    LAYOUT = "layout"
    REQUEST = "request"


class ChangeStatus(StrEnum):
    """DONE; UNDONE after a failure; INTERRUPTED: its process died, and another cleaned up after it, at any later time."""

    DONE = "done"
    UNDONE = "undone"
    INTERRUPTED = "interrupted"


class ChangeSummary(NamedTuple):
    """The changes of one kind and outcome: their number by upper bound of duration, each counted once, and total seconds."""

    counts: Mapping[float, int] = MappingProxyType({})
    seconds: float = 0.0


def count_change(db: sqlite3.Connection, kind: ChangeKind, outcome: ChangeStatus, seconds: float) -> None:
    """Count an ended change, in the transaction that ends it. A clock set back never gives it a negative duration."""
    lasted = max(seconds, 0.0)
    bound = next(each for each in BOUNDS if lasted <= each)
    db.execute(
        "INSERT INTO change_totals VALUES (?, ?, ?, 1, ?) ON CONFLICT (kind, outcome, bound) "
        "DO UPDATE SET changes = changes + 1, seconds = seconds + excluded.seconds",
        (kind, outcome, bound, lasted),
    )


def change_totals(db: sqlite3.Connection) -> Mapping[tuple[ChangeKind, ChangeStatus], ChangeSummary]:
    """The totals of every kind and outcome, zero when nothing happened."""
    found: dict[tuple[ChangeKind, ChangeStatus], tuple[dict[float, int], float]] = {
        (kind, outcome): ({}, 0.0) for kind in ChangeKind for outcome in ChangeStatus
    }
    for kind, outcome, bound, changes, seconds in db.execute("SELECT * FROM change_totals"):
        place = (ChangeKind(kind), ChangeStatus(outcome))
        counts, before = found[place]
        found[place] = ({**counts, bound: changes}, before + seconds)
    return {place: ChangeSummary(counts, seconds) for place, (counts, seconds) in found.items()}


_KEPT_PLANS = 1_000


@dataclass(frozen=True, slots=True)
class PlanRecord(OpenPlan):
    """An open plan with its steps."""

    steps: tuple[StepRecord, ...]

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The GPUs that the plan touches, sorted: the order in which they are locked."""
        return tuple(sorted({record.step.gpu_uuid for record in self.steps}))


def being_made(plans: Iterable[PlanRecord]) -> frozenset[InstanceKey]:
    """The slots of instances that these plans are making. They are Tranche's even before the step's end is journaled."""
    return frozenset(
        key
        for plan in plans
        for record in plan.steps
        if record.before is not None and record.may_have_acted
        for key, ours in record.step.ownership(record.before).items()
        if ours
    )


def open_plan(
    db: sqlite3.Connection, plan_id: str, plan: Plan, *, session: str, created: float, allocation_id: str = ""
) -> None:
    """Journal a plan before its first step. Without an allocation, marks its GPUs as changing."""
    db.execute(
        "INSERT INTO plans VALUES (?, ?, ?, ?, ?, ?)",
        (plan_id, plan.purpose, created, session, allocation_id, PlanStatus.RUNNING),
    )
    db.executemany(
        "INSERT INTO steps VALUES (?, ?, ?, ?, NULL)",
        [(plan_id, ordinal, json.dumps(step.to_dict()), StepStatus.PENDING) for ordinal, step in enumerate(plan.steps)],
    )
    if not allocation_id:
        db.executemany("INSERT INTO changing_gpus VALUES (?, ?)", [(gpu, plan_id) for gpu in plan.gpu_uuids])


def write_intent(db: sqlite3.Connection, plan_id: str, ordinal: int, before: PriorState) -> None:
    """Journal that a step is about to act, and the state that it found."""
    _set_step(db, plan_id, ordinal, StepStatus.INTENDED, json.dumps(before_to_dict(before)))


def write_done(db: sqlite3.Connection, plan_id: str, ordinal: int) -> None:
    """Journal that a step acted and its effect was verified."""
    db.execute("UPDATE steps SET status = ? WHERE plan_id = ? AND ordinal = ?", (StepStatus.DONE, plan_id, ordinal))


def write_needless(db: sqlite3.Connection, plan_id: str, ordinal: int) -> None:
    """Journal that a step found its effect already present."""
    _set_step(db, plan_id, ordinal, StepStatus.NEEDLESS, None)


def _set_step(db: sqlite3.Connection, plan_id: str, ordinal: int, status: StepStatus, before: str | None) -> None:
    db.execute(
        "UPDATE steps SET status = ?, before = ? WHERE plan_id = ? AND ordinal = ?", (status, before, plan_id, ordinal)
    )


def begin_undo(db: sqlite3.Connection, plan_id: str) -> None:
    """Journal that a plan is being undone: from now on it can only end undone, even if all its steps were done."""
    db.execute("UPDATE plans SET status = ? WHERE id = ?", (PlanStatus.UNDOING, plan_id))


def close_plan(
    db: sqlite3.Connection,
    plan_id: str,
    status: PlanStatus,
    *,
    ended: float,
    interrupted: bool = False,
    counted: bool = True,
) -> None:
    """Journal a plan's end. Its GPUs are no longer changing; drops the oldest ended plans beyond 1,000.

    `ended` is seconds since the epoch; `interrupted` means that another process ends the plan. Plans that no user asked for are
    not `counted` as changes.
    """
    row = db.execute("SELECT created, allocation_id FROM plans WHERE id = ?", (plan_id,)).fetchone()
    if row is not None and counted:
        outcome = ChangeStatus.DONE if status is PlanStatus.DONE else ChangeStatus.UNDONE
        outcome = ChangeStatus.INTERRUPTED if interrupted else outcome
        count_change(db, ChangeKind.REQUEST if row[1] else ChangeKind.LAYOUT, outcome, ended - row[0])
    db.execute("UPDATE plans SET status = ? WHERE id = ?", (status, plan_id))
    db.execute("DELETE FROM changing_gpus WHERE plan_id = ?", (plan_id,))
    db.execute(
        "DELETE FROM plans WHERE status NOT IN (?, ?) AND rowid <= (SELECT max(rowid) FROM plans) - ?",
        (PlanStatus.RUNNING, PlanStatus.UNDOING, _KEPT_PLANS),
    )


def running_plans(db: sqlite3.Connection) -> tuple[PlanRecord, ...]:
    """Every open plan, oldest first. Raises PlanInvalid when one has a step of an unknown kind."""
    return tuple(
        PlanRecord(each.id, each.status, each.purpose, each.session, each.allocation_id, step_records(db, each.id))
        for each in open_plans(db)
    )


def step_records(db: sqlite3.Connection, plan_id: str) -> tuple[StepRecord, ...]:
    """The steps of a plan with their journal entries, in order. Raises PlanInvalid when one is of an unknown kind."""
    rows = db.execute("SELECT step, status, before FROM steps WHERE plan_id = ? ORDER BY ordinal", (plan_id,))
    return tuple(
        StepRecord(
            step_from_dict(json.loads(row[0])),
            StepStatus(row[1]),
            None if row[2] is None else before_from_dict(json.loads(row[2])),
        )
        for row in rows
    )
