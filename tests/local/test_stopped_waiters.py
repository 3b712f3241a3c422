"""A waiter that is stopped holds nobody up, keeps its place, and can be cancelled."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import TestMachine, Workload, machine_in, wait_until
from tranche.local.wakeup_pipe import TURN_SECONDS, WakeupPipe, answers, ring, unheard_for
from tranche.node.state.session import StateFolder, process_stopped
from tranche.node.store.records import Waiter

SLICE = ("--mig-profile", "7g.40gb")


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[TestMachine]:
    """One A100 40 GB, which one share takes."""
    with machine_in(tmp_path, "A100-40GB") as machine:
        yield machine


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: process_stopped(pid))


def waiting(machine: TestMachine) -> list[int]:
    return [each["pid"] for each in machine.json("ps")["waiters"]]


def end(work: Workload) -> None:
    os.kill(work.pid, signal.SIGKILL)
    work.process.wait(timeout=60)


def test_a_stopped_waiter_is_passed_over_and_served_when_it_goes_on(a100: TestMachine) -> None:
    work = a100.hold(*SLICE)
    first = a100.wait_in_queue(*SLICE)
    second = a100.wait_in_queue(*SLICE)
    third = a100.wait_in_queue(*SLICE)
    stop(first.pid)
    assert "does not answer" in a100.json("ps")["waiters"][0]["why"]
    end(work)
    wait_until(lambda: waiting(a100) == [first.pid, third.pid], second)
    os.kill(first.pid, signal.SIGCONT)
    second.terminate()
    second.wait(timeout=60)
    wait_until(lambda: waiting(a100) == [third.pid], first)


def test_a_waiter_that_is_stopped_when_it_could_start_gives_way(a100: TestMachine) -> None:
    """Nobody rings: who is behind it notices."""
    work = a100.hold(*SLICE)
    first, second = a100.wait_in_queue(*SLICE), a100.wait_in_queue(*SLICE)
    stop(first.pid)
    work.process.kill()
    work.process.wait()
    os.kill(work.pid, signal.SIGKILL)
    wait_until(lambda: waiting(a100) == [first.pid], second)
    os.kill(first.pid, signal.SIGCONT)


def test_a_stopped_waiter_is_cancelled_for_real(a100: TestMachine) -> None:
    a100.hold(*SLICE)
    waiter = a100.wait_in_queue(*SLICE)
    ((name, pid),) = [(each["id"], each["pid"]) for each in a100.json("ps")["waiters"]]
    stop(pid)
    assert f"cancelled waiting request {name}" in a100.tranche("release", name).stderr
    assert waiting(a100) == []
    assert [each["type"] for each in a100.json("events")["events"]][-1] == "Cancelled"
    assert process_stopped(pid)
    a100.tranche("release", name, code=34)
    os.kill(pid, signal.SIGCONT)
    _, said = waiter.communicate(timeout=60)
    assert waiter.returncode == 128 + signal.SIGTERM
    assert f"waiting request {name} was cancelled" in said
    assert list((a100.state_dir / "locks" / "waiters").iterdir()) == []


def test_a_cancelled_waiter_that_is_killed_leaves_no_files(a100: TestMachine) -> None:
    a100.hold(*SLICE)
    waiter = a100.wait_in_queue(*SLICE)
    (name,) = [each["id"] for each in a100.json("ps")["waiters"]]
    stop(waiter.pid)
    a100.tranche("release", name)
    waiter.kill()
    waiter.wait()
    a100.tranche("run", "--no-wait", *SLICE, "--", "true", code=32)
    assert list((a100.state_dir / "locks" / "waiters").iterdir()) == []


def test_a_bell_that_is_not_heard_for_long_is_no_answer(tmp_path: Path) -> None:
    places = StateFolder(tmp_path)
    path = places.wakeup_pipe("a")
    path.parent.mkdir(parents=True)
    waiter = Waiter(1, "a", None, 0.0, "", os.getpid(), 0)  # type: ignore[arg-type]
    bell = WakeupPipe(path)
    assert unheard_for(path, 1e10) == 0
    assert answers(places, waiter, 1e10)
    ring(path)
    rung = path.stat().st_mtime
    os.utime(path, (rung - 60, rung - 60))
    ring(path)
    assert path.stat().st_mtime == rung - 60, "the time of the first ring counts"
    assert unheard_for(path, rung) == 60
    assert answers(places, waiter, rung - 60 + TURN_SECONDS - 1)
    assert not answers(places, waiter, rung)
    assert not answers(places, waiter, rung - 3600), "the clock was put back"
    assert bell.wait(0)
    assert answers(places, waiter, rung)
    bell.close()
    assert answers(places, waiter, rung), "it is about to make its bell, or to take it down"


def test_who_is_taken_for_dead_because_his_lock_was_removed_is_told_so(a100: TestMachine) -> None:
    a100.hold("--gpus", "1")
    waiter = a100.wait_in_queue("--gpus", "1")
    shutil.rmtree(a100.state_dir / "locks" / "waiters")
    a100.tranche("ps")
    _, said = waiter.communicate(timeout=60)
    assert waiter.returncode == 60
    assert "appeared to belong to a dead process" in said
    assert "cancelled" not in said
