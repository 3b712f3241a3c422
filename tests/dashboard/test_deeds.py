"""An action does what its plan says, or nothing: also when the machine changes after the plan was compared, before the lock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.node.machines import Node, node_of, start_share
from tests.node.processes import isolated
from tranche.core.errors import StateMoved
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.dashboard.acting.actions import DashboardAction, LayoutAction, ReleaseAction
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.overview import overview_data
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.planning.decide.allocate import decide

SLICE = Request(MigSlice(parse_profile("1g.5gb")))


@pytest.fixture
def a100(tmp_path: Path) -> Node:
    return node_of(tmp_path, "A100-40GB")


def seen_by(host: Host) -> MachineSnapshot:
    view, queue = host.view(), host.waiters()
    return MachineSnapshot(1, 0.0, view, queue, frozenset(), overview_data(view, queue, ()), None)


def refused(action: DashboardAction, host: Host, plan: str) -> None:
    before, events, told = host.view(), host.events(), list[str]()
    with pytest.raises(StateMoved):
        action.do(host, plan, told.append)
    assert (host.view(), host.events(), told) == (before, events, [])


@isolated
def test_a_layout_is_applied_by_the_plan_that_was_confirmed_alone(a100: Node) -> None:
    with a100.host() as host:
        action, told = LayoutAction("all-1g.5gb"), list[str]()
        plan = action.plan(seen_by(host), host.places)
        other = LayoutAction("all-2g.10gb")
        other.do(host, other.plan(seen_by(host), host.places).digest, told.append)
        refused(action, host, plan.digest)
        told.clear()
        again = action.plan(seen_by(host), host.places)
        assert again.digest != plan.digest
        action.do(host, again.digest, told.append)
        assert told == [f"{where}: {step}" for where, step in again.steps]
        assert not action.plan(seen_by(host), host.places).possible


@isolated
def test_a_request_is_cancelled_by_the_plan_that_was_confirmed_alone(a100: Node) -> None:
    with a100.host() as host:
        ticket = host.enqueue(SLICE, command="work", pid=os.getpid())
        action = ReleaseAction(ticket.id)
        refused(action, host, "0" * 32)
        assert action.plan(seen_by(host), host.places).possible
        host.leave(ticket)


@isolated
def test_a_share_in_which_this_very_process_runs_is_not_taken_by_another_plan(a100: Node) -> None:
    with a100.host() as host:
        ticket = host.enqueue(SLICE, command="work", pid=os.getpid())
        held = start_share(host, ticket, lambda view: decide(view, SLICE))
        assert isinstance(held, HeldAllocation)
        refused(ReleaseAction(held.allocation.id), host, "0" * 32)
