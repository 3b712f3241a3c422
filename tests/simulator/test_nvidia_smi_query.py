"""nvidia-smi --query-gpu and --query-compute-apps, --version and the help texts."""

from __future__ import annotations

import re
from pathlib import Path

from tests.simulator.smi_runner import make_smi


def test_the_usual_fields(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "A100-40GB", "T4")
    heading, first, second = smi.succeed(
        "--query-gpu=index,name,driver_version,memory.total,mig.mode.current,mig.mode.pending,compute_cap,count",
        "--format=csv",
    ).splitlines()
    assert heading == (
        "index, name, driver_version, memory.total [MiB], mig.mode.current, mig.mode.pending, compute_cap, count"
    )
    assert first == "0, NVIDIA A100-SXM4-40GB, 580.95.05, 40960 MiB, Disabled, Disabled, 8.0, 2"
    assert second == "1, Tesla T4, 580.95.05, 15360 MiB, [N/A], [N/A], 7.5, 2"


def test_every_field_has_an_answer(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "H100-80GB-SXM")
    fields = re.findall(r'^"([^"]+)"', smi.succeed("--help-query-gpu"), re.MULTILINE)
    assert {"uuid", "serial", "pci.bus_id", "memory.used", "memory.free", "utilization.gpu", "power.draw"} <= set(
        fields
    )
    values = smi.succeed("--query-gpu=" + ",".join(fields), "--format=csv,noheader").rstrip("\n").split(", ")
    assert len(values) == len(fields)
    assert all(values)
    assert not [value for value in values if value.startswith("[") and value != "[N/A]"]


def test_aliases_and_units(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "T4")
    heading, row = smi.succeed("--query-gpu=gpu_name,memory.total,power.limit", "--format=csv,nounits").splitlines()
    assert heading == "name, memory.total [MiB], power.limit [W]"
    assert re.fullmatch(r"Tesla T4, 15360, \d+\.\d\d", row)


def test_memory_adds_up(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "A100-40GB")
    row = smi.succeed(
        "--query-gpu=memory.total,memory.reserved,memory.used,memory.free", "--format=csv,noheader,nounits"
    )
    total, reserved, used, free = (int(value) for value in row.split(", "))
    assert total - 3 <= reserved + used + free <= total  # each is rounded down to MiB


def test_utilization_of_a_gpu_in_mig_mode_is_not_known(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "A30-24GB")
    assert smi.succeed("--query-gpu=utilization.gpu", "--format=csv,noheader") == "0 %\n"
    smi.enable_mig()
    assert smi.succeed("--query-gpu=utilization.gpu", "--format=csv,noheader") == "[N/A]\n"


def test_compute_apps(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "T4", "T4")
    query = ("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv")
    assert smi.succeed(*query) == "gpu_uuid, pid, used_gpu_memory [MiB]\n"
    uuid = smi.succeed("--query-gpu=uuid", "--format=csv,noheader", "-i", "1").strip()
    smi.machine.inject_busy(uuid, pid=4_100_001, memory=300 << 20)
    assert smi.succeed(*query).splitlines()[1:] == [f"{uuid}, 4100001, 300 MiB"]
    assert smi.succeed(*query, "-i", "0").splitlines()[1:] == []


def test_fields_and_formats_are_checked(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "T4")
    answer = smi("--query-gpu=cuda_version", "--format=csv")
    assert (answer.code, answer.text) == (2, 'Field "cuda_version" is not a valid field to query.\n\n')
    answer = smi("--query-gpu=name")
    assert answer.code == 2
    assert answer.text.startswith('"--format=" switch is missing.')
    assert smi("--query-gpu=name", "--format=xml").code == 2


def test_version(tmp_path: Path) -> None:
    assert make_smi(tmp_path, "T4").succeed("--version").splitlines() == [
        "NVIDIA-SMI version  : 580.95.05 (simulated)",
        "NVML version        : 580.95",
        "DRIVER version      : 580.95.05",
        "CUDA Version        : 13.0",
    ]


def test_help_names_every_action(tmp_path: Path) -> None:
    smi = make_smi(tmp_path, "T4")
    general, mig = smi.succeed("-h"), smi.succeed("mig", "-h")
    assert all(option in general for option in ("-L", "-mig", "--gpu-reset", "--query-gpu", "--query-compute-apps"))
    for option in ("-lgip", "-lgipp", "-lgi", "-lcip", "-lci", "-cgi", "-C", "-cci", "-dgi", "-dci", "-gi", "-ci"):
        assert f" {option}," in mig
    assert smi.succeed("mig") == mig
