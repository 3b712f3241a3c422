"""`tranche metrics`: what can be measured of one machine, and what cannot."""

from __future__ import annotations

import os
import re
import stat
import subprocess

import pytest
from release.monitoring import promtool

from tests.cli.conftest import MakeMachine
from tests.machines import TestMachine

_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def series(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every sample of a text by its name, with its labels."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels or ""))
            found.setdefault(name, []).append((pairs, float(value)))
    return found


@pytest.fixture
def cut_h100(make_machine: MakeMachine) -> TestMachine:
    """An A100 and an H100, the second cut into 1g, 1g and 3g."""
    machine = make_machine("A100-40GB", "H100-80GB-SXM")
    machine.cut_by_hand(1, "19", "19", "9")
    return machine


def test_one_machine_with_what_each_gpu_can_measure(cut_h100: TestMachine) -> None:
    cut_h100.hold("--mig-profile", "1g.10gb", "--gpu-model", "H100")
    text = cut_h100.tranche("metrics").stdout
    assert text.endswith("# EOF\n")
    found = series(text)
    assert sorted(labels["state"] for labels, _ in found["tranche_slice_state"]) == ["held", "idle", "idle"]
    assert len(found["tranche_slice_sm_active_ratio"]) == 3
    assert [labels["gpu_uuid"] for labels, _ in found["tranche_gpu_utilization_ratio"]] == [
        cut_h100.machine.gpus()[0].uuid
    ]
    assert len(found["tranche_gpu_power_watts"]) == 2
    (holder,) = found["tranche_holder_start_time_seconds"]
    assert (holder[0]["keeper"], holder[0]["profile"], holder[0]["pod"]) == ("process", "1g.10gb", "")
    assert found["tranche_queue_requests"] == [({}, 0.0)]
    assert "tranche_queue_oldest_wait_seconds" not in found
    assert "tranche_component_ready" not in found, "only an agent has it"


def test_a_change_is_counted_whoever_made_it(cut_h100: TestMachine) -> None:
    cut_h100.tranche("layout", "apply", "-c", "all-disabled")
    counts = series(cut_h100.tranche("metrics").stdout)["tranche_change_duration_seconds_count"]
    assert [labels for labels, count in counts if count] == [{"kind": "layout", "outcome": "done"}]


def test_a_lost_gpu_is_said_to_be_lost_and_has_no_readings(cut_h100: TestMachine) -> None:
    cut_h100.machine.inject_lost(1)
    found = series(cut_h100.tranche("metrics").stdout)
    assert sorted(value for _, value in found["tranche_gpu_lost"]) == [0.0, 1.0]
    assert len(found["tranche_gpu_power_watts"]) == 1
    assert found["tranche_nvml_errors_total"][0][0] == {"error": "GPU_IS_LOST"}


def test_the_names_of_dcgm(cut_h100: TestMachine) -> None:
    found = series(cut_h100.tranche("metrics", "--names", "dcgm").stdout)
    assert all(name.startswith("DCGM_FI_") for name in found)
    assert len(found["DCGM_FI_DEV_FB_USED"]) == 4, "three slices and the GPU that is not cut"
    assert len(found["DCGM_FI_DEV_POWER_USAGE"]) == 2
    both = series(cut_h100.tranche("metrics", "--names", "both").stdout)
    assert found.keys() < both.keys()


def test_a_textfile_is_replaced_at_once_and_others_may_read_it(cut_h100: TestMachine) -> None:
    path = cut_h100.folder / "tranche.prom"
    path.write_text("old")
    before = path.stat().st_ino
    assert cut_h100.tranche("metrics", "--textfile", str(path)).stdout == ""
    text = path.read_text()
    assert "# EOF" not in text
    assert "# UNIT" not in text
    assert series(text).keys() == series(cut_h100.tranche("metrics").stdout).keys()
    assert path.stat().st_ino != before
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [name for name in os.listdir(cut_h100.folder) if "prom" in name] == ["tranche.prom"]


@pytest.mark.prometheus
def test_promtool_has_nothing_to_say_about_the_names(cut_h100: TestMachine) -> None:
    path = cut_h100.folder / "tranche.prom"
    cut_h100.tranche("metrics", "--textfile", str(path))
    with path.open() as text:
        done = subprocess.run(
            [str(promtool()), "check", "metrics"], stdin=text, capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_without_prometheus_client_the_error_names_the_extra(cut_h100: TestMachine) -> None:
    (cut_h100.folder / "prometheus_client.py").write_text("raise ModuleNotFoundError(name='prometheus_client')")
    done = cut_h100.tranche("metrics", code=2, PYTHONPATH=str(cut_h100.folder))
    assert "needs the Python package 'prometheus_client'" in done.stderr
    assert ".whl[metrics]" in done.stderr


def test_a_folder_that_is_not_there_is_refused_before_anything_is_read(cut_h100: TestMachine) -> None:
    done = cut_h100.tranche("metrics", "--textfile", "/nowhere/tranche.prom", code=2)
    assert "folder /nowhere does not exist" in done.stderr
