"""Programs that know nothing of the simulator: nvidia-ml-py and nvitop as installed, a forked unprivileged process."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pynvml as nvml
import pytest

from tests.simulator.machines import (
    create,
    enable_mig,
    gpu,
    mig_devices,
    process_environment,
    run_python,
    span,
    talking_to,
)
from tranche_simulator import SimulatedMachine, ensure_built
from tranche_simulator.recipe import NATIVE

NO_PERMISSION, NO_DRIVER = 4, 9
NOBODY = 65534

# What go-nvml resolves beyond the symbols that nvidia-ml-py uses.
GO_SYMBOLS = [
    "nvmlInit",
    "nvmlInit_v2",
    "nvmlErrorString",
    "nvmlComputeInstanceGetInfo",
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetDriverModel",
    "nvmlDeviceGetGpuInstancePossiblePlacements",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetGridLicensableFeatures",
    "nvmlDeviceGetGridLicensableFeatures_v2",
    "nvmlDeviceGetGridLicensableFeatures_v3",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByPciBusId",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetPciInfo_v2",
    "nvmlDeviceRemoveGpu_v2",
    "nvmlEventSetWait",
    "nvmlVgpuInstanceGetLicenseInfo",
]


@pytest.fixture
def p4d(tmp_path: Path) -> SimulatedMachine:
    return SimulatedMachine.create(machine_type="p4d.24xlarge", root=tmp_path, time_scale=0.0)


def cut_in_seven(machine: SimulatedMachine) -> None:
    with talking_to(machine):
        enable_mig(machine)
        for index in range(8):
            for _ in range(7):
                span(create(gpu(index), 19))


def test_every_symbol_of_nvidia_ml_py_and_go_nvml_is_there() -> None:
    source = Path(nvml.__file__).read_text()
    wanted = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source))
    assert len(wanted) > 350
    library = ctypes.CDLL(str(ensure_built().library))
    assert [name for name in sorted(wanted | set(GO_SYMBOLS)) if not hasattr(library, name)] == []


def test_unsupported_symbols_are_listed_once_and_say_so(p4d: SimulatedMachine) -> None:
    names = (NATIVE / "unsupported_symbols.txt").read_text().split()
    assert names == sorted(set(names))
    with talking_to(p4d):
        for name in names:
            assert getattr(nvml.nvmlLib, name)() == nvml.NVML_ERROR_NOT_SUPPORTED, name


def test_every_function_of_cuda_s_driver_is_there_and_what_is_not_simulated_says_so(p4d: SimulatedMachine) -> None:
    """By the linker, as numba asks, and by cuGetProcAddress, as cuda-bindings does."""
    names = (NATIVE / "cuda" / "unsupported_symbols.txt").read_text().split()
    assert names == sorted(set(names))
    code = f"""
import ctypes, json, re
from cuda.bindings import driver
library = ctypes.CDLL("libcuda.so.1")
names = {names!r}
named = [name for name in dir(driver) if name.startswith("cu") and name[2].isupper()]
asked = [name for name in named if callable(getattr(driver, name))]
library.cuInit.restype = ctypes.c_int
before = [name for name in names if getattr(library, name)() != 3]
library.cuInit(0)
pointer, found = ctypes.c_void_p(), ctypes.c_int()
def finds(name):
    return library.cuGetProcAddress_v2(name.encode(), ctypes.byref(pointer), 13000, ctypes.c_uint64(0), ctypes.byref(found)) == 0
print(json.dumps([len(asked), before, [name for name in names if getattr(library, name)() != 801],
    [name for name in asked if not (hasattr(library, name) and finds(re.sub("_v[0-9]$", "", name)))],
    finds("cuNoSuchThing"), found.value]))
"""
    count, before, after, missing, invented, status = json.loads(run_python(p4d, code).stdout)
    assert count > 400
    assert (before, after, missing) == ([], [], [])
    assert (invented, status) == (False, 1)


def test_nvidia_ml_py_finds_the_simulator_by_the_linker(p4d: SimulatedMachine) -> None:
    code = """
