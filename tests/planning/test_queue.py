"""may_start(): first come, first served among those that compete; no waiting among those that do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import FAMILY_BOARDS, gpu_on, node_views, requests_for, uncuttable_gpu, view_of
from tranche.core.errors import AllocationUnknown, TrancheError
from tranche.core.request import parse_request
from tranche.core.state import GpuProcess, MigMode
from tranche.planning.allocate import Granted, Waiting, decide
from tranche.planning.candidates import Candidate, candidate
from tranche.planning.queue import WaitingRequest, may_start

A100 = next(board for board in FAMILY_BOARDS if board.key == "A100-40GB")


@given(st.data())
def test_nobody_takes_a_gpu_that_an_earlier_waiter_wants(data: st.DataObject) -> None:
    view = data.draw(node_views())
    asked = data.draw(st.lists(requests_for(view), min_size=1, max_size=5))
    waiters = [WaitingRequest(f"w-{number}", request) for number, request in enumerate(asked)]
    for position, waiter in enumerate(waiters):
        try:
            decision = may_start(view, waiters, waiter.id)
        except TrancheError:
            continue
        if not isinstance(decision, Granted):
            continue
        for grant in decision.grants:
            gpu = view.node.gpu(grant.gpu_uuid)
            for earlier in waiters[:position]:
                if isinstance(candidate(earlier.request, gpu), Candidate):
                    with pytest.raises(TrancheError):
                        decide(view, earlier.request)


@given(st.data())
def test_the_first_waiter_gets_what_it_would_get_alone(data: st.DataObject) -> None:
    view = data.draw(node_views())
    first, second = data.draw(requests_for(view)), data.draw(requests_for(view))
    try:
        alone = decide(view, first)
    except TrancheError:
        return
    assert may_start(view, [WaitingRequest("w-1", first), WaitingRequest("w-2", second)], "w-1") == alone


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    busy = gpu_on(A100, mode=MigMode.ENABLED, instances=[])
    used = gpu_on(A100, 1, mode=MigMode.DISABLED, processes=[GpuProcess(7, "python")])
    waiters = [
        WaitingRequest("large", parse_request(gpus="2")),
        WaitingRequest("small", parse_request(mig_profile="1g.5gb")),
    ]
    decision = may_start(view_of(busy, used), waiters, "small")
    assert isinstance(decision, Waiting)
    assert [each.reason for each in decision.obstacles] == ["QueuedBehind", "QueuedBehind"]
    assert "large" in decision.obstacles[0].text


def test_requests_for_different_models_do_not_wait_for_each_other() -> None:
    used = uncuttable_gpu(1)
    view = view_of(gpu_on(A100), used)
    waiters = [
        WaitingRequest("first", parse_request(gpus="1", gpu_model="T4")),
        WaitingRequest("second", parse_request(gpu="0.5", gpu_model="A100")),
    ]
    assert isinstance(may_start(view, waiters, "second"), Granted)


def test_a_waiter_that_can_never_start_holds_nobody_up() -> None:
    waiters = [WaitingRequest("never", parse_request(gpus="3")), WaitingRequest("next", parse_request(gpus="1"))]
    assert isinstance(may_start(view_of(gpu_on(A100)), waiters, "next"), Granted)


def test_an_unknown_waiter_is_an_error() -> None:
    with pytest.raises(AllocationUnknown, match="w-9"):
        may_start(view_of(gpu_on(A100)), [], "w-9")
