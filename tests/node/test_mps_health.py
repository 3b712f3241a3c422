"""Before anybody is let in by MPS a client is sent ahead: a server that hangs, is stopped or does not start lets nobody in."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.local.test_parts import admit, part_of
from tests.node.machines import Node, change, start_share
from tests.node.processes import isolated
from tests.node.test_mps_daemons import GIB, asked, cut, nothing_left, only, place_of, share, short, start, t4
from tranche.core.allocation import Allocation, FractionalShare, Phase, Slice, WholeGpu
from tranche.core.errors import GpuBusy, MpsFailed, WaitTimeout
from tranche.core.events import DaemonFault, DaemonRecovered, LimitsLost, PlanUndone
from tranche.core.keeper import PodKeeper
from tranche.core.request import GpuMemory, Isolation, Request
from tranche.core.sharing import Sharing
from tranche.core.state import DaemonState, unavailable
from tranche.local import watches
from tranche.local.run import limits_changed
from tranche.local.watches import watching_limits
from tranche.node.health.checkup import check_daemons
from tranche.node.host import Host
from tranche.node.mps import mps_daemons
from tranche.node.state.session import process_stopped
from tranche.node.store import register
from tranche.planning.decide.allocate import Granted
from tranche.planning.explain.explanation import explain
from tranche.planning.steps import StartMps
from tranche.planning.steps.plan import Plan

__all__ = ["cut", "short", "t4"]  # fixtures


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hangs does so for ever; to see that takes no ten seconds."""
    monkeypatch.setattr(mps_daemons, "JOIN_SECONDS", 1.0)


def faults(host: Host) -> list[str]:
    """What events said of daemons that let nobody in."""
    return [event.data.fault for event in host.events() if isinstance(event.data, DaemonFault)]


def hint_of_doctor(host: Host) -> str:
    """What to do about the one thing that is wrong with daemons; nothing is put in order before."""
    with host.ledger.read() as db:
        allocations = register.allocations(db)
    (found,) = check_daemons(host.observe(), allocations, host.daemons.records)
    return found.hint


def ask_for_part(host: Host, memory: int = 3 * GIB, seconds: float | None = None) -> None:
    """Ask for a part where somebody has one already; the place in the queue is given up whatever happens."""
    part = part_of(host, memory)
    ticket = host.enqueue(Request(GpuMemory(part.memory)), command="train.py", pid=os.getpid())
    try:
        start_share(host, ticket, lambda view: Granted((part,), Plan("p"), part.mechanism, "a part"), seconds=seconds)
    finally:
        host.leave(ticket)


def held(host: Host) -> list[str]:
    return [each.id for each in host.view().allocations]


# A server that hangs says that it is well


@isolated
@pytest.mark.parametrize("memory", [3 * GIB, 5 * GIB])
def test_nobody_is_let_in_to_a_server_that_hangs_and_it_is_replaced_when_it_is_empty(t4: Node, memory: int) -> None:
    with t4.host() as host:
        first = admit(host, part_of(host))
        t4.machine.inject_error("mpsServerHangs", 999)
        with pytest.raises(GpuBusy, match="did not respond"):
            ask_for_part(host, memory)
        assert held(host) == [first.allocation.id]
        assert "did not respond" in unavailable(only(host), None)
        assert only(host).daemons[0].state is DaemonState.FAULT
        assert len(faults(host)) == 1
        with pytest.raises(GpuBusy, match="did not respond"):
            ask_for_part(host, memory)
        assert hint_of_doctor(host).startswith("end all shares of the device")
        host.release(first.allocation.id, why="it ended")
        host.view()
        nothing_left(t4, host)
        ask_for_part(host, memory)
        assert len(held(host)) == 1
        assert len(faults(host)) == 1


