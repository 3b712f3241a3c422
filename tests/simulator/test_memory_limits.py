"""Limits of a GPU's memory for control groups: who may set them, whom they bind, and what he sees of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pynvml as nvml
import pytest

from tests.simulator.control_groups import group, hierarchy
from tests.simulator.cuda_programs import MIB, cuda, cuda_program
from tests.simulator.machines import create, enable_mig, error_of, gpu, make_machine, mig_devices, span, talking_to
from tests.simulator.mps_daemon import mps_daemon
from tests.simulator.smi_runner import Answer, Smi
from tranche_simulator import SimulatedMachine

INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, NO_FUNCTION = 2, 3, 4, 6, 13
NO_LIMIT = 2**64 - 1
CONTEXT = 100 * MIB
TOTAL = 14914 * MIB

# A program that enters a group before it begins, as a launcher would have it do.
ENTER = "open(os.environ['GROUP'] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
FILL = (
    ENTER
    + """
context()
held = []
while code(answer := cu.cuMemAlloc(64 << 20)) == 0: held.append(answer[1])
left, total = check(cu.cuMemGetInfo())
tell([code(answer), len(held) * 64, left >> 20, total >> 20]); wait()
"""
)


@pytest.fixture
def t4(tmp_path: Path) -> SimulatedMachine:
    machine = make_machine(tmp_path, "T4")
    machine.set_driver("615.71.09")
    machine.set_context_memory(CONTEXT)
    return machine


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """A group of this test's own."""
    with hierarchy(tmp_path) as root, group(root) as folder:
        yield folder


def set_limits(folder: Path | str | None, soft: int, hard: int, device: object = None) -> int:
    """Sets them, in bytes; the code."""
    name = None if folder is None else str(folder).encode()
    limits = nvml.c_nvmlSetMemoryLimits_v1_t(name, soft, hard)
    return error_of(nvml.nvmlDeviceSetMemoryLimits_v1, gpu() if device is None else device, limits)


def get_limits(folder: Path) -> tuple[int, int, int] | int:
    """Soft, hard and what is used, or the code."""
    limits = nvml.c_nvmlGetMemoryLimits_v1_t(str(folder).encode())
    code = error_of(nvml.nvmlDeviceGetMemoryLimits_v1, gpu(), limits)
    return code or (limits.softLimit, limits.hardLimit, limits.currentUsed)


def test_a_limit_on_the_own_group_is_all_that_its_processes_see(t4: SimulatedMachine, top: Path) -> None:
    hard = 3 << 30
    with talking_to(t4):
        assert set_limits(top, 0, hard) == 0
        assert get_limits(top) == (0, hard, 0)
        with cuda_program(t4, FILL, GROUP=str(top)) as program:
            taken = (3072 - 100) // 64 * 64
            assert program.told() == [2, taken, 3072 - 100 - taken, 3072]
            assert get_limits(top) == (0, hard, (taken + 100) * MIB)
            assert cuda(t4, "context(); tell(check(cu.cuMemGetInfo())[1])") == TOTAL, "nobody else's total"
        assert get_limits(top) == (0, hard, 0)


def test_all_processes_of_a_group_share_its_limit(t4: SimulatedMachine, top: Path) -> None:
    with talking_to(t4):
        set_limits(top, 0, 1 << 30)
        hold = ENTER + "context(); check(cu.cuMemAlloc(600 << 20)); tell(1); wait()"
        with cuda_program(t4, hold, GROUP=str(top)) as first:
            first.told()
            code = ENTER + "context(); tell([code(cu.cuMemAlloc(300 << 20)), code(cu.cuMemAlloc(200 << 20))])"
            assert cuda(t4, code, GROUP=str(top)) == [2, 0]
            first.kill()
            assert cuda(t4, code, GROUP=str(top)) == [0, 0]


READ = (
    ENTER
    + """
import pynvml
pynvml.nvmlInit()
memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0), version=pynvml.nvmlMemory_v2)
tell([memory.total, memory.used, memory.free])
"""
)


