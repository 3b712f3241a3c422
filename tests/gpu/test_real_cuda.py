"""What a real libcuda answers to what no document says, beside the simulated one. Prints both; skipped without an NVIDIA driver.

Each program takes memory and a context on the first GPU for a moment, and changes no setting. Run it with -s to see all answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.cuda_programs import PREAMBLE, cuda
from tests.simulator.machines import SIMULATOR_VARIABLES
from tranche_simulator import SimulatedMachine, SimulatorError

# What the answer is a matter of taste, of the board or of the release is shown; what the simulator claims is compared.
SHOWN = {
    "the size of a context": """
context(); left, total = check(cu.cuMemGetInfo()); import pynvml; pynvml.nvmlInit()
running = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
own = [process.usedGpuMemory for process in running if process.pid == os.getpid()]
second = context(); tell({"device": total - left, "nvml": own, "second context": left - free()})
""",
    "what an allocation takes": """
context(); sizes = (1, 1 << 10, 1 << 20, (1 << 20) + 1, 1 << 21, (1 << 21) + 1); taken = {}
for size in sizes:
    before = free(); memory = check(cu.cuMemAlloc(size)); taken[size] = before - free(); check(cu.cuMemFree(memory))
tell(taken)
""",
    "what a pool takes": """
context(); pool = check(cu.cuDeviceGetDefaultMemPool(0)); A = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
reserved = lambda: int(check(cu.cuMemPoolGetAttribute(pool, A)))
memory = check(cu.cuMemAllocAsync(1, 0)); told = [reserved()]; check(cu.cuMemFreeAsync(memory, 0)); told.append(reserved())
check(cu.cuCtxSynchronize()); tell(told + [reserved()])
""",
    "memory without a context": """
check(cu.cuInit(0)); wanted = cu.CUmemAllocationProp(); wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; wanted.location.id = 0
told = [code(cu.cuMemCreate(2 << 20, wanted, 0))]
tell(told + [check(cu.cuMemGetAllocationGranularity(wanted, cu.CUmemAllocationGranularity_flags(0)))])
""",
    "attributes": """
