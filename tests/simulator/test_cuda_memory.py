"""Device memory: how much there is, who has it, what becomes of the bytes in it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.cuda_programs import MIB, cuda, cuda_program
from tests.simulator.machines import make_machine, process_environment
from tranche_simulator import SimulatedMachine, ensure_built

UNIT = 2 * MIB


@pytest.fixture
def t4(tmp_path: Path) -> SimulatedMachine:
    machine = make_machine(tmp_path, "T4")
    machine.set_context_memory(256 * MIB)
    return machine


def test_memory_runs_out_when_the_device_is_full(t4: SimulatedMachine) -> None:
    code = """
context()
held = []
while code(answer := cu.cuMemAlloc(1 << 30)) == 0:
    held.append(answer[1])
told = [len(held), code(answer), free()]
check(cu.cuMemFree(held.pop())); told += [free(), code(cu.cuMemAlloc(1 << 30)), code(cu.cuMemAlloc(1 << 40))]
tell(told)
"""
    left = (14914 - 256 - 14 * 1024) * MIB
    assert cuda(t4, code) == [14, 2, left, left + (1 << 30), 0, 2]


def test_tenants_share_what_there_is(t4: SimulatedMachine) -> None:
    hold = "context(); check(cu.cuMemAlloc(int(os.environ['BYTES']))); tell(free()); wait()"
    with cuda_program(t4, hold, BYTES=str(5 << 30)) as first, cuda_program(t4, hold, BYTES=str(6 << 30)) as second:
        first.told()
        second.told()
        code = "context(); tell([code(cu.cuMemAlloc(4 << 30)), code(cu.cuMemAlloc(2 << 30)), free()])"
        assert cuda(t4, code) == [2, 0, (14914 - 3 * 256 - 13 * 1024) * MIB]
        first.kill()
        assert cuda(t4, code)[0] == 0


def test_memory_that_is_not_touched_costs_the_host_nothing(t4: SimulatedMachine) -> None:
    code = """
context()
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
before = resident()
memory = check(cu.cuMemAlloc(3 << 30)); check(cu.cuMemsetD8(memory, 0, 3 << 30))
tell(resident() - before)
"""
    assert cuda(t4, code) < 16 * MIB


def test_bytes_are_kept_and_bounds_are_watched(t4: SimulatedMachine) -> None:
    code = """
context()
size = 3 << 20
memory, other = check(cu.cuMemAlloc(size)), check(cu.cuMemAlloc(size))
sent, got = bytearray(os.urandom(size)), bytearray(size)
check(cu.cuMemcpyHtoD(memory, address(sent), size))
check(cu.cuMemcpyDtoD(other, memory, size))
check(cu.cuMemcpyDtoH(address(got), other, size))
told = [got == sent]
told.append(code(cu.cuMemcpyHtoD(int(memory) + 1, address(sent), size)))
told.append(code(cu.cuMemcpyDtoH(address(got), int(memory) - 1, 4)))
check(cu.cuMemFree(other)); told += [code(cu.cuMemcpyDtoH(address(got), other, 4)), code(cu.cuMemFree(other))]
check(cu.cuMemsetD32(memory, 0x01020304, 4)); check(cu.cuMemsetD16(int(memory) + 4, 0x0506, 2))
check(cu.cuMemsetD8(int(memory) + 8, 7, 1))
check(cu.cuMemcpy(address(got), memory, 16)); told.append(got[:16].hex())
told += [code(cu.cuMemsetD32(int(memory) + 2, 0, 1)), code(cu.cuMemAlloc(0))]
tell(told)
"""
    assert cuda(t4, code) == [True, 1, 1, 1, 1, "04030201060506050703020104030201", 1, 1]


def test_an_address_of_the_device_is_none_of_the_host(t4: SimulatedMachine) -> None:
    code = "context(); memory = check(cu.cuMemAlloc(1 << 20)); ctypes.c_char.from_address(int(memory)).value"
    with cuda_program(t4, code) as program:
        assert program.process.wait() == -signal.SIGSEGV


def test_memory_of_both_sides(t4: SimulatedMachine) -> None:
    code = """
