"""What is known of all changes that ever ended: over processes, kills and the end of the journal's memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node.test_journal import open_plan
from tranche.node.store import journal, schema
from tranche.node.store.journal import BOUNDS, ChangeKind, ChangeStatus, ChangeSummary, change_totals, count_change
from tranche.node.store.ledger import Ledger
from tranche.node.store.records import PlanStatus

NOTHING = {(kind, outcome): ChangeSummary() for kind in ChangeKind for outcome in ChangeStatus}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.db")
    yield ledger
    ledger.close()


def database() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(db)
    return db


def test_before_the_first_change_every_kind_and_outcome_is_there_with_nothing() -> None:
    assert change_totals(database()) == NOTHING


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ChangeKind),
            st.sampled_from(ChangeStatus),
            st.floats(-10, 1e6) | st.sampled_from(BOUNDS[:-1]),
        )
    )
)
def test_each_change_is_counted_once_under_the_first_bound_that_holds_it(
    changes: Sequence[tuple[ChangeKind, ChangeStatus, float]],
) -> None:
    db = database()
    for change in changes:
        count_change(db, *change)
    found = change_totals(db)
    for place, totals in found.items():
        lasted = [max(seconds, 0.0) for kind, outcome, seconds in changes if (kind, outcome) == place]
        assert sum(totals.counts.values()) == len(lasted)
        assert totals.seconds == pytest.approx(sum(lasted))
        for bound in BOUNDS:
            under = sum(count for upper, count in totals.counts.items() if upper <= bound)
            assert under == sum(seconds <= bound for seconds in lasted)


@pytest.mark.parametrize(
    ("allocation", "status", "interrupted", "kind", "outcome"),
    [
        ("", PlanStatus.DONE, False, ChangeKind.LAYOUT, ChangeStatus.DONE),
        ("a", PlanStatus.DONE, False, ChangeKind.REQUEST, ChangeStatus.DONE),
        ("", PlanStatus.UNDONE, False, ChangeKind.LAYOUT, ChangeStatus.UNDONE),
        ("a", PlanStatus.UNDONE, True, ChangeKind.REQUEST, ChangeStatus.INTERRUPTED),
        ("", PlanStatus.DONE, True, ChangeKind.LAYOUT, ChangeStatus.INTERRUPTED),
    ],
)
def test_the_end_of_a_plan_is_counted_with_its_duration(
    ledger: Ledger,
    allocation: str,
    status: PlanStatus,
    interrupted: bool,
    kind: ChangeKind,
    outcome: ChangeStatus,
) -> None:
    open_plan(ledger, "one", "GPU-0", allocation_id=allocation)  # at 1.0
    with ledger.write() as db:
        journal.close_plan(db, "one", status, ended=4.0, interrupted=interrupted)
    with ledger.read() as db:
        assert change_totals(db) == {**NOTHING, (kind, outcome): ChangeSummary({5.0: 1}, 3.0)}


def test_a_plan_that_nobody_knows_is_no_change(ledger: Ledger) -> None:
    with ledger.write() as db:
        journal.close_plan(db, "one", PlanStatus.DONE, ended=4.0)
        assert change_totals(db) == NOTHING
