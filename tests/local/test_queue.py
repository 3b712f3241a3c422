"""Waiting in one process: patience, what is tried again, and what somebody else's trouble must not cost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.node.machines import Node, change, create, enable, node_of
from tests.node.processes import isolated
from tranche.core.errors import GpuBusy, NoRoom, WaitTimeout
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.local.queue import Queue
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.locks.interrupts import WaitInterrupted, heed_signals, ignore_signals
from tranche.planning.decide.allocate import Waiting

IN_USE, UNKNOWN = 19, 999
LONG = 10.0
"""In seconds: after this a request that is there has decided, and waits."""
WHOLE = Request(MigSlice(parse_profile("7g.40gb")))


@pytest.fixture
def a100(tmp_path: Path) -> Node:
    """One A100 40 GB, MIG mode off."""
    return node_of(tmp_path, "A100-40GB")


def acquire(host: Host, **options: object) -> HeldAllocation:
    settings: dict[str, object] = {"patience": WaitLimit(wait=False), **options}
    return Queue(host).acquire(WHOLE, command="work", pid=os.getpid(), **settings)  # type: ignore[arg-type]


@isolated
def test_what_another_program_disturbed_is_decided_again(a100: Node) -> None:
    with a100.host() as host:
        change(host, *enable(host.view().node.gpus[0]))
        a100.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", IN_USE, calls=1)
        held = acquire(host)
        assert [allocation.id for allocation in host.view().allocations] == [held.allocation.id]
        assert [event.name for event in host.events()].count("Undone") == 1


@isolated
def test_what_stays_disturbed_is_given_up_and_leaves_nothing(a100: Node) -> None:
    with a100.host() as host:
        change(host, *enable(host.view().node.gpus[0]))
        a100.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", IN_USE, calls=1_000)
        with pytest.raises(GpuBusy):
            acquire(host)
        view = host.view()
        assert (view.allocations, host.waiters()) == ((), ())
        assert view.node.gpus[0].instances == ()


@isolated
@pytest.mark.parametrize("when", ["before the decision", "after the promise"])
def test_nothing_is_changed_for_a_request_whose_time_is_over(a100: Node, when: str) -> None:
    """A driver that answers late may take longer to look at than the request waits."""
    now = [0.0]

    def pass_time(*_: object) -> None:
        now[0] = 100.0

    at = {"boundary": pass_time} if when == "after the promise" else {}
    with a100.host(**at) as host:
        record = pass_time if when == "before the decision" else None
        queue = Queue(host, monotonic=lambda: now[0], record=record)
        with pytest.raises(WaitTimeout, match="got no share within 5 s: the timeout expired"):
            queue.acquire(WHOLE, command="work", pid=os.getpid(), patience=WaitLimit(seconds=5.0))
        assert a100.taken() == []
        assert (host.view().allocations, host.waiters()) == ((), ())


@isolated
def test_nothing_is_changed_for_a_request_that_was_told_to_end_while_the_machine_was_looked_at(a100: Node) -> None:
    heed_signals()
    with a100.host() as host:
        queue = Queue(host, record=lambda *_: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(WaitInterrupted):
            queue.acquire(WHOLE, command="work", pid=os.getpid(), patience=WaitLimit())
        ignore_signals()
        assert a100.taken() == []
        assert (host.view().allocations, host.waiters()) == ((), ())


@isolated
def test_who_will_not_wait_is_told_why(a100: Node) -> None:
    with a100.host() as host, a100.host() as other:
        acquire(other)
        with pytest.raises(NoRoom, match="GPU 0") as caught:
            acquire(host)
        assert "tranche explain" in caught.value.hint
        assert host.waiters() == ()


@isolated
def test_who_waits_is_told_how_many_are_ahead_until_patience_ends(a100: Node) -> None:
    told: list[int] = []

    def note(outcome: Waiting, ahead: int, reasons: str) -> None:
        told.append(ahead)

    with a100.host() as host, a100.host() as other:
        acquire(other)
        first = other.enqueue(WHOLE, command="first", pid=os.getpid())
        with pytest.raises(WaitTimeout, match=r"0\.05 s"):
            acquire(host, patience=WaitLimit(seconds=0.05), waiting=note)
        assert [waiter.id for waiter in host.waiters()] == [first.id]
    assert set(told) == {1}


@isolated
def test_a_share_is_given_back_whatever_ails_the_machine(a100: Node) -> None:
    """Ringing the next waiter takes a look at the machine; that look may fail, the release may not."""
    with a100.host() as host, a100.host() as other:
        held = acquire(host)
        other.enqueue(WHOLE, command="next", pid=os.getpid())
        a100.machine.inject_error("nvmlDeviceGetCount_v2", UNKNOWN, calls=1)
        a100.machine.inject_error("nvmlDeviceGetUUID", UNKNOWN, calls=1)
        Queue(host).release(held.allocation.id, why="ended")
        a100.machine.clear_injections()
        assert host.view().allocations == ()


@isolated
def test_nobody_is_overtaken_by_a_request_for_the_same_gpu(a100: Node) -> None:
    with a100.host() as host, a100.host() as other:
        change(host, *enable(host.view().node.gpus[0]))
        change(host, create(host.view().node.gpus[0], "1g.5gb", 0))
        small = Request(MigSlice(parse_profile("1g.5gb")))
        held = Queue(host).acquire(small, command="small", pid=os.getpid(), patience=WaitLimit(wait=False))
        large = other.enqueue(WHOLE, command="large", pid=os.getpid())
        with pytest.raises(NoRoom, match=large.id):
            Queue(host, clock=lambda: time.time() + LONG).acquire(
                small, command="small", pid=os.getpid(), patience=WaitLimit(wait=False)
            )
        other.leave(large)
        Queue(host).acquire(small, command="small", pid=os.getpid(), patience=WaitLimit(wait=False))
        assert held.allocation.id in {allocation.id for allocation in host.view().allocations}


@isolated
def test_who_will_not_wait_lets_those_decide_who_have_only_just_asked(a100: Node) -> None:
    """What is kept for somebody who then gives up is free, and is given."""
    with a100.host() as host, a100.host() as other:
        ahead = other.enqueue(WHOLE, command="ahead", pid=os.getpid())
        looks = 0

        def clock() -> float:
            nonlocal looks
            looks += 1
            if looks == 4:
                other.leave(ahead)
            return time.time()

        held = Queue(host, clock=clock).acquire(WHOLE, command="work", pid=os.getpid(), patience=WaitLimit(wait=False))
        assert [allocation.id for allocation in host.view().allocations] == [held.allocation.id]
        assert looks >= 4


@isolated
def test_who_will_not_wait_is_refused_when_those_ahead_have_decided_to(a100: Node) -> None:
    with a100.host() as host, a100.host() as other:
        ahead = other.enqueue(WHOLE, command="ahead", pid=os.getpid())
        now = time.time()

        def clock() -> float:
            nonlocal now
            now += 0.5
            return now

        with pytest.raises(NoRoom, match=ahead.id):
            Queue(host, clock=clock).acquire(WHOLE, command="work", pid=os.getpid(), patience=WaitLimit(wait=False))
        assert [waiter.id for waiter in host.waiters()] == [ahead.id]
