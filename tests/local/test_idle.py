"""An idle share is seen and said, and an idle hold ends where the administrator wants that, in both modes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pynvml
import pytest

from tests.local import test_service
from tests.local.sessions import HALF, READABLE_PYTHON, Session, dropped, ended, opening, shares
from tests.local.test_service import SharedMachine
from tests.machines import TestMachine, machine_in, needs_root, readable_folder, wait_until
from tests.node.machines import Node, node_of
from tests.node.processes import isolated
from tests.support.in_process import NOBODY
from tranche.core.allocation import HELD
from tranche.core.idle import LOOK_SECONDS, IdlePolicy
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request, WholeGpus
from tranche.core.state import GpuState
from tranche.hardware import nvml_instances
from tranche.local import watches
from tranche.local.idle import IdleWatch
from tranche.local.queue import Queue
from tranche.local.time_limit import TimeLimit
from tranche.local.workload import OwnWorkload
from tranche.node.held import HeldAllocation
from tranche.node.host import Host
from tranche.node.locks.deciding import WaitLimit
from tranche.node.store import records

WHOLE = Request(WholeGpus(1))
SLICE = Request(MigSlice(parse_profile("7g.40gb")))
AFTER = IdlePolicy().after


class Watched:
    """A share on a machine whose clock the test has, and what its holder is told."""

    def __init__(self, node: Node, host: Host, held: HeldAllocation, clock: list[float]) -> None:
        self.node, self.host, self.held, self.clock = node, host, held, clock
        self.said, self.ended = list[str](), list[str]()
        self.watch = IdleWatch(host, held.allocation, self.said.append, self.ended.append)

    @property
    def device(self) -> str:
        gpu = self.host.observe_gpu(self.held.allocation.grants[0].gpu_uuid)
        return gpu.instances[0].compute_instances[0].uuid if gpu.instances else gpu.uuid

    def idle(self) -> int | None:
        """For how long others see it idle."""
        return self.host.view().idle.get(self.held.allocation.id)

    def look(self, seconds: float = LOOK_SECONDS) -> float:
        """Look after that time."""
        self.clock[0] += seconds
        return self.watch.look()

    def look_for(self, seconds: float) -> None:
        """Look each minute for so long."""
        for _ in range(int(seconds / LOOK_SECONDS)):
            self.look()

    def want(self, policy: IdlePolicy) -> None:
        with self.host.ledger.write() as db:
            records.set_idle_policy(db, policy)


@contextmanager
def watched(folder: Path, request: Request = SLICE, command: str = HELD, gpus: int = 1) -> Iterator[Watched]:
    clock = [10_000.0]
    node = node_of(folder, *["A100-40GB"] * gpus)
    with node.host(boot_clock=lambda: clock[0]) as host:
        held = Queue(host).acquire(request, command=command, pid=os.getpid(), patience=WaitLimit(wait=False))
        yield Watched(node, host, held, clock)


@isolated
def test_a_share_without_programs_is_idle_after_the_period_and_its_holder_told_once(tmp_path: Path) -> None:
    with watched(tmp_path) as share:
        share.look_for(AFTER)
        assert (share.idle(), share.said) == (None, [])
        share.look()
        assert share.idle() == AFTER
        share.look_for(600)
        assert share.idle() == AFTER + 600
        (told,) = share.said
        assert told.startswith("this share has been idle for 30m: ")
        assert told.endswith(f"tranche release {share.held.allocation.id}")
        share.clock[0] += 3 * LOOK_SECONDS
        assert share.idle() is None, "nobody has looked since"
        share.look()
        assert share.idle() is None, "the period began again"
        assert share.ended == []


@isolated
@pytest.mark.parametrize("request_", [SLICE, WHOLE])
def test_a_program_on_the_device_ends_the_period(tmp_path: Path, request_: Request) -> None:
    with watched(tmp_path, request_) as share:
        share.look_for(AFTER + 120)
        assert share.idle() is not None
        with share.node.machine.attached(share.device):
            share.look()
            assert share.idle() is None
        share.look_for(AFTER)
        assert share.idle() is None
        share.look_for(120)
        assert share.idle() is not None
        assert len(share.said) == 2, "once for each period"


@isolated
def test_a_program_that_computes_nothing_does_not_use_a_whole_gpu_and_is_looked_at_closely(tmp_path: Path) -> None:
    with watched(tmp_path, WHOLE) as share:
        with share.node.machine.attached(share.device, utilization=4):
            pauses = {share.look(10.0) for _ in range(AFTER // 10 + 2)}
        assert pauses == {10.0}
        assert share.idle() is not None
        assert share.look() == LOOK_SECONDS
        with share.node.machine.attached(share.device, utilization=5):
            assert share.look() == LOOK_SECONDS
        assert share.idle() is None


@isolated
def test_work_on_one_of_several_gpus_uses_the_share(tmp_path: Path) -> None:
    with watched(tmp_path, Request(WholeGpus(2)), gpus=2) as share, share.node.machine.attached(share.device):
        share.look_for(2 * AFTER)
        assert share.idle() is None


@isolated
def test_a_program_in_a_slice_uses_it_whatever_it_computes(tmp_path: Path) -> None:
    with watched(tmp_path) as share, share.node.machine.attached(share.device, utilization=0):
        share.look_for(2 * AFTER)
        assert share.idle() is None


def lose(share: Watched, patch: pytest.MonkeyPatch) -> None:
    share.node.machine.inject_lost(0)


def unlist(share: Watched, patch: pytest.MonkeyPatch) -> None:
    def fail(handle: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    patch.setattr(nvml_instances, "_PROCESS_LISTS", (fail, *nvml_instances._PROCESS_LISTS[1:]))


def fail_to_look(share: Watched, patch: pytest.MonkeyPatch) -> None:
    def fail(uuid: str) -> GpuState:
        raise ValueError

    patch.setattr(share.host, "observe_gpu", fail)


def hide(share: Watched, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tranche.local.idle.sees_every_process", lambda: False)


@isolated
@pytest.mark.parametrize("unknown", [lose, unlist, fail_to_look, hide])
def test_one_look_that_cannot_tell_begins_the_period_again(
    tmp_path: Path, unknown: Callable[[Watched, pytest.MonkeyPatch], None]
) -> None:
    with watched(tmp_path) as share:
        share.look_for(AFTER)
        with pytest.MonkeyPatch.context() as patch:
            unknown(share, patch)
            share.look()
        share.node.machine.clear_injections()
        share.look_for(AFTER)
        assert share.idle() is None
        share.look()
        assert share.idle() == AFTER


@isolated
def test_a_process_of_another_share_is_told_from_one_that_names_none(tmp_path: Path) -> None:
    with watched(tmp_path, WHOLE) as share:
        grant = share.held.allocation.grants[0]
        named = {"its own": share.held.allocation.id, "another": "deadbeef", "none": ""}
        for what, id in named.items():
            environment = {**os.environ, **({"TRANCHE_ALLOCATION": id} if id else {})}
            with subprocess.Popen(["sleep", "600"], env=environment) as program:
                try:
                    wait_until(lambda pid=program.pid: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")  # type: ignore[misc]
                    assert share.watch._of_another(grant, program.pid) is (what == "another")
                finally:
                    program.kill()
        with subprocess.Popen(["sleep", "600"]) as server, pytest.MonkeyPatch.context() as patch:
            patch.setattr(share.host.daemons.records, "find", lambda gpu, slot: SimpleNamespace(pid=os.getpid()))
            try:
                assert share.watch._of_another(grant, server.pid), "it serves all shares of the device"
            finally:
                server.kill()


def test_a_driver_that_hangs_does_not_hold_up_the_end_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_LONGEST_SECONDS", 0.01)
    hangs, answered, returned = threading.Event(), threading.Event(), threading.Event()

    def look() -> float:
        hangs.set()
        answered.wait(30)
        returned.set()
        return LOOK_SECONDS

    with watches.watching_long(lambda: look):
        assert hangs.wait(60)
    assert not returned.is_set()
    answered.set()


@isolated
def test_a_warning_comes_five_minutes_before_an_idle_hold_ends(tmp_path: Path) -> None:
    with watched(tmp_path) as share:
        share.want(IdlePolicy(2700, ends=True))
        share.look_for(2400)
        assert (share.idle(), share.said) == (None, [])
        share.look()
        assert share.idle() == 2400
        assert share.said == [
            "this hold has been idle for 40m: Tranche will end it in 5m unless a program uses its GPU"
        ]
        share.look_for(240)
        assert share.ended == []
        share.look()
        assert share.ended == ["it was idle for 45m"]
        assert len(share.said) == 1


@isolated
def test_use_after_the_warning_keeps_the_hold_and_a_new_policy_warns_first(tmp_path: Path) -> None:
    with watched(tmp_path) as share:
        share.want(IdlePolicy(2700, ends=True))
        share.look_for(2460)
        share.want(IdlePolicy(2700))
        share.look_for(600)
        assert share.ended == [], "the administrator thought better of it"
        with share.node.machine.attached(share.device):
            share.look_for(300)
        share.want(IdlePolicy())
        share.look_for(2 * AFTER)
        assert (len(share.said), share.ended) == (2, [])
        share.want(IdlePolicy(AFTER, ends=True))
        share.look_for(300)
        assert (len(share.said), share.ended) == (3, []), "told that it ends, and not ended without a warning"
        share.look()
        assert len(share.ended) == 1


@isolated
def test_a_command_is_never_ended_because_it_is_idle(tmp_path: Path) -> None:
    with watched(tmp_path, command="python load_data.py") as share:
        share.want(IdlePolicy(600, ends=True))
        share.look_for(7200)
        assert share.idle() is not None
        assert share.ended == []
        assert "ends" not in "".join(share.said)
        assert share.said[0].endswith("--terminate")


@isolated
def test_an_idle_hold_ends_with_its_programs_and_only_once(tmp_path: Path) -> None:
    with watched(tmp_path) as share:
        held, host, said, warned = share.held, share.host, list[str](), list[str]()
        environment = {**os.environ, "TRANCHE_ALLOCATION": held.allocation.id, "TRANCHE_KEY": held.key}
        holder, program = (subprocess.Popen(["sleep", "600"], env=environment) for _ in range(2))
        try:
            host.set_holder(held, holder.pid)
            limit = TimeLimit(host, held.allocation, OwnWorkload(["sleep"], os.environ), said.append, grace=5.0)
            wait_until(lambda: limit.programs() == f" along with sleep (pid {program.pid})")  # an exec takes a moment
            share.want(IdlePolicy(600, ends=True))
            watch = IdleWatch(host, held.allocation, warned.append, programs=limit.programs)
            for _ in range(6):
                share.clock[0] += 60
                watch.look()
            limit.end_idle("it was idle for 45m")
            holder.wait(60)
            program.wait(60)
            limit.end_idle("again")
        finally:
            for each in (holder, program):
                each.kill()
                each.wait()
        assert limit.why == "it was idle for 45m"
        assert limit.ended_hold()
        assert f"Tranche will end it along with sleep (pid {program.pid}) in 5m unless " in warned[0]
        assert said == ["this hold is idle: Tranche sends SIGTERM to this command, and SIGKILL after 5 s"]


QUICK = """
import sys, tranche.local.idle, tranche.local.watches
tranche.local.watches._LONGEST_SECONDS = tranche.local.idle.LOOK_SECONDS = 0.2
tranche.local.idle.WARNING_SECONDS = 0.2
from tranche.cli.main import main
main()
"""
"""The command with looks, and a warning, of a fifth of a second."""


@pytest.fixture(params=["root", pytest.param("user", marks=needs_root)])
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session on a machine where a second without work is long."""
    line = [sys.executable, "-c", QUICK]
    with readable_folder() as folder, machine_in(folder, "A100-40GB") as machine:
        machine.cache = folder / "cache"
        machine.tranche("ps")
        want(machine, 1, ends=False)
        if request.param == "root":
            with opening(machine, line) as open_session:
                yield open_session()
            return
        if READABLE_PYTHON is None:
            pytest.skip("there is no Python that every user may execute")
        monkeypatch.setattr(test_service, "TRANCHE", line)
        shared = SharedMachine(machine)
        shared.serve()
        try:
            with opening(machine, dropped(NOBODY)) as open_session:
                yield open_session()
        finally:
            shared.end()


def want(machine: TestMachine, after: int, *, ends: bool) -> None:
    with closing(sqlite3.connect(machine.ledger)) as db, db:
        db.execute("DELETE FROM idle_policy")
        db.execute("INSERT INTO idle_policy VALUES (?, ?)", (after, ends))


def idle_of(machine: TestMachine) -> int | None:
    (share,) = shares(machine)
    return cast("int | None", share["idleSeconds"])


def test_a_hold_is_seen_idle_by_all_and_ends_when_the_policy_says_so(quick: Session) -> None:
    machine = quick.machine
    held = quick.hold(HALF)
    wait_until(lambda: idle_of(machine) is not None)
    assert ", idle " in quick.do(f"{quick.tranche} ps")
    explained: dict[str, Any] = machine.json("explain", "--gpus", "1")
    assert explained["idleHolders"] == [held["id"]]
    told = machine.tranche("explain", "--gpus", "1").stdout
    assert f"{held['owner']['name']} has run nothing on GPU 0 for 0s: share {held['id']}" in told
    want(machine, 1, ends=True)
    wait_until(lambda: ended(machine))
    assert "because it was idle for " in machine.json("events")["events"][-1]["message"]
    assert quick.do("echo on") == "on\n"
