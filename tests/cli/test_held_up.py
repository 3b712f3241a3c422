"""Somebody decides and does not end, or the disk is full: who asks is answered all the same, and told."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TRANCHE, Completed, TestMachine, needs_root, wait_until
from tests.node.machines import node_of
from tests.node.processes import in_child
from tranche.core.errors import TrancheError, WaitTimeout
from tranche.core.request import Request, WholeGpus
from tranche.node.locks.deciding import WaitLimit
from tranche.node.locks.locks import FileLock
from tranche.node.state.session import StateFolder, process_start_time

SLICE = ("--mig-profile", "1g.5gb")
READERS = (("ps",), ("top", "--once"), ("explain", *SLICE), ("gpus",))


def leave_a_share(machine: TestMachine) -> str:
    """A share whose processes were all killed, and that nobody has cleared yet; its id."""
    workload = machine.hold(*SLICE)
    (allocation,) = machine.json("ps")["allocations"]
    workload.process.kill()
    workload.process.wait()
    os.kill(workload.pid, signal.SIGKILL)
    wait_until(lambda: process_start_time(workload.pid) == 0)
    return str(allocation["id"])


@pytest.fixture
def decider(two_a100: TestMachine) -> Iterator[Path]:
    """This process has been deciding for a minute."""
    two_a100.tranche("run", "-q", *SLICE, "--", "true")
    path = StateFolder(two_a100.state_dir).decision_lock
    with FileLock(path) as lock:
        past = path.stat().st_mtime - 60
        os.utime(lock.descriptor, (past, past))
        yield path


def test_a_timeout_holds_also_while_somebody_else_decides(two_a100: TestMachine, decider: Path) -> None:
    done = two_a100.tranche("run", "--timeout", "1", *SLICE, "--", "true", code=70)
    assert "--mig-profile 1g.5gb got no share within 1 s" in done.stderr
    assert f"pid {os.getpid()} (" in done.stderr
    assert f"kill -9 {os.getpid()}" in done.stderr
    assert two_a100.json("ps")["waiters"] == []
    layout = ("layout", "apply", "--selected-config", "all-disabled", "--wait", "--timeout", "1")
    assert f"pid {os.getpid()} (" in two_a100.tranche(*layout, code=70).stderr


def test_a_timeout_holds_also_while_somebody_else_works_on_the_gpus(two_a100: TestMachine) -> None:
    locks = StateFolder(two_a100.state_dir).gpu_locks
    held = [FileLock(locks / f"{gpu.uuid}.lock") for gpu in two_a100.machine.gpus()]
    done = two_a100.tranche("run", "--timeout", "1", *SLICE, "--", "true", code=70)
    assert f"pid {os.getpid()} (" in done.stderr
    for lock in held:
        lock.release()
    assert two_a100.json("ps") | {"allocations": [], "waiters": []} == two_a100.json("ps")
    two_a100.tranche("run", "--no-wait", *SLICE, "--", "true")


def test_a_timeout_holds_also_while_somebody_else_writes_the_ledger(two_a100: TestMachine) -> None:
    two_a100.tranche("run", "-q", *SLICE, "--", "true")
    apply = ("layout", "apply", "--selected-config", "all-disabled", "--wait", "--timeout", "1")
    with sqlite3.connect(two_a100.ledger) as writer:
        writer.execute("BEGIN IMMEDIATE")
        for arguments in (("run", "--timeout", "1", *SLICE, "--", "true"), apply):
            done = two_a100.tranche(*arguments, code=70)
            assert f"could not be written for 1 s: pid {os.getpid()} (" in done.stderr
            assert f"kill -9 {os.getpid()}" in done.stderr
        writer.rollback()
    assert two_a100.json("ps")["waiters"] == []


def test_a_timeout_holds_also_while_somebody_else_begins_to_write_when_a_request_waits(two_a100: TestMachine) -> None:
    """Its place in the queue cannot be given up in time, so whoever comes next drops it."""
    holder = two_a100.hold("--gpus", "2")
    waiter = two_a100.start("run", "--timeout", "3", "--gpus", "1", "--", "true")
    wait_until(lambda: len(two_a100.json("ps")["waiters"]) == 1, waiter)
    with sqlite3.connect(two_a100.ledger) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert waiter.wait() == 70
        writer.rollback()
    assert two_a100.json("ps")["waiters"] == []
    assert holder.process.poll() is None


def test_who_does_not_wait_gives_others_a_minute() -> None:
    assert WaitLimit(wait=False).with_others(100) == 60
    assert WaitLimit().with_others(100) is None
    assert WaitLimit(seconds=60).with_others(45) == 15
    assert WaitLimit(seconds=60).with_others(60) == 1


def test_doctor_says_who_decides_for_too_long(two_a100: TestMachine, decider: Path) -> None:
    (found,) = [each for each in two_a100.json("doctor", code=1)["findings"] if each["check"] == "decisions"]
    assert found["status"] == "fail"
    assert f"pid {os.getpid()} (" in found["message"]
    assert f"kill -9 {os.getpid()}" in found["hint"]


@pytest.mark.parametrize("arguments", READERS[:3], ids=lambda arguments: arguments[0])
def test_readers_answer_and_say_who_decides_for_too_long(
    two_a100: TestMachine, decider: Path, arguments: tuple[str, ...]
) -> None:
    done = two_a100.tranche(*arguments)
    assert f"warning: pid {os.getpid()} (" in done.stderr
    assert done.stdout


def test_readers_show_what_cannot_be_cleared_while_somebody_decides(two_a100: TestMachine) -> None:
    share = leave_a_share(two_a100)
    with FileLock(StateFolder(two_a100.state_dir).decision_lock):
        for arguments in READERS[:2]:
            done = two_a100.tranche(*arguments)
            assert share in done.stdout
            assert f"so this list still shows what they left: pid {os.getpid()} (" in done.stderr
    assert share not in two_a100.tranche("ps").stdout


def test_who_looks_again_and_again_does_not_stand_in_line_each_time(tmp_path: Path) -> None:
    def look() -> int:
        with node_of(tmp_path, "A30-24GB").host() as host:
            host.enqueue(Request(WholeGpus(1)), command="", pid=0).lock.release()
            with FileLock(host.places.decision_lock) as lock:
                past = host.places.decision_lock.stat().st_mtime - 60
                os.utime(lock.descriptor, (past, past))
                told: list[TrancheError] = []
                for _ in range(20):
                    host.look(told.append)
                assert {type(each) for each in told} == {WaitTimeout}
                return threading.active_count()

    assert in_child(look) == 1


def on_a_full_disk(machine: TestMachine, *arguments: str) -> Completed:
    """Run tranche with its state folder, as it is now, on a disk without any room."""
    script = (
        'mount -t tmpfs -o size=2m tmpfs /mnt && cp -a "$0"/. /mnt && mount --bind /mnt "$0" '
        '&& ! cat /dev/zero > "$0/fill" 2>/dev/null && exec "$@"'
    )

    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script, str(machine.state_dir), *TRANCHE, *arguments],
        env=machine.environment,
        capture_output=True,
        text=True,
        check=False,
    )


@needs_root
@pytest.mark.parametrize("index", ["with the log's index", "without"])
def test_readers_answer_on_a_full_disk_with_something_to_clear(two_a100: TestMachine, index: str) -> None:
    share = leave_a_share(two_a100)
    if index == "without":
        two_a100.ledger.with_name("ledger.db-shm").unlink()
    for arguments in READERS:
        done = on_a_full_disk(two_a100, *arguments)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert "warning: cannot clean up after dead processes, so this list still shows what they left" in done.stderr
        assert done.stdout if arguments[0] == "explain" else share in done.stdout
    assert "Granted" in on_a_full_disk(two_a100, "events").stdout


def test_what_a_look_undoes_is_said(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB")
    machine.machine.set_time_scale(100.0)
    command = machine.start("run", "-q", *SLICE, "--", "true")
    wait_until(lambda: [each["phase"] for each in machine.json("ps")["allocations"]] == ["preparing"], command)
    command.kill()
    command.wait()
    machine.machine.set_time_scale(0)
    assert "was interrupted and has been undone" in machine.tranche("explain", *SLICE).stderr
    assert machine.tranche("explain", *SLICE).stderr == ""