def test_nvml_shows_a_limited_process_its_limit(t4: SimulatedMachine, top: Path) -> None:
    with talking_to(t4):
        set_limits(top, 0, 2 << 30)
        assert cuda(t4, READ, GROUP=str(top)) == [2 << 30, 0, 2 << 30]
        assert nvml.nvmlDeviceGetMemoryInfo(gpu(), version=nvml.nvmlMemory_v2).total == 15360 * MIB


@pytest.mark.parametrize("backend", ["misc", "dmem"])
def test_a_limit_of_the_group_above(t4: SimulatedMachine, top: Path, backend: Literal["misc", "dmem"]) -> None:
    """It is enforced but not shown; in the driver's own table, the nearest entry alone counts."""
    t4.set_limits_backend(backend)
    with talking_to(t4), group(top, "leaf") as leaf:
        set_limits(top, 0, 1 << 30)
        code = ENTER + "context(); tell([code(cu.cuMemAlloc(2 << 30)), check(cu.cuMemGetInfo())[1]])"
        assert cuda(t4, code, GROUP=str(leaf)) == [2, TOTAL]
        set_limits(leaf, 0, 4 << 30)
        assert cuda(t4, code, GROUP=str(leaf)) == [2 if backend == "dmem" else 0, 4 << 30]


def test_what_the_kernel_keeps_of_a_removed_group(t4: SimulatedMachine, top: Path) -> None:
    t4.set_limits_backend("dmem")
    with talking_to(t4):
        assert get_limits(top) == (0, NO_LIMIT, 0)
        with group(top, "forgotten") as leaf:
            set_limits(leaf, 1 << 30, 1 << 30)
        with group(top, "cleared") as leaf:
            set_limits(leaf, 2 << 30, 2 << 30)
            set_limits(leaf, 0, NO_LIMIT)
        assert get_limits(top) == (1 << 30, NO_LIMIT, 0)


def test_a_limit_may_fall_below_what_is_used(t4: SimulatedMachine, top: Path) -> None:
    with talking_to(t4):
        set_limits(top, 0, 4 << 30)
        code = (
            ENTER + "context(); check(cu.cuMemAlloc(3 << 30)); tell(1); wait(); tell([code(cu.cuMemAlloc(1)), free()])"
        )
        with cuda_program(t4, code, GROUP=str(top)) as program:
            program.told()
            assert set_limits(top, 0, 1 << 30) == 0
            program.go_on()
            assert program.told() == [2, 0]


def test_no_limit_is_no_entry(t4: SimulatedMachine, top: Path) -> None:
    with talking_to(t4):
        assert get_limits(top) == NOT_FOUND
        set_limits(top, 0, 1 << 30)
        assert set_limits(top, 0, NO_LIMIT) == 0
        assert get_limits(top) == NOT_FOUND
        for _ in range(600):  # more than there is room for
            set_limits(top, 0, 1 << 30)
            set_limits(top, 0, NO_LIMIT)


def test_what_is_refused(t4: SimulatedMachine, top: Path, tmp_path: Path) -> None:
    with talking_to(t4):
        assert set_limits(top, 2 << 30, 1 << 30) == INVALID
        assert set_limits("relative", 0, 1) == INVALID
        assert set_limits(None, 0, 1) == INVALID
        assert set_limits(top / "none", 0, 1) == NOT_FOUND
        assert set_limits(tmp_path, 0, 1) == NOT_SUPPORTED
        t4.set_limits_backend("off")
        assert set_limits(top, 0, 1) == NOT_SUPPORTED
        assert get_limits(top) == NOT_SUPPORTED
    t4.set_limits_backend("misc")
    with talking_to(t4, TRANCHE_SIM_UNPRIVILEGED="1"):
        assert set_limits(top, 0, 1) == NO_PERMISSION
        assert get_limits(top) == NOT_FOUND
    t4.set_driver("580.95.05")
    with talking_to(t4):
        assert set_limits(top, 0, 1) == NO_FUNCTION
        assert get_limits(top) == NO_FUNCTION


