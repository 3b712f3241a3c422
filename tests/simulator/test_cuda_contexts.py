"""Contexts: who is a client of the GPU because of them, which one a thread works in, and what ends all work of a process."""

from __future__ import annotations

from pathlib import Path

import pynvml as nvml
import pytest

from tests.simulator.cuda_programs import MIB, cuda, cuda_program
from tests.simulator.machines import create, enable_mig, error_of, gpu, make_machine, mig_devices, span, talking_to
from tranche_simulator import SimulatedMachine

IN_USE = 19
T4_CONTEXT = 187 * MIB  # 40, and 3.69 for each of its multiprocessors


@pytest.fixture
def t4(tmp_path: Path) -> SimulatedMachine:
    return make_machine(tmp_path, "T4")


def test_a_process_is_listed_while_it_has_a_context(t4: SimulatedMachine) -> None:
    code = """
check(cu.cuInit(0)); tell("init"); wait()
first = check(cu.cuCtxCreate(None, 0, 0)); second = check(cu.cuCtxCreate(None, 0, 0)); tell("two"); wait()
check(cu.cuCtxDestroy(second)); tell("one"); wait()
check(cu.cuCtxDestroy(first)); tell("none"); wait()
"""
    with talking_to(t4), cuda_program(t4, code) as program:
        seen = []
        for _ in range(4):
            stage = program.told()
            held = [(each.pid, each.usedGpuMemory) for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu())]
            seen.append((stage, held))
            program.go_on()
    assert seen == [
        ("init", []),
        ("two", [(program.pid, 2 * T4_CONTEXT)]),
        ("one", [(program.pid, T4_CONTEXT)]),
        ("none", []),
    ]


def test_a_killed_process_holds_nothing(t4: SimulatedMachine) -> None:
    with cuda_program(t4, "context(); check(cu.cuMemAlloc(8 << 30)); tell(1); wait()") as program:
        program.told()
        assert [client.memory for client in t4.clients()] == [T4_CONTEXT + (8 << 30)]
        program.kill()
        assert t4.clients() == ()
        assert cuda(t4, "context(); check(cu.cuMemAlloc(14 << 30)); tell(True)") is True


def test_the_size_of_a_context_can_be_set(t4: SimulatedMachine) -> None:
    t4.set_context_memory(500 * MIB)
    assert cuda(t4, "context(); a, t = check(cu.cuMemGetInfo()); tell(t - a)") == 500 * MIB
    t4.set_context_memory(0)
    assert cuda(t4, "context(); a, t = check(cu.cuMemGetInfo()); tell(t - a)") == T4_CONTEXT


def test_a_context_needs_memory(t4: SimulatedMachine) -> None:
    t4.inject_busy(t4.gpus()[0].uuid, memory=14800 * MIB)
    assert cuda(t4, "check(cu.cuInit(0)); tell(code(cu.cuCtxCreate(None, 0, 0)))") == 2
    assert cuda(t4, "check(cu.cuInit(0)); tell(code(cu.cuDevicePrimaryCtxRetain(0)))") == 2


def test_a_slice_in_use_stays(tmp_path: Path) -> None:
    machine = make_machine(tmp_path)
    with talking_to(machine):
        enable_mig(machine)
        instance = create(gpu(), 19)
        compute = span(instance)
        (device,) = mig_devices(gpu())
        uuid = nvml.nvmlDeviceGetUUID(device)
        with cuda_program(machine, "context(); tell(free()); wait()", CUDA_VISIBLE_DEVICES=uuid) as program:
            assert program.told() == (4864 - 91) * MIB
            assert error_of(nvml.nvmlComputeInstanceDestroy, compute) == IN_USE
            assert [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(device)] == [program.pid]
        assert error_of(nvml.nvmlComputeInstanceDestroy, compute) == 0


def test_a_slice_that_goes_between_init_and_context(tmp_path: Path) -> None:
    machine = make_machine(tmp_path)
    with talking_to(machine):
        enable_mig(machine)
        instance = create(gpu(), 19)
        compute = span(instance)
        code = "check(cu.cuInit(0)); tell(1); wait(); tell(code(cu.cuCtxCreate(None, 0, 0)))"
        with cuda_program(machine, code) as program:
            program.told()
            nvml.nvmlComputeInstanceDestroy(compute)
            program.go_on()
            assert program.told() == 46


