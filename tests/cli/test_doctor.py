"""`tranche doctor`: what it finds, what it says to do, and that it changes nothing."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from ctypes.util import find_library
from typing import Any

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine, needs_root, readable_folder, run_without_driver, wait_until
from tests.support import in_process
from tranche.node.state.session import process_start_time


def _findings(machine: TestMachine, check: str, code: int = 0) -> list[dict[str, Any]]:
    return [each for each in machine.json("doctor", code=code)["findings"] if each["check"] == check]


def test_a_sound_machine_passes_and_stays_as_it_was(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB", "B200", "T4")
    before = machine.changes()
    document = machine.json("doctor")
    assert document["kind"] == "Checkup"
    assert document["healthy"] is True
    checks = {each["check"] for each in document["findings"]}
    assert checks >= {"driver", "gpus", "mig", "catalogue", "permission", "nvidia-smi", "state-folder", "ledger"}
    assert {each["status"] for each in document["findings"]} == {"pass"}
    assert machine.changes() == before
    assert not machine.state_dir.exists(), "doctor made the state folder"


@pytest.mark.parametrize("board", ["A30-24GB", "A100-80GB", "H100-80GB-SXM", "H200-141GB", "B200", "RTX-PRO-6000-96GB"])
def test_the_simulated_driver_agrees_with_the_catalogue(make_machine: MakeMachine, board: str) -> None:
    machine = make_machine(board)
    machine.cut_by_hand(0)
    assert [
        (each["status"], "the driver and the catalogue agree" in each["message"])
        for each in _findings(machine, "catalogue")
    ] == [("pass", True)]


def test_lines_of_equal_gpus_are_joined(make_machine: MakeMachine) -> None:
    lines = make_machine("A30-24GB", "T4", "A30-24GB", "A30-24GB").tranche("doctor").stdout.splitlines()
    assert "pass  GPU 0, 2-3: NVIDIA A30: MIG mode is disabled; changing it needs a reset" in lines
    assert "pass  GPU 1: Tesla T4 does not support MIG: Tranche grants it whole or in parts" in lines


def test_a_sound_machine_leads_to_a_first_run(make_machine: MakeMachine) -> None:
    machine = make_machine("A100-40GB")
    assert machine.tranche("doctor").stderr == "next: tranche run --gpu-memory 4Gi -- nvidia-smi\n"
    machine.machine.inject_lost(0)
    assert "next:" not in machine.tranche("doctor", code=1).stderr


def test_a_lost_gpu_fails(two_a100: TestMachine) -> None:
    two_a100.machine.inject_lost(1)
    (found,) = _findings(two_a100, "lost", code=1)
    assert (found["status"], found["gpu"]) == ("fail", 1)
    assert "power-cycle" in found["hint"]


def test_a_pending_mode_and_what_blocks_a_reset_are_warnings(two_a100: TestMachine) -> None:
    two_a100.smi("-i", "0", "-mig", "1")
    two_a100.machine.inject_busy(two_a100.machine.gpus()[1].uuid, pid=5004242, name="trainer")
    mig = _findings(two_a100, "mig")
    assert [(each["gpu"], each["status"]) for each in mig] == [(0, "warn"), (1, "pass")]
    (reset,) = _findings(two_a100, "reset")
    assert (reset["gpu"], reset["status"]) == (1, "warn")
    assert "trainer (pid 5004242)" in reset["message"]
    assert reset["hint"].startswith("leave it alone if tranche ps lists a share of this GPU")


def test_what_a_dead_process_left_is_seen_and_left_alone(two_a100: TestMachine) -> None:
    workload = two_a100.hold("--mig-profile", "1g.5gb")
    workload.process.kill()
    workload.process.wait()
    os.kill(workload.pid, signal.SIGKILL)
    wait_until(lambda: process_start_time(workload.pid) == 0)
    for _ in range(2):
        assert [each["status"] for each in _findings(two_a100, "leftovers")] == ["warn"]
    two_a100.tranche("ps")
    assert [each["status"] for each in _findings(two_a100, "leftovers")] == ["pass"]


def test_a_share_without_its_instance_is_named(two_a100: TestMachine) -> None:
    two_a100.hold("--mig-profile", "1g.5gb")
    (allocation,) = two_a100.json("ps")["allocations"]
    two_a100.machine.reboot()
    (found,) = _findings(two_a100, "shares")
    assert found["status"] == "warn"
    assert allocation["id"] in found["message"]


@pytest.mark.parametrize("damage", ["garbage", "newer"])
def test_a_ledger_that_cannot_be_used_fails(two_a100: TestMachine, damage: str) -> None:
    two_a100.tranche("ps")
    if damage == "garbage":
        two_a100.ledger.write_bytes(b"no database" * 1000)
    else:
        with sqlite3.connect(two_a100.ledger) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
    (found,) = _findings(two_a100, "ledger", code=1)
    assert found["status"] == "fail"
    assert found["hint"]


@pytest.mark.skipif(find_library("nvidia-ml") is not None, reason="this host has a driver")
def test_a_machine_without_a_driver_fails_with_a_hint() -> None:
    done = run_without_driver("doctor", code=1)
    assert done.stdout.startswith("fail  cannot talk to the NVIDIA driver")
    assert "simulated machine" in done.stdout


@needs_root
def test_a_user_who_may_not_cut_is_told(readable_a100: TestMachine) -> None:
    readable_a100.tranche("ps")
    readable_a100.state_dir.chmod(0o700)
    done = readable_a100.tranche("doctor", as_nobody=True, code=1)
    assert "warn  not running as root" in done.stdout
    assert "fail  the state folder" in done.stdout
    assert "fail  no permission to read the state folder" in done.stdout


def test_it_says_by_what_parts_of_a_gpu_can_be_given_and_why_not_by_the_rest(two_a100: TestMachine) -> None:
    (found,) = _findings(two_a100, "sharing")
    assert found["status"] == "pass"
    assert "by MPS and time-slicing; not by the driver's memory limits: driver 580" in found["message"]
    two_a100.machine.set_driver("470.82.01")
    (found,) = _findings(two_a100, "sharing")
    assert found["status"] == "warn"
    assert "older than 495" in found["message"]
    assert "nothing limits the memory" in found["hint"]


def test_a_healthy_daemon_of_a_simulated_machine_is_no_finding() -> None:
    """The machine is named, and PATH lacks the driver's programs."""
    with readable_folder() as folder:
        environment = {**os.environ, "TRANCHE_SIMULATE": "g4dn.xlarge", "TRANCHE_SIM_ROOT": str(folder)}
        ready = folder / "ready"
        command = ["run", "-q", "--gpu-memory", "3G", "--", "sh", "-c", f"touch {ready}; exec sleep 600"]
        run = in_process.start(command, environment)
        try:
            wait_until(ready.exists, run)
            done = in_process.run(["doctor", "-o", "json"], environment)
            assert [each for each in json.loads(done.stdout)["findings"] if each["check"] == "mps"] == []
        finally:
            run.terminate()
            run.communicate()
            in_process.run(["sim", "destroy", "g4dn.xlarge"], environment)
