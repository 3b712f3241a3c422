"""A command with a time limit ends at that time, with everything that it started, and its user is warned before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.local.left_behind import starting, starting_stranger
from tests.machines import TestMachine, lose_ledger, machine_in, wait_until
from tests.node.machines import node_of
from tests.node.processes import isolated
from tranche.core.allocation import HELD
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.core.state import GpuProcess
from tranche.local.child import beside
from tranche.local.queue import Queue
from tranche.local.time_limit import TimeLimit, end_overdue
from tranche.local.workload import OwnWorkload
from tranche.node.locks.deciding import WaitLimit
from tranche.node.processes.processes import process_at
from tranche.node.state.session import boot_clock, process_command, process_stopped
from tranche.node.store import register

WHOLE = ("--mig-profile", "7g.40gb")


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[TestMachine]:
    with machine_in(tmp_path, "A100-40GB") as machine:
        yield machine


@pytest.mark.parametrize("left", [starting, starting_stranger])
def test_the_command_and_all_that_it_started_end(
    a100: TestMachine, told: Path, left: Callable[[Path, str], tuple[str, ...]]
) -> None:
    done = a100.tranche("run", "-q", *WHOLE, "--time", "2s", "--", *left(told, "exec sleep 600"), code=143)
    assert "the time limit of 2s has passed" in done.stderr
    assert process_at(int(told.read_text())) is None
    assert a100.json("ps")["allocations"] == []
    last = a100.json("events")["events"][-1]
    assert last["message"].endswith("143, because its time limit had passed")


def test_a_command_may_end_in_its_own_way(a100: TestMachine) -> None:
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('ready', flush=True); time.sleep(600)"
    done = a100.tranche("run", "-q", *WHOLE, "--time", "2s", "--", sys.executable, "-c", script, code=7)
    assert done.stdout == "ready\n"


def test_a_command_that_ends_in_time_is_left_alone(a100: TestMachine) -> None:
    done = a100.tranche("run", "-q", *WHOLE, "--time", "10m", "--", "true")
    assert done.stderr == ""
    assert a100.json("events")["events"][-1]["message"].endswith("exit code 0")


def test_a_limit_holds_after_the_ledger_was_lost(a100: TestMachine) -> None:
    run = a100.start("run", "-q", *WHOLE, "--time", "5s", "--", "sleep", "600")
    a100.one_running()
    lose_ledger(a100)
    assert run.wait(60) == 143


def as_many(said: list[str], count: int) -> bool:
    return len(said) == count


@isolated
@pytest.mark.parametrize("extended", [False, True])
def test_warnings_come_before_the_end_and_follow_an_extension(tmp_path: Path, extended: bool) -> None:
    node = node_of(tmp_path, "A100-40GB")
    request = Request(MigSlice(parse_profile("7g.40gb")), time_limit=1000)
    now, said, more, looks = [0.0], list[str](), 1000.0 if extended else 0.0, [0]

    def clock() -> float:
        looks[0] += 1
        return now[0]

    with node.host() as host:
        held = Queue(host).acquire(request, command="work", pid=os.getpid(), patience=WaitLimit(wait=False))
        child = subprocess.Popen(["sleep", "600"])
        host.set_holder(held, child.pid)
        limit = TimeLimit(
            host, held.allocation, OwnWorkload(["sleep"], os.environ), said.append, grace=5.0, clock=clock
        )
        if extended:
            with host.ledger.write() as db:
                register.set_request(db, held.allocation.id, replace(request, time_limit=2000))
        try:
            for count, at in enumerate((400.0, 940.0, 1000.0), start=1):
                now[0], before = at + more - 0.1, looks[0]
                with beside("time", limit.enforce):
                    wait_until(partial(lambda seen: looks[0] > seen + 1, before))
                    assert len(said) == count - 1
                    assert child.poll() is None
                    now[0] = at + more
                    wait_until(partial(as_many, said, count))
            child.wait(60)
        finally:
            child.kill()
            child.wait()
    end = "33m20s" if extended else "16m40s"
    assert [line.partition(":")[0] for line in said] == ["10m left", "1m left", f"the time limit of {end} has passed"]
    assert child.returncode == -signal.SIGTERM
    assert limit.over
    assert threading.active_count() == 1


def later() -> float:
    """When every limit of a minute is over for long."""
    return boot_clock() + 100.0


_HEIR = "import os, signal, time; signal.signal(15, lambda *_: os.fork()); time.sleep(600) or time.sleep(600)"
"""A program that starts another like it when it is asked to end."""


@isolated
@pytest.mark.parametrize("program", ["import time; time.sleep(600)", pytest.param(_HEIR, marks=pytest.mark.long)])
def test_what_is_overdue_is_ended_by_the_next_who_looks(tmp_path: Path, program: str) -> None:
    node = node_of(tmp_path, "A100-40GB")
    with node.host() as host:
        request = Request(MigSlice(parse_profile("3g.20gb")), time_limit=60)
        first, second = (
            Queue(host).acquire(each, command="work", pid=os.getpid(), patience=WaitLimit(wait=False))
            for each in (request, replace(request, time_limit=200))
        )
        environment = {**os.environ, "TRANCHE_ALLOCATION": first.allocation.id, "TRANCHE_KEY": first.key}
        command = subprocess.Popen([sys.executable, "-c", program], env=environment)
        other = subprocess.Popen(["sleep", "600"])
        try:
            host.set_holder(first, command.pid)
            host.set_holder(second, other.pid)
            first.lock.release()  # as when `tranche run` was killed
            end_overdue(host)
            assert command.poll() is None, "its time is not over"
            end_overdue(host, later)
            command.wait(60)
            assert [each.id for each in host.view().allocations] == [second.allocation.id]
            assert [each.message for each in host.events()][-1] == "its time limit had passed"
            assert other.poll() is None
        finally:
            for each in (command, other):
                each.kill()
                each.wait()


@pytest.mark.long
@isolated
def test_what_is_overdue_has_the_time_to_save_that_the_service_gives(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    program = (
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n    time.sleep(8)\n    pathlib.Path(sys.argv[1]).touch()\n    sys.exit()\n"
        "signal.signal(15, save)\nprint(flush=True)\ntime.sleep(600)"
    )
    node = node_of(tmp_path, "A100-40GB")
    request = Request(MigSlice(parse_profile("3g.20gb")), time_limit=60, preemptible=True)
    with node.host() as host:
        held = Queue(host).acquire(request, command="work", pid=os.getpid(), patience=WaitLimit(wait=False))
        environment = {**os.environ, "TRANCHE_ALLOCATION": held.allocation.id, "TRANCHE_KEY": held.key}
        with subprocess.Popen(
            [sys.executable, "-c", program, str(saved)], env=environment, stdout=subprocess.PIPE
        ) as command:
            assert command.stdout is not None
            command.stdout.readline()
            host.set_holder(held, command.pid)
            held.lock.release()
            end_overdue(host, later, grace=30.0)
            assert (saved.exists(), command.wait(60)) == (True, 0)
            assert host.view().allocations == ()


@isolated
def test_a_hold_is_over_at_its_time_unless_a_later_program_of_its_shell_is_on_the_gpu(tmp_path: Path) -> None:
    node = node_of(tmp_path, "A100-40GB")
    request = Request(MigSlice(parse_profile("7g.40gb")), time_limit=1000)
    now = [0.0]
    with node.host() as host:
        held = Queue(host).acquire(request, command=HELD, pid=os.getpid(), patience=WaitLimit(wait=False))
        environment = {**os.environ, "TRANCHE_ALLOCATION": held.allocation.id, "TRANCHE_KEY": held.key}
        holder, program = (subprocess.Popen(["sleep", "600"], env=environment) for _ in range(2))
        host.set_holder(held, holder.pid)
        workload = OwnWorkload(["sleep"], os.environ)
        limit = TimeLimit(host, held.allocation, workload, lambda said: None, grace=5.0, clock=lambda: now[0])
        later = None
        try:
            assert not limit.ended_hold()
            now[0] = 1000.0
            with beside("time", limit.enforce):
                holder.wait(60)
                program.wait(60)
            later = subprocess.Popen(["sleep", "600"], env=environment)
            wait_until(lambda: process_command(later.pid).startswith("sleep"))
            assert limit.ended_hold()
            gpu = host.observe_gpu(held.allocation.grants[0].gpu_uuid)
            busy = replace(gpu, processes=(GpuProcess(later.pid, "sleep", 1),))
            for seen in (busy, replace(gpu, lost=True)):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(host, "observe_gpu", lambda uuid, seen=seen: seen)
                    assert not limit.ended_hold()
        finally:
            for each in filter(None, (holder, program, later)):
                each.kill()
                each.wait()


@isolated
@pytest.mark.parametrize("stopped", [True, False])
def test_a_run_that_is_stopped_before_its_command_starts_keeps_no_share_beyond_the_time(
    tmp_path: Path, stopped: bool
) -> None:
    node = node_of(tmp_path, "A100-40GB")
    with node.host() as host:
        request = Request(MigSlice(parse_profile("3g.20gb")), time_limit=60)
        held = Queue(host).acquire(request, command="work", pid=os.getpid(), patience=WaitLimit(wait=False))
        runner = subprocess.Popen(["sleep", "600"], pass_fds=[held.lock.descriptor])  # as `tranche run` of another
        try:
            held.lock.release()
            if stopped:
                runner.send_signal(signal.SIGSTOP)
                wait_until(lambda: process_stopped(runner.pid))
            end_overdue(host)
            assert runner.poll() is None, "its time is not over"
            with host.ledger.write() as db:
                db.execute("UPDATE allocations SET created = created - 156")
            end_overdue(host)
            if stopped:
                runner.wait(60)
                assert host.view().allocations == ()
            else:
                assert runner.poll() is None, "it is about to start its command, which then has all its time"
        finally:
            runner.kill()
            runner.wait()


@pytest.mark.long
@pytest.mark.parametrize("stop", [signal.SIGSTOP, signal.SIGKILL])
def test_a_waiting_request_ends_the_command_of_one_that_is_stopped_or_dead(a100: TestMachine, stop: int) -> None:
    run = a100.start("run", "-q", *WHOLE, "--time", "2s", "--", "sleep", "600")
    wait_until(lambda: bool(a100.running()), run)
    run.send_signal(stop)
    assert a100.tranche("run", "-q", *WHOLE, "--", "echo", "started").stdout == "started\n"
    assert run.wait(60) == (-stop if stop == signal.SIGKILL else 143)