def test_compute_modes(t4: SimulatedMachine) -> None:
    attempt = "check(cu.cuInit(0)); tell(code(cu.cuCtxCreate(None, 0, 0)))"
    with talking_to(t4):
        nvml.nvmlDeviceSetComputeMode(gpu(), nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        with cuda_program(t4, "context(); context(); tell(1); wait()") as program:
            program.told()
            assert cuda(t4, attempt) == 46
        assert cuda(t4, attempt) == 0
        nvml.nvmlDeviceSetComputeMode(gpu(), nvml.NVML_COMPUTEMODE_PROHIBITED)
        assert cuda(t4, attempt) == 46


def test_the_primary_context_is_counted_and_keeps_its_handle(t4: SimulatedMachine) -> None:
    code = """
check(cu.cuInit(0))
told = [check(cu.cuDevicePrimaryCtxGetState(0))[1]]
first, again = check(cu.cuDevicePrimaryCtxRetain(0)), check(cu.cuDevicePrimaryCtxRetain(0))
told += [int(first) == int(again), check(cu.cuDevicePrimaryCtxGetState(0))[1], code(cu.cuMemGetInfo())]
check(cu.cuCtxSetCurrent(first))
told += [code(cu.cuMemGetInfo()), code(cu.cuCtxDestroy(first))]
told += [code(cu.cuDevicePrimaryCtxRelease(0)), code(cu.cuMemGetInfo())]
told += [code(cu.cuDevicePrimaryCtxRelease(0)), code(cu.cuMemGetInfo()), code(cu.cuDevicePrimaryCtxRelease(0))]
told += [int(check(cu.cuDevicePrimaryCtxRetain(0))) == int(first), code(cu.cuMemGetInfo())]
told += [code(cu.cuDevicePrimaryCtxReset(0)), check(cu.cuDevicePrimaryCtxGetState(0))[1]]
tell(told)
"""
    assert cuda(t4, code) == [0, True, 1, 201, 0, 201, 0, 0, 0, 709, 201, True, 0, 0, 0]


def test_the_stack_of_contexts_is_the_threads_own(t4: SimulatedMachine) -> None:
    code = """
import threading
first = context()
second = context()
told = [int(check(cu.cuCtxGetCurrent())) == int(second)]
check(cu.cuCtxPopCurrent()); told.append(int(check(cu.cuCtxGetCurrent())) == int(first))
check(cu.cuCtxPopCurrent()); told += [int(check(cu.cuCtxGetCurrent())), code(cu.cuCtxPopCurrent())]
check(cu.cuCtxPushCurrent(second))
other = threading.Thread(target=lambda: told.append(code(cu.cuMemAlloc(1)))); other.start(); other.join()
told += [code(cu.cuMemAlloc(1)), int(check(cu.cuCtxGetDevice()))]
check(cu.cuCtxDestroy(second)); told += [code(cu.cuCtxPushCurrent(second)), code(cu.cuMemAlloc(1))]
tell(told)
"""
    assert cuda(t4, code) == [True, True, 0, 201, 201, 0, 0, 201, 201]


def test_a_forked_child_can_use_nothing(t4: SimulatedMachine) -> None:
    code = """
context()
child = os.fork()
if child == 0:
    tell([code(cu.cuInit(0)), code(cu.cuMemAlloc(1)), code(cu.cuDeviceGetCount())]); os._exit(0)
os.waitpid(child, 0)
check(cu.cuMemAlloc(1))
"""
    assert cuda(t4, code) == [3, 3, 3]


def test_a_child_forked_before_init_is_a_program_of_its_own(t4: SimulatedMachine) -> None:
    code = """
child = os.fork()
if child == 0:
    context(); tell(code(cu.cuMemAlloc(1))); os._exit(0)
os.waitpid(child, 0)
"""
    assert cuda(t4, code) == 0


def test_a_fatal_error_stays(t4: SimulatedMachine) -> None:
    code = """
mine = context(); memory = check(cu.cuMemAlloc(1)); tell(1); wait()
told = [code(cu.cuCtxSynchronize()), code(cu.cuMemAlloc(1)), code(cu.cuMemFree(memory)), code(cu.cuDeviceGetCount())]
told += [code(cu.cuCtxDestroy(mine)), code(cu.cuCtxCreate(None, 0, 0))]
tell(told)
"""
    with (
        cuda_program(t4, code) as program,
        cuda_program(t4, "context(); tell(1); wait(); tell(code(cu.cuMemAlloc(1)))") as other,
    ):
        program.told()
        t4.inject_error("cuCtxSynchronize", 700)
        program.go_on()
        assert program.told() == [700, 700, 700, 0, 0, 700]
        other.told()
        other.go_on()
        assert other.told() == 0


def test_an_error_that_is_not_fatal_passes(t4: SimulatedMachine) -> None:
    t4.inject_error("cuMemAlloc", 2, calls=2)
    assert cuda(t4, "context(); tell([code(cu.cuMemAlloc(1)) for _ in range(3)])") == [2, 2, 0]


def test_a_gpu_that_is_lost_ends_the_work_on_it(t4: SimulatedMachine) -> None:
    with cuda_program(
        t4, "context(); tell(1); wait(); tell([code(cu.cuMemAlloc(1)), code(cu.cuMemGetInfo())])"
    ) as program:
        program.told()
        t4.inject_lost(0)
        program.go_on()
        assert program.told() == [999, 999]


def test_a_reboot_ends_the_work_of_what_was_before(t4: SimulatedMachine) -> None:
    with cuda_program(
        t4, "mine = context(); tell(1); wait(); tell([code(cu.cuMemAlloc(1)), code(cu.cuCtxDestroy(mine))])"
    ) as program:
        program.told()
        t4.reboot()
        assert t4.clients() == ()
        program.go_on()
        assert program.told() == [999, 0]
