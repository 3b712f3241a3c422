"""nvidia-smi -q, topo -m, and the settings -pm, -c and compute-policy; and the NVML calls behind them."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pynvml as nvml
import pytest

from tests.conftest import Golden
from tests.simulator.machines import error_of, gpu, make_machine, talking_to
from tests.simulator.smi_runner import Smi, make_smi, smi_of_swapped_a100
from tranche_simulator import SimulatedMachine

NOT_SUPPORTED, NO_PERMISSION = 3, 4
BUS = "00000000:10:00.0"


def without_time(report: str) -> str:
    return re.sub(r"(?m)^(Timestamp +: ).+$", r"\1DATE", report)


def test_report_of_a_whole_gpu(tmp_path: Path, golden: Golden) -> None:
    golden("q-whole.txt", without_time(make_smi(tmp_path, "T4").succeed("-q")))


def test_report_with_slices_and_a_process(tmp_path: Path, golden: Golden) -> None:
    smi = smi_of_swapped_a100(tmp_path)
    smi.enable_mig()
    smi.succeed("mig", "-cgi", "4g.20gb,1g.5gb", "-C")
    uuid = re.findall(r"UUID: (MIG-[^)]+)", smi.succeed("-L"))[0]
    smi.machine.inject_busy(uuid, pid=4_999_999, name="train", memory=3 << 30)
    golden("q-slices.txt", without_time(smi.succeed("-q")))


def test_a_report_of_some_sections(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "H100-80GB-SXM", "T4")
    headings = [
        line
        for line in smi.succeed("-q", "-d", "ecc,ROW_REMAPPER", "-i", "0").splitlines()
        if re.match(r" {4}\S", line)
    ]
    assert [heading.strip() for heading in headings] == ["ECC Mode", "ECC Errors", "Remapped Rows"]
    assert "Remapped Rows                         : N/A" in smi.succeed("-q", "--display=ROW_REMAPPER", "-i", "1")
    for arguments in (("-q", "-d", "NOTHING"), ("-d", "MEMORY"), ("-q", "-L"), ("-q", "-pm", "1")):
        assert smi(*arguments).code == 2, arguments


def test_matrix_of_a_machine_with_links_on_two_sockets(tmp_path: Path, golden: Golden) -> None:
    smi = Smi(SimulatedMachine.create("m", machine_type="p4d.24xlarge", root=tmp_path, time_scale=0))
    golden("topo-p4d.txt", re.sub(r"\t0(?:-\d+)?\t(\d)\t\t", r"\tCPUS\t\1\t\t", smi.succeed("topo", "-m")))


def test_matrix_without_links(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "T4", "T4", "T4")
    rows = [line.split("\t")[:4] for line in Smi(machine).succeed("topo", "-m").splitlines()[1:4]]
    assert rows == [["GPU0", " X ", "SYS", "NODE"], ["GPU1", "SYS", " X ", "SYS"], ["GPU2", "NODE", "SYS", " X "]]
    assert Smi(machine)("topo").code == 2
    assert Smi(machine)("topo", "-p").code == 2


def test_persistence_and_compute_mode(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "A100-40GB", "T4")
    assert smi.succeed("-pm", "0", "-i", "0") == f"Disabled persistence mode for GPU {BUS}.\nAll done.\n"
    assert smi.succeed("-pm", "DISABLED", "-i", "0").startswith("Persistence mode is already Disabled")
    assert smi.succeed("-c", "EXCLUSIVE_PROCESS", "-i", "0") == (
        f"Set compute mode to EXCLUSIVE_PROCESS for GPU {BUS}.\nAll done.\n"
    )
    assert smi.succeed("-c", "3", "-i", "0").startswith("Compute mode is already set to EXCLUSIVE_PROCESS")
    with talking_to(smi.machine):
        assert [nvml.nvmlDeviceGetPersistenceMode(gpu(i)) for i in range(2)] == [0, 1]
        assert [nvml.nvmlDeviceGetComputeMode(gpu(i)) for i in range(2)] == [nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, 0]
    for arguments in (("-pm", "2"), ("-c", "4"), ("-c", "SHARED"), ("-pm",)):
        assert smi(*arguments).code == 2, arguments


def test_time_slices(tmp_path: Path, golden: Golden) -> None:
    smi = make_smi(tmp_path, "A100-40GB", "T4")
    uuid = smi.machine.gpus()[1].uuid
    smi.succeed("compute-policy", "-i", uuid, "--set-timeslice", "3")
    golden("compute-policy.txt", smi.succeed("compute-policy", "--list"))
    smi.machine.reboot()
    assert "Long" not in smi.succeed("compute-policy", "-l")
    for arguments in ((), ("-l", "--set-timeslice=1"), ("--set-timeslice=4",), ("--set-timeslice",), ("--nonsense",)):
        assert smi("compute-policy", *arguments).code == 2, arguments


@pytest.mark.parametrize("arguments", [("-pm", "0"), ("-c", "PROHIBITED"), ("compute-policy", "--set-timeslice=1")])
def test_settings_need_permission(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    smi = make_smi(tmp_path, "A100-40GB")
    answer = Smi(smi.machine, {"TRANCHE_SIM_UNPRIVILEGED": "1"})(*arguments)
    assert answer.code == NO_PERMISSION
    assert answer.text.startswith("Unable to set ")
    assert smi("-q", "-d", "COMPUTE").text.count("Default") == 1


@pytest.mark.parametrize(
    ("board", "addressing", "remapping"),
    [
        ("T4", "HMM", False),
        ("A100-40GB", "HMM", True),
        ("B200", "HMM", True),
        ("GH200-96GB", "ATS", True),
        ("GB300", "ATS", True),
    ],
)
def test_what_a_board_does_beside_being_cut(tmp_path: Path, board: str, addressing: str, remapping: bool) -> None:
    machine = make_machine(tmp_path, board)
    with talking_to(machine):
        mode = nvml.nvmlDeviceGetAddressingMode(gpu())
        assert mode == getattr(nvml, f"NVML_DEVICE_ADDRESSING_MODE_{addressing}")
        if remapping:
            assert nvml.nvmlDeviceGetRemappedRows(gpu()) == (0, 0, 0, 0)
        else:
            assert error_of(nvml.nvmlDeviceGetRemappedRows, gpu()) == NOT_SUPPORTED


@pytest.mark.parametrize(
    ("board", "subsystem", "sub_class"),
    [
        ("A100-40GB", 0x134F10DE, 0x02),
        ("H20-96GB", 0x198B10DE, 0x02),
        ("PG506-96GB", 0x000010DE, 0x02),
        ("RTX-PRO-5000-48GB", 0x000010DE, 0x00),
    ],
)
def test_pci_ids(tmp_path: Path, board: str, subsystem: int, sub_class: int) -> None:
    machine = make_machine(tmp_path, board)
    with talking_to(machine):
        assert nvml.nvmlDeviceGetPciInfo(gpu()).pciSubSystemId == subsystem
        extended = nvml.nvmlPciInfoExt_v1_t(version=nvml.nvmlPciInfoExt_v1)
        nvml.nvmlDeviceGetPciInfoExt(gpu(), ctypes.byref(extended))
        assert (extended.baseClass, extended.subClass, extended.pciSubSystemId) == (3, sub_class, subsystem)