context(); before = free()
managed = check(cu.cuMemAllocManaged(1 << 20, 1)); ctypes.memset(int(managed), 9, 1 << 20)
pinned = check(cu.cuMemAllocHost(1 << 20)); ctypes.memset(int(pinned), 8, 1 << 20)
own = bytearray(1 << 16); check(cu.cuMemHostRegister(address(own), len(own), 0))
device = check(cu.cuMemAlloc(4)); got = bytearray(4)
check(cu.cuMemcpyDtoD(device, managed, 2)); check(cu.cuMemcpyHtoD(int(device) + 2, pinned, 2))
check(cu.cuMemcpyDtoH(address(got), device, 4))
kind = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
kinds = [int(check(cu.cuPointerGetAttribute(kind, each))) for each in (managed, pinned, device, address(own))]
told = [got.hex(), kinds, before - free(), int(check(cu.cuMemHostGetDevicePointer(pinned, 0))) == int(pinned)]
told += [code(cu.cuMemHostRegister(address(own), 4, 0)), code(cu.cuMemFree(int(pinned))), code(cu.cuMemFreeHost(pinned))]
told += [code(cu.cuMemHostUnregister(address(own))), code(cu.cuMemHostUnregister(address(own))), code(cu.cuMemFree(managed))]
tell(told)
"""
    assert cuda(t4, code) == ["09090808", [2, 1, 2, 1], UNIT, True, 712, 1, 0, 0, 713, 0]


def test_an_address_knows_its_allocation(t4: SimulatedMachine) -> None:
    code = """
mine = context(); memory = check(cu.cuMemAlloc(1000))
base, size = check(cu.cuMemGetAddressRange(int(memory) + 999))
owner = check(cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT, memory))
tell([int(base) == int(memory), size, int(owner) == int(mine), code(cu.cuMemGetAddressRange(int(memory) + 1000))])
"""
    assert cuda(t4, code) == [True, 1000, True, 500]


def test_rows_are_aligned(t4: SimulatedMachine) -> None:
    code = """
context(); before = free()
memory, pitch = check(cu.cuMemAllocPitch(1000, 5000, 4))
told = [pitch, before - free()]
told += [code(cu.cuMemsetD2D8(memory, pitch, 5, 1000, rows)) for rows in (5000, 5001)]
got = bytearray(1024); check(cu.cuMemcpyDtoH(address(got), int(memory) + pitch, 1024))
tell(told + [got.count(5)])
"""
    assert cuda(t4, code) == [1024, 6 * MIB, 0, 1, 1000]


@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(st.integers(1, 12 * MIB), min_size=1, max_size=30), kept=st.integers(0, 29))
def test_what_is_taken_is_given_back(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], kept: int) -> None:
    """Small allocations share pieces of 2 MiB, others have whole ones; when all is freed, all is there again."""
    machine = make_machine(tmp_path_factory.mktemp("machines"), "T4")
    code = f"""
context(); before = free()
held = [check(cu.cuMemAlloc(size)) for size in {sizes}]
full = before - free()
for memory in held[{kept}:]: check(cu.cuMemFree(memory))
part = before - free()
for memory in held[:{kept}]: check(cu.cuMemFree(memory))
tell([full, part, before - free()])
"""

    def taken(some: list[int]) -> int:
        small = sum(size for size in some if size <= MIB)
        large = sum(-(-size // UNIT) for size in some if size > MIB)
        return (-(-small // UNIT) + large) * UNIT

    assert cuda(machine, code) == [taken(sizes), taken(sizes[:kept]), 0]


C_PROGRAM = """
#include <stdio.h>
#include <stddef.h>
int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, size_t);
int cuGetErrorName(int, const char **);
int main(void) {
    void *context; unsigned long long memory; const char *name;
    int code = cuInit(0) + cuCtxCreate_v2(&context, 0, 0) + cuMemAlloc_v2(&memory, 3ull << 30);
    cuGetErrorName(cuMemAlloc_v2(&memory, 20ull << 30), &name);
    printf("%d %s\\n", code, name);
    return 0;
}
"""


def test_a_c_program_linked_with_the_driver(t4: SimulatedMachine, tmp_path: Path) -> None:
    source = tmp_path / "program.c"
    source.write_text(C_PROGRAM)
    library = ensure_built().cuda
    command = ["cc", str(source), f"-L{library.parent}", "-l:libcuda.so.1", "-o", str(tmp_path / "program")]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run(
        [str(tmp_path / "program")], env=process_environment(t4), capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 CUDA_ERROR_OUT_OF_MEMORY\n"


def test_ctypes_finds_the_same_library(t4: SimulatedMachine) -> None:
    code = """
library = ctypes.CDLL("libcuda.so.1")
made, memory = ctypes.c_void_p(), ctypes.c_ulonglong()
told = [library.cuInit(0), library.cuCtxCreate_v2(ctypes.byref(made), 0, 0)]
tell(told + [library.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(3 << 30)), code(cu.cuMemAlloc(14 << 30))])
"""
    assert cuda(t4, code) == [0, 0, 0, 2]


def test_nothing_of_nvml_is_in_cudas_library() -> None:
    command = ["nm", "-D", "--defined-only", str(ensure_built().cuda)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in listed.stdout.splitlines() if " T " in line]
    assert len(names) > 140
    assert [name for name in names if not name.startswith("cu")] == []