@isolated
def test_an_idle_server_that_hangs_is_replaced_at_once(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        (before,) = host.daemons.records.all()
        t4.machine.inject_error("mpsServerHangs", 999)
        with pytest.raises(GpuBusy):
            ask_for_part(host)
        ask_for_part(host)
        (now,) = host.daemons.records.all()
        assert now.pid != before.pid


@isolated
def test_too_little_time_to_tell_is_no_fence(t4: Node) -> None:
    with t4.host() as host:
        first = admit(host, part_of(host))
        t4.machine.inject_error("mpsServerHangs", 999)
        with pytest.raises(WaitTimeout, match=r"did not respond within 0\.5 s"):
            ask_for_part(host, seconds=0.5)
        assert held(host) == [first.allocation.id]
        assert unavailable(only(host), None) == ""


@isolated
def test_a_pod_is_not_let_in_either_and_leaves_nothing(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        share(host, WholeGpu(only(host).uuid))
        t4.machine.inject_error("mpsServerHangs", 999)
        part = FractionalShare(WholeGpu(only(host).uuid), 3 * GIB, Sharing.MPS)
        keeper = PodKeeper("nvidia.com/gpu.shared", kubelet="1", replicas=("r1",))
        pod = Allocation("pod", Request(GpuMemory(part.memory)), (part,), Phase.ACTIVE, 1.0, keeper=keeper)
        for _ in range(2):
            with pytest.raises(GpuBusy, match="did not respond"):
                host.hand_over(pod)
            assert held(host) == ["held"]


# One that is stopped is seen at once, and only for as long


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while not process_stopped(pid):
        time.sleep(0.01)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@isolated
@pytest.mark.parametrize("who", ["server", "daemon"])
def test_one_that_is_stopped_lets_nobody_in_until_it_goes_on(t4: Node, who: str) -> None:
    with t4.host() as host:
        first = admit(host, part_of(host))
        (record,) = host.daemons.records.all()
        (server,) = host.daemons.process(record.device_uuid).servers()
        with stopped(server.pid if who == "server" else record.pid):
            assert "is stopped" in unavailable(host.observe_gpu(record.gpu_uuid), None)
            assert f"kill -CONT {server.pid if who == 'server' else record.pid}" in hint_of_doctor(host)
            with pytest.raises(GpuBusy, match="is stopped"):
                ask_for_part(host)
            assert held(host) == [first.allocation.id]
            assert ["is stopped" in each for each in faults(host)] == [True]
        ask_for_part(host)
        told = [type(event.data) for event in host.events() if isinstance(event.data, DaemonFault | DaemonRecovered)]
        assert told == [DaemonFault, DaemonRecovered]


@isolated
@pytest.mark.parametrize("who", ["server", "daemon"])
def test_an_idle_one_that_is_stopped_is_replaced(t4: Node, who: str) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        (record,) = host.daemons.records.all()
        (server,) = host.daemons.process(record.device_uuid).servers()
        stop(server.pid if who == "server" else record.pid)
        assert hint_of_doctor(host).startswith("the device has no shares")
        host.view()
        nothing_left(t4, host)


# One without sockets is passed by, and says nothing


@isolated
def test_nobody_is_let_in_beside_a_daemon_whose_sockets_are_gone(cut: Node) -> None:
    with cut.host() as host:
        gpu = only(host)
        place = Slice(gpu.uuid, place_of(gpu).profile, place_of(gpu).placement)
        part = FractionalShare(place, 4 * GIB, Sharing.MPS)
        admit(host, part)
        (record,) = host.daemons.records.all()
        shutil.rmtree(host.daemons.records.pipes(record.device_uuid))
        with pytest.raises(GpuBusy, match="has died or cannot be found"):
            admit(host, part)
        (left,) = host.view().allocations
        assert left.grants[0].walls.isolation is Isolation.NONE
        assert [event for event in host.events() if isinstance(event.data, LimitsLost)]
        host.release(left.id, why="it ended")
        host.view()
        nothing_left(cut, host)


@isolated
def test_an_idle_daemon_whose_sockets_are_gone_is_replaced(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        (record,) = host.daemons.records.all()
        shutil.rmtree(host.daemons.records.pipes(record.device_uuid))
        ask_for_part(host)
        (now,) = host.daemons.records.all()
        assert now.pid != record.pid


# One that does not start is undone


@isolated
@pytest.mark.parametrize("calls", [1, 999])
def test_a_server_that_does_not_start_is_met_by_nobody(t4: Node, calls: int) -> None:
    with t4.host() as host:
        t4.machine.inject_error("mpsServerStart", 999, calls=calls)
        with pytest.raises(MpsFailed, match="805"):
            ask_for_part(host)
        assert held(host) == []
        nothing_left(t4, host)
        assert [event for event in host.events() if isinstance(event.data, PlanUndone)]
        t4.machine.clear_injections()
        ask_for_part(host)
        assert len(held(host)) == 1


@isolated
def test_a_server_that_does_not_start_in_a_slice_is_met_by_nobody(cut: Node) -> None:
    with cut.host() as host:
        gpu = only(host)
        cut.machine.inject_error("mpsServerStart", 999, calls=999)
        with pytest.raises(MpsFailed, match="805"):
            change(host, StartMps(gpu.uuid, place_of(gpu), 4 * GIB))
        nothing_left(cut, host)


@isolated
def test_a_server_that_died_and_does_not_start_again_lets_nobody_in(t4: Node) -> None:
    with t4.host() as host:
        first = admit(host, part_of(host))
        (record,) = host.daemons.records.all()
        (server,) = host.daemons.process(record.device_uuid).servers()
        t4.machine.inject_error("mpsServerStart", 999, calls=999)
        os.kill(server.pid, signal.SIGKILL)
        while server.lives:
            time.sleep(0.01)
        with pytest.raises(GpuBusy, match="refused a client"):
            ask_for_part(host)
        assert held(host) == [first.allocation.id]


# Whoever comes to its socket can set its limits


@isolated
@pytest.mark.parametrize(
    "command",
    [
        "set_device_pinned_mem_limit {server} 0 15G",
        "set_device_pinned_mem_limit {server} 0 400M",
        "set_default_device_pinned_mem_limit 0 15G",
        "set_active_thread_percentage {server} 10",
        "set_default_active_thread_percentage 10",
        "set_device_pinned_mem_limit {server} 0 0G",
        "set_default_device_pinned_mem_limit 0 0G",
        "set_default_device_pinned_mem_limit {uuid} 15G",
        "set_device_pinned_mem_limit {server} {uuid} 4G",
        "set_active_thread_percentage {server} 99.9",
    ],
)
def test_nobody_is_let_in_by_a_daemon_whose_limits_somebody_has_changed_and_who_is_there_is_unlimited(
    t4: Node, command: str
) -> None:
    with t4.host() as host:
        first = admit(host, part_of(host))
        (server,) = asked(host, "get_server_list").split()
        asked(host, command.format(server=server, uuid=only(host).uuid))
        with suppress(GpuBusy):
            ask_for_part(host)
        (left,) = host.view().allocations
        assert (left.id, left.grants[0].walls.isolation) == (first.allocation.id, Isolation.NONE)
        with host.ledger.read() as db:
            assert register.allocations(db)[0].grants == left.grants
        (lost,) = [event for event in host.events() if isinstance(event.data, LimitsLost)]
        assert lost.message.startswith("the limits of its device's MPS daemon were changed")
        assert ("compute ceiling is" if "percentage" in command else "memory limit is") in lost.message
        assert "nothing limits its memory" not in lost.message
        assert "its limits were changed" in unavailable(only(host), None)
        assert len(faults(host)) == 1
        host.release(first.allocation.id, why="it ended")
        host.view()
        nothing_left(t4, host)


@isolated
def test_who_only_looks_hears_of_changed_limits_from_the_daemon_and_writes_nothing_down(t4: Node) -> None:
    with t4.host() as host:
        admit(host, part_of(host))
        asked(host, "set_default_device_pinned_mem_limit 0 15G")
        before = host.daemons.records.all()
        seen = host.daemons.view_as_said(host.view())
        assert "its limits were changed" in unavailable(seen.node.gpus[0], None)
        assert [each.grants[0].walls.isolation for each in seen.allocations] == [Isolation.NONE]
        answer = explain(seen, Request(GpuMemory(part_of(host).memory)))
        assert answer.granted is None
        assert "its limits were changed" in str(answer.gpus[0].text)
        assert host.daemons.records.all() == before
        assert faults(host) == []


@isolated
def test_who_cannot_ask_a_daemon_knows_nothing_of_it(t4: Node, tmp_path: Path) -> None:
    """A cron job, say, whose PATH lacks the driver's programs: a healthy daemon stays healthy, and one at fault stays so."""
    with t4.host() as host:
        admit(host, part_of(host))
        (before,) = host.daemons.records.all()
    with t4.host(environment={**os.environ, **t4.machine.environment(), "PATH": str(tmp_path)}) as host:
        for record in (before, before._replace(fault="it is broken")):
            host.daemons.records.write(record)
            host.daemons.look([record], 5.0)
            assert host.daemons.news([record], 5.0) == ()
            assert host.daemons.records.all() == (record,)


@isolated
def test_what_a_daemon_says_while_somebody_raises_its_limit_is_no_news(t4: Node) -> None:
    with t4.host() as host:
        admit(host, part_of(host))
        (record,) = host.daemons.records.all()
        change(host, start(only(host), 5 * GIB))
        assert host.daemons.news([record], 5.0) == ()
        assert host.daemons.view_as_said(host.view()) == host.view()


@isolated
def test_a_share_that_raises_the_limit_is_no_change_by_somebody(t4: Node) -> None:
    with t4.host() as host:
        admit(host, part_of(host))
        admit(host, part_of(host, 5 * GIB))
        ask_for_part(host)
        assert [each.grants[0].walls.isolation for each in host.view(thorough=True).allocations] == [Isolation.SOFT] * 3
        assert faults(host) == []


@isolated
@pytest.mark.parametrize("told", [3 * GIB, 6 * GIB, 5 * GIB])
def test_who_is_killed_while_he_raises_the_limit_has_changed_nothing_behind_anybodys_back(t4: Node, told: int) -> None:
    with t4.host() as host:
        admit(host, part_of(host))
        (record,) = host.daemons.records.all()
        host.daemons.records.write(record._replace(raising=5 * GIB))
        host.daemons.process(record.device_uuid).control.limit_memory(told)
        assert not limits_changed(host, record._replace(raising=5 * GIB))
        view = host.view(thorough=True)
        assert [each.grants[0].walls.isolation for each in view.allocations] == [Isolation.SOFT]
        assert faults(host) == []
        (now,) = host.daemons.records.all()
        assert (now.limit, now.raising) == (5 * GIB, 0)
        assert asked(host, "get_default_device_pinned_mem_limit 0").strip() == "5G"
        asked(host, "set_default_device_pinned_mem_limit 0 15G")
        assert host.view(thorough=True).allocations[0].grants[0].walls.isolation is Isolation.NONE


@isolated
def test_a_limit_that_somebody_set_is_not_overwritten_by_who_raises_it(t4: Node) -> None:
    with t4.host() as host:
        admit(host, part_of(host))
        asked(host, "set_default_device_pinned_mem_limit 0 15G")
        with pytest.raises(GpuBusy, match="its limits were changed"):
            change(host, start(only(host), 5 * GIB))
        assert host.view().allocations[0].grants[0].walls.isolation is Isolation.NONE


@isolated
def test_a_server_that_was_started_anew_has_the_limits_of_servers_to_come(t4: Node) -> None:
    with t4.host() as host:
        admit(host, part_of(host))
        admit(host, part_of(host, 5 * GIB))  # its server has a limit of its own now
        (record,) = host.daemons.records.all()
        (server,) = host.daemons.process(record.device_uuid).servers()
        os.kill(server.pid, signal.SIGKILL)
        while server.lives:
            time.sleep(0.01)
        ask_for_part(host)
        host.view(thorough=True)
        assert faults(host) == []


@isolated
@pytest.mark.parametrize("found_by", ["another's decision", "the command's own watch"])
def test_the_command_of_a_share_is_told_that_its_limits_were_changed(
    t4: Node, found_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "_LOOK_SECONDS", 0.05)
    with t4.host() as host:
        first = admit(host, part_of(host))
        told, asks = threading.Event(), found_by == "the command's own watch"
        said: list[str] = []

        def tell(why: str) -> None:
            said.append(why)
            told.set()

        with watching_limits(
            first.allocation,
            host.daemons.records,
            tell,
            (lambda record: limits_changed(host, record)) if asks else (lambda record: False),
        ):
            assert not told.wait(1), said
            asked(host, "set_default_device_pinned_mem_limit 0 15G")
            if not asks:
                host.view(thorough=True)
            assert told.wait(60)
        (line,) = said
        assert line.startswith("the limits of this share's MPS daemon were changed (the memory limit is 15G")
        assert line.endswith("): Tranche now counts it as unlimited")
        assert host.view().allocations[0].grants[0].walls.isolation is Isolation.NONE


@isolated
def test_an_idle_daemon_whose_limits_somebody_has_changed_is_replaced(t4: Node) -> None:
    with t4.host() as host:
        change(host, start(only(host)))
        (before,) = host.daemons.records.all()
        asked(host, "set_default_device_pinned_mem_limit 0 15G")
        ask_for_part(host)
        (now,) = host.daemons.records.all()
        assert now.pid != before.pid
        assert unavailable(only(host), None) == ""
        assert asked(host, "get_default_device_pinned_mem_limit 0").strip() == "3G"
