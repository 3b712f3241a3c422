"""The files beside NVML: their texts, and the mount namespace in which a command finds them at their places."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tests.simulator.machines import create, enable_mig, gpu, make_machine, process_environment, talking_to
from tranche_simulator import SimulatedMachine, capabilities, driver_files

TRANCHE = (sys.executable, "-c", "from tranche.cli.main import main; main()")
HOST_SEES = (Path("/proc/driver"), Path("/sys/bus/pci/devices"), Path("/sys/bus/pci/drivers"))

LOOK = """
import json, pathlib, pynvml as nvml
nvml.nvmlInit()
capabilities = pathlib.Path("/proc/driver/nvidia/capabilities")
devices = pathlib.Path("/sys/bus/pci/devices")
def text(path): return pathlib.Path(path).read_text().strip()
def shown(handle):
    info = nvml.nvmlDeviceGetPciInfo(handle)
    folder = devices / info.busId.lower()[4:]
    ids = {name: text(folder / name) for name in
        ("vendor", "device", "subsystem_vendor", "subsystem_device", "class", "numa_node")}
    return ids | {"nvml": [info.pciDeviceId, info.pciSubSystemId], "driver": str((folder / "driver").resolve())}
print(json.dumps({
    "gpus": [shown(nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())],
    "information": sorted(path.name for path in pathlib.Path("/proc/driver/nvidia/gpus").iterdir()),
    "capabilities": {str(path.relative_to(capabilities)): path.read_text() for path in capabilities.rglob("access")},
    "minors": text("/proc/driver/nvidia-caps/mig-minors"),
    "modules": [line.split()[0] for line in text("/proc/modules").splitlines()],
    "devices": text("/proc/devices").splitlines(),
    "version": text("/proc/driver/nvidia/version"),
    "driver": nvml.nvmlSystemGetDriverVersion(),
    "comm": text("/proc/self/comm"),
}))
"""


def run(machine: SimulatedMachine, *command: str) -> subprocess.CompletedProcess[str]:
    """`tranche sim exec` on the machine; skips where this kernel allows no mount namespace."""
    done = subprocess.run(
        [*TRANCHE, "sim", "exec", machine.name, "--", *command],
        env={**process_environment(machine), "TRANCHE_SIM_ROOT": str(machine.directory.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "cannot create a mount namespace" in done.stderr:
        pytest.skip(done.stderr.splitlines()[0])
    return done


def look(machine: SimulatedMachine) -> dict[str, Any]:
    done = run(machine, sys.executable, "-c", LOOK)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_every_capability_has_the_minor_number_of_the_driver() -> None:
    lines = capabilities.mig_minors().splitlines()
    assert lines[:4] == ["config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4"]
    assert {"gpu0/gi1/access 12", "gpu0/gi1/ci0/access 13", "gpu1/gi0/access 138"} <= set(lines)
    assert lines[-1] == "gpu31/gi14/ci7/access 4322"


def test_the_kernels_own_modules_and_devices_stay() -> None:
    modules = driver_files.proc_modules("nvidia 1 0 - Live 0x1\next4 7 1 - Live 0x2\n")
    assert [line.split()[0] for line in modules.splitlines()] == ["nvidia_uvm", "nvidia_modeset", "nvidia", "ext4"]
    devices = driver_files.proc_devices("Character devices:\n  1 mem\n240 nvidia-caps\n\nBlock devices:\n  7 loop\n")
    assert devices == (
        "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n237 nvidia-caps\n511 nvidia-uvm\n"
        "\nBlock devices:\n  7 loop\n"
    )


def test_a_command_finds_the_driver_at_its_places(tmp_path: Path) -> None:
    before = [sorted(os.listdir(place)) for place in HOST_SEES if place.is_dir()]
    machine = SimulatedMachine.create("m", machine_type="p4d.24xlarge", root=tmp_path, time_scale=0)
    seen = look(machine)
    assert len(seen["gpus"]) == len(seen["information"]) == 8
    for index, shown in enumerate(seen["gpus"]):
        for value, high, low in zip(
            shown["nvml"], ("device", "subsystem_device"), ("vendor", "subsystem_vendor"), strict=True
        ):
            assert int(shown[high], 16) << 16 | int(shown[low], 16) == value
        assert (shown["vendor"], shown["class"], shown["numa_node"]) == ("0x10de", "0x030200", str(index // 4))
        assert shown["driver"] == "/sys/bus/pci/drivers/nvidia"
    assert "nvidia" in seen["modules"]
    assert "195 nvidia" in seen["devices"]
    assert seen["driver"] in seen["version"]
    assert seen["comm"].startswith("python")
    assert [sorted(os.listdir(place)) for place in HOST_SEES if place.is_dir()] == before, "the host sees none of it"


def test_the_files_of_capabilities_follow_the_instances(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "A100-40GB", "A100-40GB", "T4")
    machine.capability_files()
    with talking_to(machine):
        enable_mig(machine)
        instance = create(gpu(1), 9)
        for _ in range(2):
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        number = nvml.nvmlGpuInstanceGetInfo(instance).id
        seen = look(machine)
        places = [f"gi{number}/access", f"gi{number}/ci0/access", f"gi{number}/ci1/access"]
        minors = dict(line.split() for line in seen["minors"].splitlines())
        assert seen["capabilities"] == {
            f"gpu1/mig/{place}": f"DeviceFileMinor: {minors[f'gpu1/{place}']}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
            for place in places
        }
        nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
        assert list(look(machine)["capabilities"]) == [f"gpu1/mig/{place}" for place in (places[0], places[2])]
        machine.reboot()
        assert look(machine)["capabilities"] == {}


def test_what_is_cut_inside_is_shown_inside_at_once(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "H100-80GB-SXM")
    folder = "/proc/driver/nvidia/capabilities/gpu0/mig"
    cut, clear = "nvidia-smi -mig 1 && nvidia-smi mig -cgi 9,9 -C", "nvidia-smi mig -dci && nvidia-smi mig -dgi"
    script = f"{cut} && ls {folder} && {clear} && ls {folder}"
    done = run(machine, "sh", "-c", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("gi")] == ["gi1", "gi2"]


def test_files_left_by_a_killed_process_are_put_right(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "H100-80GB-SXM")
    stale = machine.capability_files() / "gpu0/mig/gi7"
    stale.mkdir()
    (stale / "access").write_text("left over")
    assert look(machine)["capabilities"] == {}


def test_the_commands_own_end_is_the_end(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "T4")
    assert run(machine, "sh", "-c", "exit 7").returncode == 7
    missing = run(machine, "no-such-command")
    assert (missing.returncode, "no-such-command" in missing.stderr) == (127, True)