check(cu.cuInit(0)); told = {}
for attribute in cu.CUdevice_attribute:
    answer = cu.cuDeviceGetAttribute(attribute, 0)
    told[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")] = int(answer[1]) if code(answer) == 0 else None
tell(told)
""",
}
COMPARED = {
    "before cuInit": "tell([code(cu.cuDeviceGetCount()), code(cu.cuMemGetInfo()), code(cu.cuInit(1)), code(cu.cuInit(0))])",
    "without a context": """
check(cu.cuInit(0)); tell([code(cu.cuMemAlloc(1)), code(cu.cuCtxSynchronize()), code(cu.cuDeviceGet(99))])
""",
    "bad addresses": """
context(); memory = check(cu.cuMemAlloc(100)); got = bytearray(300)
told = [code(cu.cuMemAlloc(0)), code(cu.cuMemFree(int(memory) + 1)), code(cu.cuMemFree(memory)), code(cu.cuMemFree(memory))]
tell(told + [code(cu.cuMemcpyDtoH(address(got), memory, 1)), code(cu.cuMemGetAddressRange(memory))])
""",
    "more than there is": "context(); tell([code(cu.cuMemAlloc(1 << 45)), code(cu.cuMemAlloc(1))])",
    "a fork": """
context(); child = os.fork()
if child == 0:
    tell([code(cu.cuInit(0)), code(cu.cuMemAlloc(1)), code(cu.cuDeviceGetCount())]); os._exit(0)
os.waitpid(child, 0)
""",
    "the primary context": """
check(cu.cuInit(0)); first = check(cu.cuDevicePrimaryCtxRetain(0)); check(cu.cuCtxSetCurrent(first))
told = [code(cu.cuCtxDestroy(first)), code(cu.cuDevicePrimaryCtxRelease(0)), code(cu.cuMemGetInfo())]
told += [code(cu.cuDevicePrimaryCtxRelease(0)), int(check(cu.cuDevicePrimaryCtxRetain(0))) == int(first)]
tell(told + [code(cu.cuMemGetInfo())])
""",
    "what is no module": "context(); tell([code(cu.cuModuleLoadData(b'nonsense')), code(cu.cuModuleGetFunction(None, b'x'))])",
    "what is no launch": """
context(); work = kernel()
tell([launch(work, 1, blocks=0), code(cu.cuLaunchKernel(work, 1, 1, 1, 1025, 1, 1, 0, 0, 0, 0)), launch(work, 1)])
""",
    "an illegal address": """
context(); text = b".version 6.4\\n.target sm_70\\n.address_size 64\\n// tranche-sim: bad fault=700\\n"
text += b".visible .entry bad() { .reg .u64 %a; mov.u64 %a, 16; st.global.u32 [%a], 1; ret; }"
bad = check(cu.cuModuleGetFunction(check(cu.cuModuleLoadData(text)), b"bad"))
told = [code(cu.cuLaunchKernel(bad, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)), code(cu.cuCtxSynchronize()), code(cu.cuMemAlloc(1))]
tell(told + [code(cu.cuDeviceGetCount()), code(cu.cuCtxCreate(None, 0, 0))])
""",
}
VISIBLE = ["", "-1", "0", "0,0", "0,99,0", "99,0", "GPU-", "nonsense", "0, 0"]
COUNT = "first = code(cu.cuInit(0)); tell([first, check(cu.cuDeviceGetCount()) if first == 0 else None])"


def on_real(code: str, **variables: str) -> Any:
    """What a program tells on this machine's own driver."""
    environment = {name: value for name, value in os.environ.items() if name not in SIMULATOR_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["unknown"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def board() -> str:
    """The name of this machine's first GPU, by its own driver."""
    try:
        name = "check(cu.cuInit(0)); tell(check(cu.cuDeviceGetName(100, 0)).split(b'\\0')[0].decode())"
        return str(on_real(name, CUDA_DEVICE_ORDER="PCI_BUS_ID"))
    except RuntimeError as error:
        pytest.skip(f"no NVIDIA driver for CUDA: {error}")


@pytest.fixture
def twin(board: str, tmp_path: Path) -> SimulatedMachine:
    """A simulated machine with the same GPU."""
    try:
        return SimulatedMachine.create("twin", boards=[board], root=tmp_path, time_scale=0)
    except SimulatorError as error:
        pytest.skip(f"this GPU is not in the catalogue: {error}")


@pytest.mark.gpu
@pytest.mark.parametrize("what", SHOWN)
def test_what_is_measured(twin: SimulatedMachine, what: str) -> None:
    real, simulated = on_real(SHOWN[what]), cuda(twin, SHOWN[what])
    print(f"\n{what}\n  real:      {real}\n  simulated: {simulated}")
    if isinstance(real, dict):
        print(f"  different: {sorted(name for name in real if real[name] != simulated.get(name))}")


@pytest.mark.gpu
@pytest.mark.parametrize("what", COMPARED)
def test_what_is_claimed(twin: SimulatedMachine, what: str) -> None:
    real, simulated = on_real(COMPARED[what]), cuda(twin, COMPARED[what])
    print(f"\n{what}\n  real:      {real}\n  simulated: {simulated}")
    assert simulated == real


@pytest.mark.gpu
@pytest.mark.parametrize("visible", VISIBLE)
def test_visible_devices(twin: SimulatedMachine, visible: str) -> None:
    real = on_real(COUNT, CUDA_VISIBLE_DEVICES=visible)
    simulated = cuda(twin, COUNT, CUDA_VISIBLE_DEVICES=visible)
    print(f"\nCUDA_VISIBLE_DEVICES={visible!r}\n  real:      {real}\n  simulated: {simulated}")
    assert simulated == real


@pytest.mark.parametrize("what", [*SHOWN, *COMPARED])
def test_the_programs_run_on_a_simulated_gpu(tmp_path: Path, what: str) -> None:
    """So that they do when there is a real one."""
    machine = SimulatedMachine.create("h200", boards=["H200-141GB"], root=tmp_path, time_scale=0)
    print(cuda(machine, {**SHOWN, **COMPARED}[what]))
