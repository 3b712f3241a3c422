"""A recorded decision can be made again, by what was written down alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import FAMILY_BOARDS, gpu_on, node_views, requests, requests_for, sharing_views, view_of
from tranche.core.allocation import NodeView
from tranche.core.errors import UsageError
from tranche.core.request import Request, WholeGpus
from tranche.core.sharing import GpuPolicy, MachineSharing, Sharing
from tranche.core.state import NodeState
from tranche.planning.decide.queue import WaitingRequest
from tranche.planning.decide.recording import (
    RecordedDecision,
    RecordedRequest,
    answer,
    decision_from_dict,
    decision_to_dict,
)


@st.composite
def questions(draw: st.DrawFn) -> RecordedRequest:
    view = draw(node_views() | sharing_views())
    asked = draw(st.lists(st.one_of(requests_for(view), requests()), min_size=1, max_size=4))
    waiters = tuple(WaitingRequest(f"w-{number}", request) for number, request in enumerate(asked))
    return RecordedRequest(view, waiters, draw(st.sampled_from(waiters)).id, draw(st.booleans()))


def written_and_read(decision: RecordedDecision) -> RecordedDecision:
    return decision_from_dict(json.loads(json.dumps(decision_to_dict(decision))))


@settings(deadline=None)
@given(questions())
def test_what_was_recorded_is_decided_again_alike(question: RecordedRequest) -> None:
    recorded = RecordedDecision(1.5, question, answer(question))
    found = written_and_read(recorded)
    assert found == recorded
    assert answer(found.question) == recorded.outcome


@given(node_views(), requests())
def test_another_view_may_have_another_answer(view: NodeView, request: Request) -> None:
    """The answer is the planner's, not the record's: it is made from the question alone."""
    question = RecordedRequest(view, (WaitingRequest("w", request),), "w")
    lost = replace(view, node=replace(view.node, gpus=tuple(replace(gpu, lost=True) for gpu in view.node)))
    changed = replace(written_and_read(RecordedDecision(0.0, question, answer(question))).question, view=lost)
    assert answer(changed) == answer(replace(question, view=lost))


def test_what_devices_can_be_shared_by_and_the_administrators_word_are_recorded() -> None:
    gpu = gpu_on(FAMILY_BOARDS[0])
    means = MachineSharing(frozenset({Sharing.MPS}), {Sharing.MEMORY_LIMITS: "driver 580.65 is older than 615"}, 48)
    node = NodeState((gpu,), sharing=means)
    view = NodeView(node, uses={gpu.uuid: GpuPolicy.OFF})
    recorded = RecordedDecision(0.0, replace(EMPTY, view=view), answer(EMPTY))
    assert written_and_read(recorded) == recorded


def test_a_record_from_before_shares_has_no_means_and_no_word() -> None:
    old = json.loads(json.dumps(GOOD))
    del old["question"]["view"]["node"]["sharing"], old["question"]["view"]["uses"]
    assert decision_from_dict(old) == RecordedDecision(0.0, EMPTY, answer(EMPTY))


EMPTY = RecordedRequest(view_of(gpu_on(FAMILY_BOARDS[0])), (WaitingRequest("w", Request(WholeGpus(1))),), "w")
GOOD = decision_to_dict(RecordedDecision(0.0, EMPTY, answer(EMPTY)))


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {**GOOD, "kind": "Plan"},
        {**GOOD, "apiVersion": "tranche.dev/v9"},
        {**GOOD, "outcome": {}},
        {**GOOD, "outcome": {"Sung": {}}},
        {**GOOD, "time": "noon"},
        {**GOOD, "question": 7},
        {**GOOD, "question": {**GOOD["question"], "waiters": [{"id": "w"}]}},
        {**GOOD, "question": {**GOOD["question"], "waiter_id": None}},
        {**GOOD, "question": {**GOOD["question"], "waiter_id": "x"}},
    ],
)
def test_what_is_no_recorded_decision_is_refused(data: object) -> None:
    assert decision_from_dict(GOOD).question == EMPTY
    with pytest.raises(UsageError):
        decision_from_dict(data)
