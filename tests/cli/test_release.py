"""`tranche release`: taking shares back from workloads that live, and cancelling requests that wait."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine, wait_until
from tests.node.machines import node_of
from tests.node.processes import in_child
from tranche.cli.runtime import full_id
from tranche.core.errors import AllocationUnknown
from tranche.core.request import Request, WholeGpus
from tranche.node.locks.locks import FileLock
from tranche.node.state.session import StateFolder


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def test_a_share_in_use_is_not_taken(two_a100: TestMachine) -> None:
    workload = two_a100.hold("--mig-profile", "1g.5gb")
    (allocation,) = two_a100.json("ps")["allocations"]
    done = two_a100.tranche("release", allocation["id"], code=80)
    assert f"pid {workload.pid}" in done.stderr
    assert f"tranche release {allocation['id']} --terminate" in done.stderr
    assert two_a100.json("ps")["allocations"] == [allocation]
    assert _lives(workload.pid)


def test_terminate_ends_the_workload_and_lets_its_command_return_the_code(two_a100: TestMachine) -> None:
    workload = two_a100.hold("--mig-profile", "1g.5gb")
    (allocation,) = two_a100.json("ps")["allocations"]
    done = two_a100.tranche("release", allocation["id"], "--terminate")
    assert "SIGTERM" in done.stderr
    assert two_a100.json("ps")["allocations"] == []
    assert workload.process.wait(timeout=60) == 128 + signal.SIGTERM
    assert [each["state"] for each in two_a100.json("gpus")["gpus"][0]["slices"]] == ["idle"]


def test_who_takes_a_share_back_is_told_as_the_cause_of_its_end(two_a100: TestMachine) -> None:
    workload = two_a100.hold("--mig-profile", "1g.5gb")
    (allocation,) = two_a100.json("ps")["allocations"]
    two_a100.tranche("release", allocation["id"], "--terminate")
    granted, begun, released = two_a100.json("events", "--last", "3")["events"]
    assert [each["type"] for each in (granted, begun, released)] == ["Granted", "ReleaseBegun", "Released"]
    assert begun["data"] == {"pids": [workload.pid], "actor": None}
    assert {each["allocationId"] for each in (begun, released)} == {allocation["id"]}
    assert (begun["cause"], released["cause"]) == (granted["position"], begun["position"])


def test_a_workload_that_ignores_sigterm_is_killed_after_the_grace_time(two_a100: TestMachine) -> None:
    script = "trap '' TERM; while :; do sleep 0.05; done"
    workload = two_a100.hold("--mig-profile", "1g.5gb", script=script)
    (allocation,) = two_a100.json("ps")["allocations"]
    done = two_a100.tranche("release", allocation["id"], "--terminate", "--grace", "0.2")
    assert "SIGKILL" in done.stderr
    assert two_a100.json("ps")["allocations"] == []
    assert workload.process.wait(timeout=60) == 128 + signal.SIGKILL


def test_a_share_whose_command_was_killed_is_taken_from_the_workload(two_a100: TestMachine) -> None:
    workload = two_a100.hold("--mig-profile", "1g.5gb")
    workload.process.kill()
    workload.process.wait()
    (allocation,) = two_a100.json("ps")["allocations"]
    two_a100.tranche("release", allocation["id"], code=80)
    two_a100.tranche("release", allocation["id"], "--terminate")
    wait_until(lambda: not _lives(workload.pid))
    assert two_a100.json("ps")["allocations"] == []


def test_what_the_workload_left_running_is_ended_too(two_a100: TestMachine) -> None:
    workload = two_a100.hold("--mig-profile", "1g.5gb", script="sleep 600 & wait")
    wait_until(lambda: [_name(pid) for pid in _children(workload.pid)] == ["sleep"])
    (child,) = _children(workload.pid)
    workload.process.kill()
    workload.process.wait()
    os.kill(workload.pid, signal.SIGKILL)
    (allocation,) = two_a100.json("ps")["allocations"]
    done = two_a100.tranche("release", allocation["id"], code=80)
    assert f"pid {child}" in done.stderr
    two_a100.tranche("release", allocation["id"], "--terminate")
    wait_until(lambda: not _lives(child))
    assert two_a100.json("ps")["allocations"] == []


def test_programs_that_start_another_when_they_are_asked_to_end_are_ended(two_a100: TestMachine) -> None:
    heirs = "import os, signal, time; signal.signal(15, lambda *_: os.fork())\nwhile True: time.sleep(600)"
    two_a100.hold("--mig-profile", "1g.5gb", script=f"exec '{sys.executable}' -c '{heirs}'")
    share = two_a100.one_running()
    wait_until(lambda: _name(share["pid"]).startswith("python"))
    time.sleep(0.3)  # until it heeds the signal in its own way
    two_a100.tranche("release", share["id"], "--terminate", "--grace", "0.5")
    assert two_a100.json("ps")["allocations"] == []


def test_a_share_that_is_being_prepared_is_taken_back_with_its_command(two_a100: TestMachine) -> None:
    cut = two_a100.machine.gpus()
    locks = StateFolder(two_a100.state_dir).gpu_locks
    with ExitStack() as stack:
        # While somebody else holds the GPUs, no plan gets beyond its beginning.
        for gpu in cut:
            stack.enter_context(FileLock(locks / f"{gpu.uuid}.lock"))
        command = two_a100.start("run", "--mig-profile", "2g.10gb", "-q", "--", "sleep", "600")
        wait_until(lambda: [each["phase"] for each in two_a100.json("ps")["allocations"]] == ["preparing"], command)
        (allocation,) = two_a100.json("ps")["allocations"]
        assert f"pid {command.pid}" in two_a100.tranche("release", allocation["id"], code=80).stderr
        two_a100.tranche("release", allocation["id"], "--terminate", "--grace", "60")
        assert command.wait(timeout=60) == 128 + signal.SIGTERM
    assert (two_a100.json("ps")["allocations"], two_a100.json("ps")["waiters"]) == ([], [])
    assert two_a100.machine.gpus() == cut


def test_the_share_goes_to_who_waits(make_machine: MakeMachine) -> None:
    machine = make_machine("A30-24GB")
    machine.hold("--gpus", "1")
    (allocation,) = machine.json("ps")["allocations"]
    waiter = machine.wait_in_queue("--gpus", "1")
    machine.tranche("release", allocation["id"], "--terminate")

    def served() -> bool:
        return [each["phase"] for each in machine.json("ps")["allocations"]] == ["active"]

    wait_until(served, waiter)
    assert machine.json("ps")["waiters"] == []


def test_a_waiting_request_is_cancelled(make_machine: MakeMachine) -> None:
    machine = make_machine("A30-24GB")
    machine.hold("--gpus", "1")
    waiter = machine.wait_in_queue("--gpus", "1")
    (waiting,) = machine.json("ps")["waiters"]
    done = machine.tranche("release", waiting["id"])
    assert f"cancelled waiting request {waiting['id']} (pid {waiter.pid})" in done.stderr
    assert waiter.wait(timeout=60) == 128 + signal.SIGTERM
    assert machine.json("ps")["waiters"] == []
    assert len(machine.json("ps")["allocations"]) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("ffffffff",), 34, "no allocation or waiting request ffffffff"),
        ((), 2, "ID"),
        (("a", "--grace", "-1"), 2, "--grace"),
    ],
)
def test_bad_input_is_refused(two_a100: TestMachine, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = two_a100.tranche("release", *arguments, code=code)
    assert message in done.stderr
    assert done.stdout == ""


def test_the_beginning_of_an_id_is_enough_when_it_is_the_only_one(tmp_path: Path) -> None:
    names = iter(("aaaa1111", "aabb2222", "bbbb3333"))

    def look() -> None:
        with node_of(tmp_path, "A30-24GB").host() as host:
            host.new_id = lambda: next(names)
            for _ in range(3):
                host.enqueue(Request(WholeGpus(1)), command="", pid=os.getpid())
            assert full_id(host, "b") == "bbbb3333"
            assert full_id(host, "aabb2222") == "aabb2222"
            assert full_id(host, "cc") == "cc"
            with pytest.raises(AllocationUnknown, match="aaaa1111, aabb2222"):
                full_id(host, "aa")

    in_child(look)