def test_slices_have_no_such_limits(tmp_path: Path, top: Path) -> None:
    machine = make_machine(tmp_path)
    machine.set_driver("615.71.09")
    with talking_to(machine):
        assert set_limits(top, 0, 1 << 30) == 0
        enable_mig(machine)
        span(create(gpu(), 19))
        (device,) = mig_devices(gpu())
        assert set_limits(top, 0, 1, device) == NOT_SUPPORTED
        assert set_limits(top, 0, 1) == NOT_SUPPORTED
        code = ENTER + "context(); tell(code(cu.cuMemAlloc(2 << 30)))"
        assert cuda(machine, code, GROUP=str(top)) == 0


def test_whoever_is_below_his_soft_limit_gets_memory_back(t4: SimulatedMachine, top: Path) -> None:
    """A client of MPS above its own soft limit pays for it: its next call says that it was terminated."""
    borrow = ENTER + "context(); check(cu.cuMemAlloc(13 << 30)); tell(1); wait(); tell(code(cu.cuMemGetInfo()))"
    want = ENTER + "context(); tell(code(cu.cuMemAlloc(4 << 30)))"
    with talking_to(t4), mps_daemon(t4) as daemon, group(top, "a") as first, group(top, "b") as second:
        mps = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe)}
        set_limits(first, 4 << 30, NO_LIMIT)
        set_limits(second, 2 << 30, NO_LIMIT)
        with cuda_program(t4, borrow, GROUP=str(first), **mps) as borrower:
            borrower.told()
            assert cuda(t4, want, GROUP=str(second), **mps) == 2, "above his own soft limit too"
            set_limits(second, 5 << 30, NO_LIMIT)
            assert cuda(t4, want, GROUP=str(second), **mps) == 0
            borrower.go_on()
            assert borrower.told() == 810


def test_a_lone_borrower_without_mps_keeps_what_he_has(t4: SimulatedMachine, top: Path) -> None:
    borrow = ENTER + "context(); check(cu.cuMemAlloc(13 << 30)); tell(1); wait(); tell(code(cu.cuMemGetInfo()))"
    with talking_to(t4), group(top, "a") as first, group(top, "b") as second:
        set_limits(first, 4 << 30, NO_LIMIT)
        set_limits(second, 5 << 30, NO_LIMIT)
        with cuda_program(t4, borrow, GROUP=str(first)) as borrower:
            borrower.told()
            assert cuda(t4, ENTER + "context(); tell(code(cu.cuMemAlloc(4 << 30)))", GROUP=str(second)) == 2
            borrower.go_on()
            assert borrower.told() == 0


def test_a_limit_counts_as_a_change(t4: SimulatedMachine, top: Path) -> None:
    with talking_to(t4):
        before = t4.total_change_calls()
        set_limits(top, 0, 1)
        assert t4.total_change_calls() == before + 1


def test_the_words_of_nvidia_smi(t4: SimulatedMachine, top: Path, tmp_path: Path) -> None:
    smi = Smi(t4)
    where = ["memory-limits", "-n", str(top), "-i", "0"]
    assert smi(*where, "--get").text == "Unable to get memory limit: Not Found\n"
    assert smi(*where, "--set", "--soft-limit", "1024", "--hard-limit", "2048") == Answer(0, "")
    told = f"namespace: {top}\nsoft limit: 1024 MiB\nhard limit: 2048 MiB\ncurrent used: 0 MiB\n"
    assert smi(*where, "--get") == Answer(0, told)
    refused = smi(*where, "--set", "--soft-limit", "1G")
    assert refused.text == "--soft-limit must be a non-negative MebiByte value\n"
    assert refused.code != 0
    assert smi(*where, "--set", "--soft-limit", "default", "--hard-limit", "max").code == 0
    no_group = smi("memory-limits", "--get", "-n", str(tmp_path))
    assert no_group.text == "Unable to get memory limit: Not Supported\n"
