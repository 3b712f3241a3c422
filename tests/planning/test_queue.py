"""may_start(): first come, first served among those that compete; no waiting among those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import FAMILY_BOARDS, gpu_on, node_views, requests_for, sharing_views, uncuttable_gpu, view_of
from tranche.core.allocation import NodeView, WholeGpu, WithheldDevice
from tranche.core.errors import AllocationUnknown, TrancheError
from tranche.core.request import Request, parse_request
from tranche.core.state import GpuProcess, MigMode
from tranche.planning.decide.allocate import Decision, Granted, Waiting, decide
from tranche.planning.decide.candidates import Candidate, candidate, gpus_needed
from tranche.planning.decide.queue import WaitingRequest, may_start, outlooks, startable

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
                if isinstance(candidate(earlier.request, gpu), Candidate) and not lacks_gpus(view, earlier.request):
                    with pytest.raises(TrancheError):
                        decide(view, earlier.request)


def lacks_gpus(view: NodeView, request: Request) -> bool:
    """Whether too few GPUs could serve it even with nobody on them, because others are lost: it holds nobody up."""
    return sum(isinstance(candidate(request, gpu), Candidate) for gpu in view.node) < gpus_needed(request)


def test_a_request_that_needs_a_lost_gpu_holds_nobody_up() -> None:
    lost = replace(gpu_on(A100, 1), lost=True)
    waiters = [WaitingRequest("large", parse_request(gpus="2")), WaitingRequest("small", parse_request(gpus="1"))]
    view = view_of(gpu_on(A100), lost)
    assert isinstance(may_start(view, waiters, "small"), Granted)
    waiting = may_start(view, waiters, "large")
    assert isinstance(waiting, Waiting)
    assert [each.reason for each in waiting.obstacles] == ["GpuLost"]


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


@pytest.mark.parametrize("faulty", [False, True])
def test_a_waiter_that_needs_a_closed_gpu_holds_nobody_up(faulty: bool) -> None:
    """An administrator has to open the GPU, or to repair it, before the first can start; then it is first again."""
    node = view_of(gpu_on(A100), gpu_on(A100, 1))
    closed = replace(node, withheld=(WithheldDevice(WholeGpu(node.node.gpus[0].uuid), "is cordoned", faulty=faulty),))
    waiters = [WaitingRequest("both", parse_request(gpus="2")), WaitingRequest("next", parse_request(gpus="1"))]
    assert isinstance(may_start(closed, waiters, "both"), Waiting)
    assert isinstance(may_start(closed, waiters, "next"), Granted)
    assert list(startable(closed, waiters)) == ["next"]
    assert isinstance(may_start(node, waiters, "next"), Waiting)
    assert isinstance(may_start(node, waiters, "both"), Granted)
    one = [WaitingRequest("one", parse_request(gpus="1")), *waiters[1:]]
    assert isinstance(may_start(closed, one, "next"), Waiting), "the open GPU serves the first"


def test_a_waiter_that_can_never_start_holds_nobody_up() -> None:
    waiters = [WaitingRequest("never", parse_request(gpus="3")), WaitingRequest("next", parse_request(gpus="1"))]
    assert isinstance(may_start(view_of(gpu_on(A100)), waiters, "next"), Granted)


def test_an_unknown_waiter_is_an_error() -> None:
    with pytest.raises(AllocationUnknown, match="w-9"):
        may_start(view_of(gpu_on(A100)), [], "w-9")


@given(st.data())
def test_who_is_startable_and_every_outlook_are_what_the_waiters_meet(data: st.DataObject) -> None:
    view = data.draw(node_views(max_gpus=3) | sharing_views(max_gpus=3))
    waiters = queue_of(data.draw(st.lists(requests_for(view), min_size=1, max_size=6)))
    expected = [_met(view, waiters, waiter.id) for waiter in waiters]
    may = [waiter.id for waiter, met in zip(waiters, expected, strict=True) if isinstance(met, Granted)]
    assert list(startable(view, waiters)) == may
    found = [str(each) if isinstance(each, TrancheError) else each for each in outlooks(view, waiters)]
    assert found == expected


def _met(view: NodeView, waiters: Sequence[WaitingRequest], waiter_id: str) -> Decision | str:
    try:
        return may_start(view, waiters, waiter_id)
    except TrancheError as error:
        return str(error)


def test_very_many_waiters_are_looked_at_once_for_each_different_request() -> None:
    view = view_of(gpu_on(A100, 0), gpu_on(A100, 1))
    requests = [parse_request(mig_profile=name) for name in ("7g.40gb", "1g.5gb", "2g.10gb")]
    waiters = queue_of([requests[number % 3] for number in range(10_000)])
    assert list(startable(view, waiters)) == ["w-0"]
    assert isinstance(may_start(view, waiters, "w-9999"), Waiting)


def queue_of(requests: Sequence[Request]) -> list[WaitingRequest]:
    return [WaitingRequest(f"w-{number}", request) for number, request in enumerate(requests)]
