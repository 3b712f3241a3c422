"""A driver that hangs keeps no command for ever that somebody runs to learn why, or that a timer runs again and again."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine

IMPATIENT = (
    sys.executable,
    "-c",
    "import tranche.cli.runtime as a; a.SECONDS = 0.5; from tranche.cli.main import main; main()",
)
SAID = "the NVIDIA driver has not answered for 0.5 s"


@pytest.fixture
def hanging(make_machine: MakeMachine) -> TestMachine:
    machine = make_machine("A100-40GB", "H100-80GB-SXM")
    machine.tranche("layout", "apply", "-c", "all-disabled")
    machine.machine.inject_latency("nvmlDeviceGetCount_v2", 1000)
    return machine


def run(machine: TestMachine, *arguments: str, code: int) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*IMPATIENT, *arguments], env=machine.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stdout + done.stderr
    return done


def test_doctor_says_so_and_looks_at_the_rest(hanging: TestMachine) -> None:
    found = json.loads(run(hanging, "doctor", "-o", "json", code=1).stdout)["findings"]
    by_check = {each["check"]: each for each in found}
    assert by_check["driver"]["message"] == SAID
    assert by_check["ledger"]["status"] == "pass"


def test_a_bundle_has_all_that_needs_no_driver(hanging: TestMachine, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    run(hanging, "bundle", "--yes", "-o", str(target), code=0)
    with tarfile.open(target) as archive:
        names = {name.rpartition("/")[2] for name in archive.getnames()}
    assert names >= {"ledger.db", "journal.json", "version.json", "doctor.json", "events.json", "machine.json"}
    assert "gpus.json" not in names


def test_metrics_end_and_a_text_file_keeps_no_value_of_before(hanging: TestMachine, tmp_path: Path) -> None:
    file = tmp_path / "tranche.prom"
    hanging.machine.clear_injections()
    hanging.tranche("metrics", "--textfile", str(file))
    assert "tranche_gpu_power_watts{" in file.read_text()
    hanging.machine.inject_latency("nvmlDeviceGetCount_v2", 1000)
    assert SAID in run(hanging, "metrics", "--textfile", str(file), code=21).stderr
    assert "tranche_gpu" not in file.read_text()
    assert "tranche_build_info{" in file.read_text()
