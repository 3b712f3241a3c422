"""A server of MPS that is wedged or stopped, by `tranche`'s commands: nobody more comes to it, and everybody is told why."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.local.test_fractions import end_daemons, folder, holders, t4, tenant
from tests.machines import TestMachine, machine_in, wait_until
from tests.simulator.cuda_programs import PREAMBLE
from tranche.core.errors import WaitTimeout
from tranche.node.mps.mps_daemons import MpsDaemonManager
from tranche.node.mps.mps_records import DaemonRecord, DaemonRecordStore
from tranche.node.state.session import StateFolder, process_stopped

__all__ = ["folder", "t4"]  # fixtures

JOB = "context(); tell(0); wait()"


def record(machine: TestMachine) -> DaemonRecord:
    (found,) = DaemonRecordStore(StateFolder(machine.state_dir).mps).all()
    return found


@contextmanager
def stopped_server(machine: TestMachine) -> Iterator[int]:
    (server,) = MpsDaemonManager(StateFolder(machine.state_dir)).process(record(machine).device_uuid).servers()
    os.kill(server.pid, signal.SIGSTOP)
    wait_until(lambda: process_stopped(server.pid))
    try:
        yield server.pid
    finally:
        if server.lives:
            os.kill(server.pid, signal.SIGCONT)


def test_a_stopped_server_is_named_wherever_one_looks_and_a_request_waits_no_longer_than_it_may(
    t4: TestMachine,
) -> None:
    first = tenant(t4, "--gpu-memory", "3G", code=JOB)
    assert first.told() == 0
    with stopped_server(t4) as server:
        late = t4.tranche("run", "--timeout", "2s", "--gpu-memory", "3G", "--", "true", code=WaitTimeout.exit_code)
        why = f"process {server}, is stopped"
        assert why in late.stderr
        assert why in t4.tranche("explain", "--gpu-memory", "3G").stdout
        assert why in t4.tranche("gpus").stdout
        assert why in t4.json("gpus")["gpus"][0]["sharing"]["unavailable"]
        assert "unavailable" in t4.tranche("ps").stdout
        assert why in holders(t4)[0]["unavailable"]
        assert why in t4.tranche("doctor").stdout
        assert why in t4.tranche("events").stdout
        assert unavailable_samples(t4) == ["1.0"]
    again = tenant(t4, "--gpu-memory", "3G", code=JOB)
    assert again.told() == 0
    assert unavailable_samples(t4) == ["0.0"]
    assert holders(t4)[0]["unavailable"] is None


def unavailable_samples(machine: TestMachine) -> list[str]:
    lines = machine.tranche("metrics").stdout.splitlines()
    return [line.split()[-1] for line in lines if line.startswith("tranche_shared_device_unavailable{")]


def test_a_request_goes_elsewhere_when_a_server_hangs() -> None:
    """The GPU that is shared is chosen first; its server hangs, and the other one serves the request."""
    with tempfile.TemporaryDirectory(prefix="f", dir="/tmp") as name, machine_in(Path(name), "T4", "T4") as machine:
        try:
            first = tenant(machine, "--gpu-memory", "3G", code=JOB)
            assert first.told() == 0
            machine.machine.inject_error("mpsServerHangs", 999)
            second = tenant(machine, "--gpu-memory", "3G", code=JOB)
            assert second.told() == 0
            assert len({each["grants"][0]["gpuUUID"] for each in holders(machine)}) == 2
            assert [bool(each["unavailable"]) for each in holders(machine)] == [True, False]
        finally:
            machine.end()
            end_daemons(machine)


def test_a_child_that_is_killed_amid_its_work_and_wedges_the_server_lets_in_nobody_who_would_hang(
    t4: TestMachine,
) -> None:
    """The share goes on when a process of its command is killed, and its server serves nobody any more."""
    t4.machine.set_time_scale(1.0)
    t4.machine.inject_error("mpsClientKilled", 999)
    work = PREAMBLE + "context(); launch(kernel(), 600 * 10**6); tell(0); wait()"
    parent = f"""
import subprocess
with subprocess.Popen([sys.executable, "-c", {work!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    child.kill()
tell(0)
wait()
"""
    share = tenant(t4, "--gpu-memory", "3G", code=parent)
    assert share.told() == 0
    late = t4.tranche("run", "--no-wait", "--gpu-memory", "3G", "--", "true", code=32)
    assert "did not respond" in late.stderr
    share.go_on()
    assert share.ended()[0] == 0
    assert tenant(t4, "--gpu-memory", "3G", code=JOB).told() == 0


def test_who_ends_a_program_that_its_server_does_not_let_go_says_so(t4: TestMachine) -> None:
    one, other = tenant(t4, "--gpu-memory", "3G"), tenant(t4, "--gpu-memory", "5G")
    assert one.told() is not None
    assert other.told() is not None
    (name,) = [each["id"] for each in holders(t4) if each["request"]["gpuMemoryBytes"] == 3 * 10**9]
    with stopped_server(t4):
        done = t4.tranche("release", name, "--terminate")
    assert "killed the processes before the MPS daemon of" in done.stderr
    assert [each["id"] for each in holders(t4)] != [name]
    assert len(holders(t4)) == 1
