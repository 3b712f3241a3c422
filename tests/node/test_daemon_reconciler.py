"""Whoever looks after MPS daemons judges by what was seen, and of what came later says nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.node.machines import Node, change, start_share
from tests.node.processes import Child, isolated
from tests.node.test_mps_daemons import GIB, asked, end, nothing_left, only, processes_of, share, short, start, t4
from tranche.core.allocation import FractionalShare, NodeView, Phase, WholeGpu
from tranche.core.errors import GpuBusy, MpsFailed, StateMoved, TrancheError
from tranche.core.events import LimitsLost, PlanUndone
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import GpuMemory, Isolation, Request
from tranche.core.sharing import Sharing
from tranche.core.state import ComputeMode
from tranche.node.host import Host
from tranche.node.mps.mps_records import IDLE_SECONDS, PAUSE_SECONDS
from tranche.node.recovery.daemon_reconciler import DaemonReconciler
from tranche.node.store import register
from tranche.planning.decide.allocate import Granted
from tranche.planning.steps.plan import Plan

__all__ = ["short", "t4"]  # fixtures


def look_after(host: Host, view: NodeView, working: frozenset[str] = frozenset(), *, whole: bool = False) -> None:
    """Look after the daemons, by a view that was taken before."""
    executor = cast(Any, None)
    host.clock, host.new_id = lambda: 1.0, lambda: "p"
    care = DaemonReconciler(host, executor)
    care.look_after(view, working, lambda: "session", whole=whole)


@isolated
@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.ACTIVE])
def test_a_share_that_became_active_since_the_view_keeps_its_limits(t4: Node, phase: Phase) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        now = host.view()
        (held,) = now.allocations
        gpu = replace(now.node.gpus[0], daemons=())
        other = WholeGpu("GPU-other")
        another = host.daemons.records.all()[0]._replace(gpu_uuid=other.gpu_uuid, device_uuid=other.gpu_uuid)
        host.daemons.records.write(another._replace(fault="it hangs", wedged=True))
        with host.ledger.write() as db:
            neighbour = held._replace(id="other", grants=(FractionalShare(other, 3 * GIB, Sharing.MPS),))
            register.add_allocation(db, neighbour, {other: 15 * GIB})
        allocations = (held._replace(phase=phase), neighbour)
        before = replace(now, node=replace(now.node, gpus=(gpu,)), allocations=allocations)
        look_after(host, before, frozenset({gpu.uuid}) if phase is Phase.ACTIVE else frozenset())
        with host.ledger.read() as db:
            stored = {each.id: each for each in register.allocations(db)}
        assert stored["held"].grants == held.grants
        assert not [event for event in host.events() if isinstance(event.data, LimitsLost)]


# A daemon that failed is not started anew beneath those who share its device


def let_in(host: Host, refused: type[TrancheError], decided: Callable[[], None], begun: Callable[[], None]) -> None:
    """Try to let somebody in for whom the limit must be raised; it is refused, and of him nothing is left."""
    part = FractionalShare(WholeGpu(only(host).uuid), 5 * GIB, Sharing.MPS)
    ticket = host.enqueue(Request(GpuMemory(part.memory)), command="train.py", pid=os.getpid())
    with pytest.raises(refused):
        start_share(
            host,
            ticket,
            lambda view: Granted((part,), Plan("a part"), part.mechanism, "a part"),
            decided=decided,
            progress=lambda gpu, step: begun(),
        )
    host.leave(ticket)
    assert [each.id for each in host.view().allocations] == ["held"]


def nothing() -> None:
    pass


@isolated
@pytest.mark.parametrize("late", [False, True])
def test_a_daemon_that_died_is_not_started_anew_beneath_who_shares(t4: Node, late: bool) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        servers = set(asked(host, "get_server_list").split())
        (record,) = host.daemons.records.all()

        def dies() -> None:
            end(record.pid)

        let_in(host, StateMoved if late else GpuBusy, nothing if late else dies, dies if late else nothing)
        assert host.view().allocations[0].grants[0].walls.isolation is Isolation.NONE
        assert {str(pid) for pid in processes_of(t4)} <= servers


@isolated
@pytest.mark.parametrize("late", [False, True])
def test_a_daemon_that_is_wedged_is_not_ended_beneath_who_shares(t4: Node, late: bool) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        (record,) = host.daemons.records.all()

        def wedges() -> None:
            host.daemons.records.write(record._replace(fault="it hangs", wedged=True))

        let_in(host, StateMoved if late else GpuBusy, nothing if late else wedges, wedges if late else nothing)
        assert record.pid in processes_of(t4)
        (daemon,) = host.daemons.records.all()
        assert daemon.wedged


# Suspicion is noted before a share is free


@isolated
@pytest.mark.parametrize("how", ["released", "settled"])
def test_a_kill_while_a_share_is_freed_loses_no_suspicion(t4: Node, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def free() -> None:
        really = register.remove_allocation

        def removed_and_killed(db: sqlite3.Connection, allocation_id: str) -> bool:
            (record,) = host.daemons.records.all()
            assert record.suspect, "the share is free after this"
            really(db, allocation_id)
            os.kill(os.getpid(), signal.SIGKILL)
            return True

        monkeypatch.setattr(register, "remove_allocation", removed_and_killed)
        with t4.host() as host:
            if how == "released":
                host.release("held", why="killed")
            else:
                host.view()

    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        if how == "settled":
            with host.ledger.write() as db:
                register.set_keeper(db, "held", ProcessKeeper(2**22 - 1, 1))
        child = Child(free)
        assert child.wait() == -signal.SIGKILL
        (record,) = host.daemons.records.all()
        assert record.suspect


# What cannot be ended now is not tried at each look


def undone(host: Host) -> int:
    """How many events say that something failed."""
    return len([event for event in host.events() if isinstance(event.data, PlanUndone)])


@isolated
def test_a_daemon_that_does_not_end_is_tried_again_after_a_while(t4: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise MpsFailed("it lives on")

    now = time.time()
    with t4.host(clock=lambda: now) as host:
        change(host, start(only(host)))
        (record,) = host.daemons.records.all()
        host.daemons.records.write(record._replace(suspect=True))
        with monkeypatch.context() as patched:
            patched.setattr(host.daemons, "stop", fails)
            for expected in (1, 2):
                for _ in range(3):
                    host.view()
                    assert undone(host) == expected
                now += PAUSE_SECONDS
        nothing_left(t4, host)
        assert undone(host) == 2


@isolated
def test_a_daemon_waits_for_its_gpu_to_answer(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        (record,) = host.daemons.records.all()
        now = host.view()
        host.daemons.records.write(record._replace(suspect=True))
        lost = replace(now.node.gpus[0], lost=True)
        # To end it takes an executor, and there is none.
        look_after(host, replace(now, node=replace(now.node, gpus=(lost,))))
        assert record.pid in processes_of(t4)


@isolated
def test_a_daemon_ends_when_its_gpu_is_not_in_the_machine_any_more(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        (record,) = host.daemons.records.all()
        now = host.view()
        host.daemons.records.write(record._replace(suspect=True))
        without = replace(now, node=replace(now.node, gpus=()))
        look_after(host, without)
        assert record.pid in processes_of(t4), "somebody may be shown less than there is"
        look_after(host, without, whole=True)
        assert processes_of(t4) == []
        (left,) = host.daemons.records.all()
        assert left.mode_before is ComputeMode.DEFAULT, "it may come back before the machine starts again"
    with t4.host(clock=lambda: time.time() + 10 * IDLE_SECONDS) as later:
        later.view()
        nothing_left(t4, later)
