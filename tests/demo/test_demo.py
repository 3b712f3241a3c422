"""The demo as processes: what it prints, what it leaves behind, and how it behaves on GPUs that it takes for real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import TRANCHE, TestMachine, machine_in, wait_until
from tests.node.processes import isolated
from tranche.core.errors import HardwareError
from tranche.core.profile import parse_profile
from tranche.core.quantity import MIB
from tranche.demo.jobs import DemoRunner
from tranche.demo.machine import demo_machine
from tranche.demo.scene import DemoClock, DemoTracker, clock_face
from tranche.demo.schedule import slice_batch
from tranche_simulator.build import cache_directory
from tranche_simulator.machine import Client, SimulatedMachine


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Where the demo may write nothing but in the folder."""
    return {**os.environ, "TMPDIR": str(folder), "TRANCHE_CACHE_DIR": str(cache_directory()), **variables}


def job_processes(folder: Path) -> list[int]:
    """The pids of the jobs that still run of the demo whose machine is in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"TRANCHE_SIM_STATE={folder}/".encode() in (process / "environ").read_bytes()
            if ours and os.readlink(process / "exe").endswith("/gpu-job"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_the_demo_measures_both_batches_serves_the_mixture_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*TRANCHE, "demo", "--speed", "60", "-o", "json", "--picture", str(tmp_path / "demo.svg")],
        env=environment(tmp_path, NVIDIA_VISIBLE_DEVICES="0", TRANCHE_SIM_TIME_SCALE="7"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["apiVersion"], result["kind"], result["simulated"]) == ("tranche.dev/v1", "DemoResult", True)
    assert (result["gpus"], result["profile"], result["clockSpeed"]) == (8, "1g.5gb", 60.0)
    whole, slices = result["wholeGpus"], result["slices"]
    assert (whole["jobs"], whole["atOnce"], whole["idealSeconds"]) == (56, 8, 240.1)
    assert (slices["jobs"], slices["idealSeconds"], slices["cutSteps"]) == (56, 87.0, 8 * (1 + 1 + 7))
    assert slices["atOnce"] > 8
    # A job cannot take less than its time, and cutting less than MIG mode, a reset and seven instances take on hardware.
    assert whole["seconds"] >= 240.1
    assert slices["seconds"] >= 87.0 + slices["cuttingSeconds"] >= 87.0 + 0.5 + 3.0 + 7 * 0.16
    assert result["ratio"] == pytest.approx(whole["seconds"] / slices["seconds"], abs=0.002)
    assert result["idealRatio"] == 2.76
    mixed = result["mixed"]
    assert len(mixed) == 22
    assert {item["request"].split()[0] for item in mixed} == {"--gpu", "--gpu-memory", "--mig-profile"}
    assert all(item["profile"] == item["request"].split()[1] for item in mixed if "--mig-profile" in item["request"])
    assert {item["profile"] for item in mixed if item["request"] == "--gpu-memory 4G"} == {"1g.5gb"}
    assert any(item["instancesCreated"] == 0 for item in mixed)
    assert any(item["instancesDestroyed"] > 0 for item in mixed)
    assert "8 GPUs partitioned into 56 slices in 72 steps" in done.stderr
    assert "\x1b" not in done.stderr
    assert f"done after {clock_face(slices['seconds'])}" in (tmp_path / "demo.svg").read_text()
    (tmp_path / "demo.svg").unlink()
    assert list(tmp_path.iterdir()) == []
    assert job_processes(tmp_path) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_demo_with_its_jobs_and_files(tmp_path: Path, number: signal.Signals, code: int) -> None:
    demo = start_slow_demo(tmp_path)
    demo.send_signal(number)
    _, said = demo.communicate()
    assert demo.returncode == code, said
    assert "Traceback" not in said
    assert job_processes(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_jobs_end_when_the_demo_is_killed(tmp_path: Path) -> None:
    demo = start_slow_demo(tmp_path)
    demo.kill()
    demo.communicate()
    wait_until(lambda: job_processes(tmp_path) == [])


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    denied = "import tempfile; tempfile.tempdir = '/proc'; from tranche.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", denied, "demo"], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 27
    assert "cannot create a directory for the demo" in done.stderr
    assert "Traceback" not in done.stderr


def test_nvidia_smi_lists_the_jobs(tmp_path: Path) -> None:
    demo = start_slow_demo(tmp_path)
    try:
        assert demo.stderr is not None
        look = next(line for line in demo.stderr if line.startswith("to watch it from another terminal: "))
        shown = subprocess.run(look.partition(": ")[2], shell=True, capture_output=True, text=True, check=True).stdout
        assert "NVIDIA A100-SXM4-40GB" in shown
        assert shown.count("gpu-job") == 8
    finally:
        demo.terminate()
        demo.communicate()


def start_slow_demo(folder: Path) -> subprocess.Popen[str]:
    """A demo whose jobs would run for minutes, when its first eight run."""
    demo = subprocess.Popen(
        [*TRANCHE, "demo", "--speed", "0.1"],
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(job_processes(folder)) == 8, demo)
    return demo


@isolated
def test_every_job_holds_a_slice_of_its_own_and_one_failure_ends_the_batch() -> None:
    with demo_machine(0.0) as demo:
        gpus = demo.host.view().node.gpus
        clock = DemoClock(1.0)
        scene = DemoTracker(clock)
        scene.begin("", gpus)
        runner = DemoRunner(demo.host, clock, lambda _: demo.job_command(600.0), demo.environment, scene)
        jobs = slice_batch(60, parse_profile("1g.5gb"), "")
        watcher = FailOne(SimulatedMachine(Path(demo.environment["TRANCHE_SIM_STATE"]).parent), clients=56)
        watcher.start()
        with pytest.raises(HardwareError, match="exited with code -9"):
            runner.run(jobs)
        watcher.join()
        assert len({(client.gpu, client.gpu_instance_id) for client in watcher.seen}) == 56
        assert {client.memory for client in watcher.seen} == {2048 * MIB}
        assert scene.picture().running == 0
        assert watcher.machine.clients() == ()
        assert demo.host.view().allocations == ()
        assert demo.host.waiters() == ()


class FailOne(threading.Thread):
    """Waits for so many clients of a machine, remembers them, and kills one."""

    def __init__(self, machine: SimulatedMachine, clients: int) -> None:
        super().__init__()
        self.machine = machine
        self.seen: tuple[Client, ...] = ()
        self._number = clients

    def run(self) -> None:
        wait_until(self._look)
        os.kill(self.seen[0].pid, signal.SIGKILL)

    def _look(self) -> bool:
        self.seen = self.machine.clients()
        return len(self.seen) == self._number


class TestOnGpusTakenForReal:
    """A simulated machine that the demo meets through NVML as it would meet a driver."""

    @pytest.fixture
    def machine(self, tmp_path: Path) -> Iterator[TestMachine]:
        with machine_in(tmp_path, "A100-40GB", "A100-40GB", "T4") as machine:
            yield machine

    def test_it_uses_the_gpus_that_can_be_cut_and_puts_them_back(self, machine: TestMachine) -> None:
        machine.cut_by_hand(1)  # MIG mode on, nothing inside
        result = machine.json("demo", "--real", "--yes", "--speed", "100")
        assert (result["gpus"], result["simulated"], result["wholeGpus"]["jobs"]) == (2, False, 14)
        assert {item["gpu"] for item in result["mixed"]} <= {0, 1}
        after = [(gpu.mig_current, gpu.gpu_instances) for gpu in machine.machine.gpus()]
        assert after == [(False, 0), (True, 0), (False, 0)]
        assert machine.json("ps")["allocations"] == []

    def test_it_asks_before_it_changes_anything(self, machine: TestMachine) -> None:
        done = machine.tranche("demo", "--real", code=130)
        assert "Continue? [y/N]" in done.stderr
        assert machine.machine.total_change_calls() == 0

    def test_it_refuses_gpus_that_are_cut_or_used(self, machine: TestMachine) -> None:
        machine.cut_by_hand(0, "3g.20gb")
        before = machine.changes()
        done = machine.tranche("demo", "--real", "--yes", code=80)
        assert "GPU 0 has 1 GPU instances" in done.stderr
        machine.machine.inject_busy(machine.machine.gpus()[1].uuid, name="train.py")
        done = machine.tranche("demo", "--real", "--yes", code=80)
        assert "GPU 1 is in use by train.py" in done.stderr
        assert machine.changes()[1] == before[1]

    @pytest.mark.parametrize("instances", [3, 7])
    def test_a_signal_puts_them_back_too(self, machine: TestMachine, instances: int) -> None:
        # Three instances: in the middle of the plan. Seven: at its end, or while the jobs run.
        machine.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 0.2)
        demo = machine.start("demo", "--real", "--yes", "--speed", "100")
        wait_until(lambda: machine.machine.gpus()[0].gpu_instances >= instances, demo)
        demo.send_signal(signal.SIGINT)
        _, said = demo.communicate()
        assert demo.returncode == 130, said
        assert [(gpu.mig_current, gpu.gpu_instances) for gpu in machine.machine.gpus()[:2]] == [(False, 0)] * 2


def test_without_a_gpu_that_can_be_cut_real_is_refused(tmp_path: Path) -> None:
    with machine_in(tmp_path, "T4") as machine:
        assert "MigNotSupported" in machine.tranche("demo", "--real", "--yes", "-o", "json", code=24).stderr
