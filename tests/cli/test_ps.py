"""`tranche ps`: allocations and waiters."""

from __future__ import annotations

import gc
import os
import signal

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine, wait_until
from tests.support import in_process
from tranche.core.allocation import Allocation, Phase
from tranche.core.keeper import ProcessKeeper
from tranche.core.request import parse_request
from tranche.node.state.session import pid_namespace
from tranche.node.store.records import Waiter
from tranche.node.store.register import process_owners, user_name


def test_allocations_come_first_then_waiters_in_order(make_machine: MakeMachine) -> None:
    machine = make_machine("A30-24GB")
    first = machine.hold("--gpus", "1")
    second = machine.wait_in_queue("--mig-profile", "1g.6gb")
    third = machine.wait_in_queue("--gpu-memory", "20Gi", "--isolation", "any")
    document = machine.json("ps")
    assert document["kind"] == "AllocationList"
    (allocation,) = document["allocations"]
    assert allocation["request"] == {"gpus": 1, "isolation": "soft", "gpuModel": ""}
    assert allocation["phase"] == "active"
    assert allocation["pid"] == first.pid
    assert allocation["command"].startswith("sh -c")
    assert allocation["missingInstances"] == []
    assert [(each["position"], each["pid"]) for each in document["waiters"]] == [(1, second.pid), (2, third.pid)]
    assert document["waiters"][0]["request"]["migProfile"] == "1g.6gb"
    assert document["waiters"][0]["owner"] == allocation["owner"]
    assert document["waiters"][0]["why"].startswith("GPU 0: held whole by sh -c '")
    assert document["waiters"][0]["why"].endswith(f"… ({user_name(os.getuid())}) {allocation['id']}")
    assert document["waiters"][0]["obstacles"][0]["reason"] == "GpuBusy"
    assert document["waiters"][0]["obstacles"][0]["allocationIds"] == [allocation["id"]]
    assert document["waiters"][1]["obstacles"][0]["reason"] == "QueuedBehind"

    lines = machine.tranche("ps").stdout.splitlines()
    assert lines[0].split() == ["ID", "USER", "REQUEST", "GIVEN", "ISOLATION", "PHASE", "AGE", "PID", "COMMAND"]
    user = user_name(os.getuid())
    assert allocation["owner"] == {"kind": "user", "name": user}
    assert lines[1].startswith(f"{allocation['id']}  {user.ljust(4)}  --gpus 1  GPU 0 whole  hard       active ")
    assert f"  {first.pid}  sh -c" in lines[1]
    assert lines[3].split()[:2] == ["WAITING", "PLACE"]
    assert [line.split()[:2] for line in lines[4:]] == [[w["id"], str(w["position"])] for w in document["waiters"]]


def test_a_share_that_is_being_prepared_is_said_so(two_a100: TestMachine) -> None:
    two_a100.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 3.0)
    two_a100.start("run", "--mig-profile", "2g.10gb", "-q", "--", "true")
    wait_until(lambda: [each["phase"] for each in two_a100.json("ps")["allocations"]] == ["preparing"])


def test_what_a_killed_command_left_is_gone_from_the_list(two_a100: TestMachine) -> None:
    workload = two_a100.hold("--mig-profile", "1g.5gb")
    assert two_a100.one_running()["pid"] == workload.pid
    workload.process.kill()
    workload.process.wait()
    assert [each["pid"] for each in two_a100.json("ps")["allocations"]] == [workload.pid], "the workload still lives"
    os.kill(workload.pid, signal.SIGKILL)
    wait_until(lambda: two_a100.json("ps")["allocations"] == [])
    assert [each["type"] for each in two_a100.json("events", "--last", "1")["events"]] == ["Released"]


def test_a_command_of_several_lines_stays_on_its_row(two_a100: TestMachine) -> None:
    two_a100.hold("--mig-profile", "1g.5gb", script="echo '\x1b[2J'\nexec sleep 600")
    for listing in ("ps", "top"):
        text = two_a100.tranche(listing).stdout
        assert "\x1b" not in text
        (line,) = [line for line in text.splitlines() if "sh -c" in line]
        assert "\n" not in line


def test_a_share_keeps_its_owner_after_the_recorded_process_has_ended() -> None:
    keeper = ProcessKeeper(pid=2**22 + 1, started=1, namespace=pid_namespace(), uid=0, others=((os.getpid(), 1),))
    request = parse_request(gpus="1")
    share = Allocation("a", request, (), Phase.ACTIVE, 0.0, keeper=keeper)
    owners = process_owners([share], [Waiter(1, "w", request, 0.0, "", 2**22 + 1, 0)])
    assert {id: owner.name for id, owner in owners.items()} == {"a": "root", "w": "root"}
    assert process_owners([share._replace(keeper=keeper._replace(uid=-1))]) == {}


def test_what_the_tests_left_does_not_end_in_a_fork_of_their_process(two_a100: TestMachine) -> None:
    """An object in a cycle, such as a socket, would close its file's number there, which another file may have by then."""

    class Left:
        def __init__(self) -> None:
            self.itself, self.process = self, os.getpid()

        def __del__(self) -> None:
            if os.getpid() != self.process:
                os.write(2, b"ended in the fork")

    before = gc.get_threshold()
    in_process.run(["version"], two_a100.environment)
    gc.collect()
    gc.set_threshold(1_000)
    try:
        Left()
        assert in_process.run(["ps"], two_a100.environment).stderr == ""
    finally:
        gc.set_threshold(*before)
