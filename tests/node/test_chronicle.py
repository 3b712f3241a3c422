"""What the ledger tells of a machine's life: typed events, each with what caused it."""

from __future__ import annotations

import os

import pytest

from tests.node.machines import Node, change, create, enable, start_share
from tests.node.processes import isolated
from tranche.core.errors import TrancheError
from tranche.core.events import ChangeBegun, Event, PlanUndone, RequestCancelled, ShareGranted, ShareReleased, StepDone
from tranche.core.keeper import Actor
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.planning.decide.allocate import decide
from tranche.planning.steps import step_from_dict

ADA = Actor("dashboard", "ada")
SLICE = Request(MigSlice(parse_profile("1g.5gb")))


def serve(host: Host) -> HeldAllocation:
    ticket = host.enqueue(SLICE, command="work", pid=os.getpid())
    held = start_share(host, ticket, lambda view: decide(view, SLICE))
    assert isinstance(held, HeldAllocation)
    return held


def of_kind(host: Host, kind: type) -> list[Event]:
    return [event for event in host.events() if isinstance(event.data, kind)]


@isolated
def test_a_change_is_the_cause_of_its_steps_and_of_its_end(a100: Node) -> None:
    with a100.host() as host:
        steps = enable(host.view().node.gpus[0])
        change(host, *steps, purpose="on")
        (begun,) = of_kind(host, ChangeBegun)
        assert isinstance(begun.data, ChangeBegun)
        assert (begun.data.purpose, begun.cause) == ("on", None)
        done = of_kind(host, StepDone)
        assert [event.cause for event in done] == [begun.position] * 2
        data = [event.data for event in done]
        assert [step_from_dict(each.step) for each in data if isinstance(each, StepDone)] == list(steps)
        assert {each.plan_id for each in data if isinstance(each, StepDone)} == {begun.data.plan_id}


@isolated
def test_a_failure_says_of_which_change_on_which_gpu_and_why(a100: Node) -> None:
    with a100.host() as host:
        gpu = host.view().node.gpus[0]
        change(host, *enable(gpu))
        a100.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", 999, calls=1)
        with pytest.raises(TrancheError):
            change(host, create(host.view().node.gpus[0], "1g.5gb", 0))
        begun, (undone,) = of_kind(host, ChangeBegun)[-1], of_kind(host, PlanUndone)
        assert isinstance(begun.data, ChangeBegun)
        assert undone.data == PlanUndone(begun.data.plan_id, "HardwareError", gpu.uuid)
        assert undone.cause == begun.position


@isolated
def test_a_share_is_told_with_request_grants_and_plan_and_causes_its_release(a100: Node) -> None:
    with a100.host() as host:
        held = serve(host)
        host.release(held.allocation.id, why="ended")
        again = serve(host)
        first, second = of_kind(host, ShareGranted)
        assert isinstance(first.data, ShareGranted)
        assert isinstance(second.data, ShareGranted)
        assert (first.data.request, first.data.grants) == (SLICE, held.allocation.grants)
        assert second.data.grants == again.allocation.grants
        steps = of_kind(host, StepDone)
        assert {event.data.plan_id for event in steps if isinstance(event.data, StepDone)} == {first.data.plan_id}
        assert {event.allocation_id for event in steps} == {held.allocation.id}
        assert second.data.plan_id == "", "nothing had to be cut"
        (released,) = of_kind(host, ShareReleased)
        assert (released.data, released.cause) == (ShareReleased("ended"), first.position)


@isolated
def test_what_an_actor_does_names_him(a100: Node) -> None:
    with a100.host() as host:
        host.actor = ADA
        change(host, *enable(host.view().node.gpus[0]), purpose="on")
        (begun,) = of_kind(host, ChangeBegun)
        assert isinstance(begun.data, ChangeBegun)
        assert (begun.data.actor, begun.message) == (ADA, "on (ada, by the dashboard)")
        held = serve(host)
        host.release(held.allocation.id, why="taken back")
        (released,) = of_kind(host, ShareReleased)
        assert released.data == ShareReleased("taken back", ADA)
        ticket = host.enqueue(SLICE, command="work", pid=os.getpid())
        host.cancel(ticket.id)
        (cancelled,) = of_kind(host, RequestCancelled)
        assert cancelled.data == RequestCancelled(ticket.id, ADA)
        host.leave(ticket)