import json, pynvml as n
n.nvmlInit()
print(json.dumps([n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())]))
"""
    assert json.loads(run_python(p4d, code).stdout) == ["NVIDIA A100-SXM4-40GB"] * 8


def test_without_a_machine_there_is_no_driver(p4d: SimulatedMachine) -> None:
    code = "import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)"
    assert run_python(p4d, code, TRANCHE_SIM_STATE=str(p4d.directory / "none")).stdout.strip() == str(NO_DRIVER)
    damaged = p4d.directory / "damaged"
    damaged.write_bytes(b"x" * 100)
    assert run_python(p4d, code, TRANCHE_SIM_STATE=str(damaged)).stdout.strip() == "18"


def nvitop(machine: SimulatedMachine) -> str:
    environment = process_environment(machine, LINES="200", COLUMNS="100", TERM="dumb")
    command = [sys.executable, "-m", "nvitop", "--once", "--no-unicode"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nvitop_shows_whole_gpus(p4d: SimulatedMachine) -> None:
    shown = nvitop(p4d)
    assert "Driver Version: 580.95.05" in shown
    assert shown.count("A100-SXM4-40GB") == 8
    assert shown.count("Disabled") == 8
    assert "00000000:10:1C.0" in shown


def test_nvitop_shows_slices_and_their_processes(p4d: SimulatedMachine) -> None:
    cut_in_seven(p4d)
    with talking_to(p4d):
        uuid = nvml.nvmlDeviceGetUUID(mig_devices(gpu(2))[4])
    p4d.inject_busy(uuid, pid=os.getpid(), memory=1 << 30)
    shown = nvitop(p4d)
    assert shown.count("1g.5gb @ GI/CI:") == 56
    assert shown.count("Enabled") == 8
    assert re.search(rf"\b2:4\s+{os.getpid()}\b", shown), "its process, under GPU 2, MIG device 4"


def open_to_others(directory: Path) -> None:
    """Let other users into a folder of this test, which pytest keeps to its owner."""
    temporary = Path(tempfile.gettempdir())
    for folder in (directory, *directory.parents):
        if temporary in folder.parents:
            folder.chmod(0o755)


def test_another_user_reads_but_changes_nothing(p4d: SimulatedMachine) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    open_to_others(p4d.directory)
    with talking_to(p4d):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(NOBODY)
            results = [nvml.nvmlDeviceGetCount()]
            for call, arguments in (
                (nvml.nvmlDeviceSetMigMode, (gpu(), 1)),
                (nvml.nvmlDeviceSetPersistenceMode, (gpu(), 0)),
            ):
                try:
                    call(*arguments)
                    results.append(0)
                except nvml.NVMLError as error:
                    results.append(int(error.value))
            p4d.attach(nvml.nvmlDeviceGetUUID(gpu()))
            results.append(len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu())))
            os.write(write, json.dumps(results).encode())
            os._exit(0)
        os.close(write)
        results = json.loads(os.read(read, 1000))
        os.close(read)
        os.waitpid(child, 0)
    assert results == [8, NO_PERMISSION, NO_PERMISSION, 1]


def test_nothing_is_written_through_a_read_only_state(p4d: SimulatedMachine) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    open_to_others(p4d.directory)
    p4d.state.chmod(0o444)
    code = f"""
import ctypes, os, pynvml as n
ctypes.CDLL("libnvidia-ml.so.1")  # while the library can still be read
os.setuid({NOBODY})
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(0)
print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetMemoryInfo(d).total, n.nvmlDeviceGetComputeRunningProcesses(d))
try: n.nvmlDeviceSetMigMode(d, 1)
except n.NVMLError as e: print(e.value)
"""
    done = run_python(p4d, code)
    assert done.stdout.splitlines() == [f"8 {40960 << 20} []", str(NO_PERMISSION)], done.stderr
