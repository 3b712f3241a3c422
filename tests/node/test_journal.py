"""The journal of plans: what goes in comes out, and what has ended is dropped one day."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.strategies import boards, placed
from tests.support.length import cases
from tranche.core.errors import PlanInvalid
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName
from tranche.core.state import MigMode
from tranche.node.store import journal, records
from tranche.node.store.ledger import Ledger
from tranche.node.store.records import PlanStatus
from tranche.planning.steps import (
    CreateInstance,
    DestroyInstance,
    PriorState,
    ResetGpu,
    SetMigMode,
    Step,
    before_from_dict,
    before_to_dict,
    step_from_dict,
)
from tranche.planning.steps.plan import Plan, StepStatus, plan_from_dict, plan_to_dict

GPU, OTHER = "GPU-0", "GPU-1"


@st.composite
def steps(draw: st.DrawFn) -> Step:
    gpu = draw(st.sampled_from([GPU, OTHER]))
    kind = draw(st.sampled_from([SetMigMode, ResetGpu, DestroyInstance, CreateInstance]))
    if kind is SetMigMode:
        return SetMigMode(gpu, draw(st.booleans()))
    if kind is ResetGpu:
        return ResetGpu(gpu)
    profile = draw(st.sampled_from(placed(draw(boards()))))
    spot = Placement(draw(st.sampled_from(profile.starts)), profile.size)
    if kind is DestroyInstance:
        return DestroyInstance(gpu, profile.name, spot)
    return CreateInstance(gpu, profile.name, spot, draw(slices_of(profile.name)))


def slices_of(name: ProfileName) -> st.SearchStrategy[tuple[ProfileName, ...]]:
    single = ProfileName(name.slices, name.memory_gb, 1, name.added, name.removed)
    return st.sampled_from([(name,), (), (single,) * name.slices])


befores = st.builds(
    PriorState,
    st.sampled_from([MigMode.ENABLED, MigMode.DISABLED]),
    st.one_of(st.none(), boards().flatmap(lambda board: slices_of(placed(board)[0].name))),
    st.booleans(),
    st.text(max_size=5),
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.db")
    yield ledger
    ledger.close()


@given(steps())
def test_a_step_survives_being_written_down(step: Step) -> None:
    assert step_from_dict(step.to_dict()) == step


@given(befores)
def test_what_a_step_found_survives_being_written_down(before: PriorState) -> None:
    assert before_from_dict(before_to_dict(before)) == before


@given(st.lists(steps(), max_size=5).map(tuple))
def test_a_plan_survives_being_written_down(found: tuple[Step, ...]) -> None:
    plan = Plan("a purpose", found, {GPU: "abc"})
    assert plan_from_dict(plan_to_dict(plan)) == plan


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"apiVersion": "tranche.dev/v1", "kind": "Plan"},
        {"apiVersion": "tranche.dev/v2", "kind": "Plan", "purpose": "", "fingerprints": {}, "steps": []},
        {
            "apiVersion": "tranche.dev/v1",
            "kind": "Plan",
            "purpose": "",
            "fingerprints": {},
            "steps": [{"action": "Burn"}],
        },
        {
            "apiVersion": "tranche.dev/v1",
            "kind": "Plan",
            "purpose": "",
            "fingerprints": {},
            "steps": [{"gpu": "GPU-0"}],
        },
        {
            "apiVersion": "tranche.dev/v1",
            "kind": "Plan",
            "purpose": "",
            "fingerprints": {},
            "steps": [{"action": "DestroyInstance", "gpu": "GPU-0", "profile": "nonsense", "start": 0, "size": 1}],
        },
    ],
)
def test_what_is_no_plan_is_refused(data: object) -> None:
    with pytest.raises(PlanInvalid):
        plan_from_dict(data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=cases(30), deadline=None)
@given(st.lists(st.tuples(steps(), befores, st.sampled_from(StepStatus)), min_size=1, max_size=6))
def test_the_journal_says_of_each_step_what_was_written(
    ledger: Ledger, story: list[tuple[Step, PriorState, StepStatus]]
) -> None:
    with ledger.write() as db:
        db.execute("DELETE FROM plans")
        plan = Plan("purpose", tuple(step for step, _, _ in story))
        journal.open_plan(db, "p", plan, session="s", created=1.0)
        for ordinal, (_, before, status) in enumerate(story):
            if status is StepStatus.NEEDLESS:
                journal.write_needless(db, "p", ordinal)
            elif status is not StepStatus.PENDING:
                journal.write_intent(db, "p", ordinal, before)
                if status is StepStatus.DONE:
                    journal.write_done(db, "p", ordinal)
    with ledger.read() as db:
        (found,) = journal.running_plans(db)
        assert records.changing_gpus(db) == set(plan.gpu_uuids)
    assert (found.id, found.purpose, found.session, found.allocation_id) == ("p", "purpose", "s", "")
    assert found.gpu_uuids == tuple(sorted(plan.gpu_uuids))
    for record, (step, before, status) in zip(found.steps, story, strict=True):
        assert (record.step, record.status) == (step, status)
        assert record.before == (before if record.may_have_acted else None)


def open_plan(ledger: Ledger, name: str, *gpus: str, allocation_id: str = "") -> None:
    with ledger.write() as db:
        plan = Plan(name, tuple(ResetGpu(gpu) for gpu in gpus))
        journal.open_plan(db, name, plan, session="s", created=1.0, allocation_id=allocation_id)


def test_an_ended_plan_runs_no_longer_and_its_gpus_are_free(ledger: Ledger) -> None:
    open_plan(ledger, "one", GPU)
    open_plan(ledger, "two", OTHER)
    with ledger.write() as db:
        journal.close_plan(db, "one", PlanStatus.DONE, ended=2.0)
        assert [plan.id for plan in journal.running_plans(db)] == ["two"]
        assert records.changing_gpus(db) == {OTHER}


def test_a_plan_that_is_being_undone_is_still_open_and_says_so(ledger: Ledger) -> None:
    open_plan(ledger, "one", GPU)
    with ledger.write() as db:
        journal.begin_undo(db, "one")
        (plan,) = journal.running_plans(db)
        assert plan.status is PlanStatus.UNDOING
        assert records.changing_gpus(db) == {GPU}
        journal.close_plan(db, "one", PlanStatus.UNDONE, ended=2.0)
        assert journal.running_plans(db) == ()


def test_a_plan_for_an_allocation_marks_no_gpu_as_changing(ledger: Ledger) -> None:
    open_plan(ledger, "one", GPU, allocation_id="a")
    with ledger.read() as db:
        assert records.changing_gpus(db) == frozenset()


def test_old_plans_are_dropped_and_open_ones_are_not(ledger: Ledger) -> None:
    open_plan(ledger, "running", GPU)
    open_plan(ledger, "undoing", OTHER)
    with ledger.write() as db:
        journal.begin_undo(db, "undoing")
        for number in range(1_100):
            journal.open_plan(
                db, f"p{number}", Plan("x", (ResetGpu(GPU),)), session="s", created=1.0, allocation_id="a"
            )
            journal.close_plan(db, f"p{number}", PlanStatus.DONE, ended=2.0)
        left = [row[0] for row in db.execute("SELECT id FROM plans ORDER BY rowid")]
        steps_left = {row[0] for row in db.execute("SELECT plan_id FROM steps")}
    assert left[:2] == ["running", "undoing"]
    assert left[-1] == "p1099"
    assert len(left) <= 1_002
    assert steps_left == set(left)
