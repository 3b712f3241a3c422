"""Kernels on a modelled GPU: how long they take alone, beside others, in a slice and under MPS. All times are the model's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tests.machines import wait_until
from tests.simulator.cuda_programs import MIB, CudaProgram, cuda, cuda_program
from tests.simulator.machines import create, enable_mig, gpu, make_machine, mig_devices, span, talking_to
from tests.simulator.mps_daemon import mps_daemon
from tranche_simulator import SimulatedMachine

SCALE = 0.01

# Milliseconds between two marks with a kernel between them, whatever the host does meanwhile.
TIMED = """
context(); work = kernel()
def timed(microseconds, blocks=1000):
    launch(work, 10**7); start = event(); launch(work, microseconds, blocks=blocks); end = event()
    check(cu.cuEventSynchronize(end))
    return check(cu.cuEventElapsedTime(start, end))
"""

# Always has work that the GPU can go on with, until it is told to rest.
BUSY = """
import select
context(); check(cu.cuMemAlloc(int(os.environ.get("BYTES", "1")))); work = kernel(); tell("ready")
while not select.select([sys.stdin], [], [], 0)[0]:
    assert launch(work, 1000000) == 0
check(cu.cuCtxSynchronize()); tell("resting"); wait(); wait()
"""


@pytest.fixture
def t4(tmp_path: Path) -> SimulatedMachine:
    """40 multiprocessors; a second of the model takes 10 ms."""
    machine = make_machine(tmp_path, "T4")
    machine.set_time_scale(SCALE)
    return machine


def computed(machine: SimulatedMachine) -> dict[int, float]:
    """Seconds of a whole GPU that each process has had."""
    return {client.pid: client.compute_seconds for client in machine.clients()}


def shares(machine: SimulatedMachine, seconds: float) -> dict[int, float]:
    """Of at least so many seconds that the GPU works from now on, the part of each process."""
    before = computed(machine)

    def had() -> dict[int, float]:
        return {pid: total - before[pid] for pid, total in computed(machine).items()}

    wait_until(lambda: sum(had().values()) >= seconds)
    since = had()
    return {pid: part / sum(since.values()) for pid, part in since.items()}


def timeslice(number: int) -> int:
    """Set the GPU's, as `nvidia-smi compute-policy` does; the code."""
    return int(nvml.nvmlLib.trancheSimSetTimeslice(gpu(), number))


@contextmanager
def busy(machine: SimulatedMachine, *variables: dict[str, str]) -> Iterator[list[CudaProgram]]:
    """Programs that always have work."""
    with ExitStack() as stack:
        programs = [stack.enter_context(cuda_program(machine, BUSY, **each)) for each in variables]
        for program in programs:
            assert program.told() == "ready"
        wait_until(lambda: all(computed(machine).get(program.pid, 0) > 0 for program in programs))
        yield programs


def test_a_kernel_alone_takes_its_time(t4: SimulatedMachine) -> None:
    code = TIMED + "tell([timed(500000), timed(500000, blocks=1), timed(0)])"
    assert cuda(t4, code) == pytest.approx([5, 5, 0], abs=1e-3)


def test_what_a_process_has_computed_is_told(t4: SimulatedMachine) -> None:
    code = "context(); work = kernel()\nfor _ in range(100): launch(work, 10000)\ncheck(cu.cuCtxSynchronize()); tell(1); wait()"
    with talking_to(t4), cuda_program(t4, code) as program:
        program.told()
        assert computed(t4) == {program.pid: pytest.approx(1.0, rel=1e-4)}
        assert nvml.nvmlDeviceGetUtilizationRates(gpu()).gpu == 0
    with talking_to(t4), cuda_program(t4, "context(); launch(kernel(), 10**12); tell(1); wait()") as program:
        program.told()
        assert nvml.nvmlDeviceGetUtilizationRates(gpu()).gpu == 100


def test_two_busy_processes_get_even_turns_whatever_their_memory(t4: SimulatedMachine) -> None:
    with busy(t4, {"BYTES": str(10 << 30)}, {"BYTES": str(100 * MIB)}) as programs:
        assert shares(t4, 50) == {program.pid: pytest.approx(0.5, abs=0.01) for program in programs}


def test_ten_processes_get_a_tenth_each(t4: SimulatedMachine) -> None:
    with busy(t4, *({} for _ in range(10))) as programs:
        assert shares(t4, 20) == {program.pid: pytest.approx(0.1, abs=0.002) for program in programs}


def test_who_works_has_what_the_others_leave(t4: SimulatedMachine) -> None:
    with busy(t4, {}, {}) as (first, second):
        first.go_on()
        assert first.told() == "resting"
        assert shares(t4, 20) == {first.pid: 0, second.pid: 1}


def test_a_killed_process_holds_up_nobody(t4: SimulatedMachine) -> None:
    with cuda_program(t4, "context(); launch(kernel(), 10**12); tell(1); wait()") as endless:
        endless.told()
        code = TIMED + "tell('ready'); wait(); launch(work, 10**6); tell(code(cu.cuCtxSynchronize()))"
        with cuda_program(t4, code) as other:
            other.told()
            other.go_on()
            wait_until(lambda: computed(t4).get(other.pid, 0) > 0)
            endless.kill()
            assert other.told() == 0
            assert computed(t4) == {other.pid: pytest.approx(1.0, rel=1e-4)}


def test_the_time_slice_is_that_of_the_compute_policy(t4: SimulatedMachine) -> None:
    """A kernel of 16 ms beside an endless one: as many turns of the other's as it takes itself, and at the longest two."""
    code = TIMED + "tell(timed(16000))"
    with talking_to(t4), cuda_program(t4, "context(); launch(kernel(), 10**12); tell(1); wait()") as endless:
        endless.told()
        for number, longest in ((0, 2), (1, 0.5), (3, 8)):
            assert timeslice(number) == 0
            assert cuda(t4, code) == pytest.approx(0.32, abs=longest * SCALE * 1.1)


def test_a_slice_computes_as_much_as_it_is(tmp_path: Path) -> None:
    machine = make_machine(tmp_path)
    with talking_to(machine):
        enable_mig(machine)
        span(create(gpu(), 9))
        span(create(gpu(), 19))
        large, small = (str(nvml.nvmlDeviceGetUUID(device)) for device in mig_devices(gpu()))
        machine.set_time_scale(SCALE)
        code = TIMED + "tell([timed(10**6), timed(10**6, blocks=10)])"
        assert cuda(machine, code, CUDA_VISIBLE_DEVICES=large) == pytest.approx([10 * 108 / 42, 10], rel=1e-3)
        with busy(machine, {"CUDA_VISIBLE_DEVICES": small}) as (_,):
            told = cuda(machine, code, CUDA_VISIBLE_DEVICES=large)
        assert told == pytest.approx([10 * 108 / 42, 10], rel=1e-3), "nobody outside a slice takes its time"
        assert cuda(machine, code, CUDA_VISIBLE_DEVICES=small) == pytest.approx([10 * 108 / 14, 10], rel=1e-3)


def test_kernels_of_several_streams_run_beside_each_other_where_there_is_room(t4: SimulatedMachine) -> None:
    code = """
context(); work = kernel()
def both(blocks):
    streams = [check(cu.cuStreamCreate(1)) for _ in range(3)]
    gate = event(streams[2]) if launch(work, 10**7, streams[2]) == 0 else None
    for stream in streams[:2]:
        check(cu.cuStreamWaitEvent(stream, gate, 0))
    start = event(streams[0]); ends = []
    for stream in streams[:2]:
        launch(work, 10**6, stream, blocks); ends.append(event(stream))
    check(cu.cuCtxSynchronize())
    return [check(cu.cuEventElapsedTime(start, end)) for end in ends]
tell([both(20), both(1000)])
"""
    # The first waits for the gate before its mark; both then begin at once.
    narrow, wide = cuda(t4, code)
    assert narrow == pytest.approx([10, 10], abs=0.01)
    assert wide == pytest.approx([20, 20], abs=0.01)


def test_the_legacy_default_stream_comes_before_and_after_the_others(t4: SimulatedMachine) -> None:
    code = """
context(); work = kernel(); blocking, free = check(cu.cuStreamCreate(0)), check(cu.cuStreamCreate(1))
launch(work, 10**7, blocks=1); start = event(); launch(work, 10**6, blocks=1)
launch(work, 10**6, blocking, 1); middle = event(blocking); launch(work, 10**6, blocks=1); end = event()
check(cu.cuCtxSynchronize())
tell([check(cu.cuEventElapsedTime(start, each)) for each in (middle, end)])
"""
    assert cuda(t4, code) == pytest.approx([20, 30], abs=0.01)


def test_more_than_a_stream_can_hold(t4: SimulatedMachine) -> None:
    code = """
context(); work = kernel(); marks = [event()]
for _ in range(200):
    launch(work, 10**5); marks.append(event())
check(cu.cuCtxSynchronize())
tell([check(cu.cuEventElapsedTime(a, b)) for a, b in zip(marks, marks[1:])])
"""
    assert min(cuda(t4, code)) == pytest.approx(1, abs=1e-3), "none is forgotten, and none is done at once"


def test_questions_do_not_wait(t4: SimulatedMachine) -> None:
    code = """
context(); work = kernel(); stream = check(cu.cuStreamCreate(0)); never = check(cu.cuEventCreate(0))
launch(work, 10**12, stream); mark = event(stream)
told = [code(cu.cuStreamQuery(stream)), code(cu.cuEventQuery(mark)), code(cu.cuEventQuery(never))]
told += [code(cu.cuEventElapsedTime(mark, mark)), code(cu.cuEventElapsedTime(mark, never)), code(cu.cuStreamDestroy(stream))]
tell(told + [code(cu.cuStreamQuery(stream))])
"""
    assert cuda(t4, code) == [600, 600, 0, 600, 400, 0, 400]


def test_a_stream_that_was_destroyed_ends_its_work(t4: SimulatedMachine) -> None:
    code = """
context(); work = kernel(); stream = check(cu.cuStreamCreate(1))
launch(work, 10**7, stream); start = event(stream); launch(work, 10**6, stream); end = event(stream)
check(cu.cuStreamDestroy(stream)); check(cu.cuEventSynchronize(end))
told = check(cu.cuEventElapsedTime(start, end))
for _ in range(600): check(cu.cuStreamDestroy(check(cu.cuStreamCreate(0))))
tell(told)
"""
    assert cuda(t4, code) == pytest.approx(10, abs=0.01)


def test_a_fault_ends_its_process_and_no_other(t4: SimulatedMachine) -> None:
    code = """
context(); check(cu.cuMemAlloc(1)); bad = kernel(b"bad")
told = [code(cu.cuLaunchKernel(bad, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)), code(cu.cuCtxSynchronize()), code(cu.cuMemAlloc(1))]
tell(told + [code(cu.cuModuleLoadData(PTX))])
"""
    with busy(t4, {}) as (other,):
        assert cuda(t4, code) == [0, 700, 700, 700]
        assert shares(t4, 5) == {other.pid: 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b'nonsense'", 200),
        ("b'.version 8.0 .target sm_75 .entry ('", 218),
        ("b'\\x7fELF'", 200),
        ("b'.version 8.0 .target sm_75'", 0),
    ],
)
def test_what_is_no_module(t4: SimulatedMachine, text: str, expected: int) -> None:
    assert cuda(t4, f"context(); tell(code(cu.cuModuleLoadData({text})))") == expected


def test_what_is_no_launch(t4: SimulatedMachine) -> None:
    code = """
mine = context(); work = kernel(); module = check(cu.cuModuleLoadData(PTX))
told = [code(cu.cuModuleGetFunction(module, b"none")), launch(work, 1, blocks=0), launch(work, 1, stream=12345)]
told.append(code(cu.cuLaunchKernel(work, 1, 1, 1, 1025, 1, 1, 0, 0, 0, 0)))
check(cu.cuModuleUnload(module)); told.append(code(cu.cuModuleGetFunction(module, b"work")))
tell(told + [check(cu.cuFuncGetParamInfo(work, 0)), code(cu.cuFuncGetParamInfo(work, 1))])
"""
    assert cuda(t4, code) == [500, 1, 400, 1, 400, [0, 8], 1]


def test_two_pairs_of_hands_in_one_process(t4: SimulatedMachine) -> None:
    """One thread waits for the GPU, and the others go on."""
    code = """
import threading
mine = context(); work = kernel(); launch(work, 10**12)
def waiter():
    check(cu.cuCtxSetCurrent(mine)); cu.cuCtxSynchronize()
threading.Thread(target=waiter, daemon=True).start()
tell([code(cu.cuMemAlloc(1)) for _ in range(100)].count(0)); sys.stdout.flush(); os._exit(0)
"""
    assert cuda(t4, code) == 100


@pytest.fixture
def mps(t4: SimulatedMachine) -> Iterator[dict[str, str]]:
    """What makes a program a client of an MPS daemon of that machine."""
    with mps_daemon(t4) as daemon:
        yield {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe)}


def test_a_ceiling_of_mps_slows_what_is_wider(t4: SimulatedMachine, mps: dict[str, str]) -> None:
    code = TIMED + "tell([timed(10**6), timed(10**6, blocks=5)])"
    assert cuda(t4, code, **mps) == pytest.approx([10, 10], abs=0.01)
    quarter: Any = mps | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    assert cuda(t4, code, **quarter) == pytest.approx([40, 10], abs=0.01)


def test_clients_of_one_server_compute_at_the_same_time(t4: SimulatedMachine, mps: dict[str, str]) -> None:
    """A narrow kernel beside an endless narrow one takes no longer under MPS, and twice as long in turns."""
    endless = "context(); launch(kernel(), 10**12, blocks=20); tell(1); wait()"
    code = TIMED + "tell(timed(10**6, blocks=20))"
    with cuda_program(t4, endless, **mps) as program:
        program.told()
        assert cuda(t4, code, **mps) == pytest.approx(10, abs=0.01)
    with cuda_program(t4, endless) as program:
        program.told()
        assert cuda(t4, code) == pytest.approx(20, abs=0.1)


def test_a_ceiling_is_no_reservation(t4: SimulatedMachine, mps: dict[str, str]) -> None:
    quarter = mps | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    with busy(t4, quarter, mps) as (capped, free):
        part = shares(t4, 50)
        assert part[capped.pid] == pytest.approx(10 / 50, abs=0.01), "both ask for more than there is: 10 and 40 of 40"
        assert part[free.pid] == pytest.approx(40 / 50, abs=0.01)


def test_what_a_stream_tells_of_itself(t4: SimulatedMachine) -> None:
    told = cuda(
        t4,
        """
context(); stream = check(cu.cuStreamCreateWithPriority(1, 0)); other = check(cu.cuStreamCreate(0))
result, current = cu.cuStreamGetCtx(stream)
tell([
    int(check(cu.cuStreamGetFlags(stream))), int(check(cu.cuStreamGetPriority(stream))),
    int(check(cu.cuStreamGetId(stream))) != int(check(cu.cuStreamGetId(other))),
    int(current) == int(check(cu.cuCtxGetCurrent())),
    int(check(cu.cuStreamGetDevice(stream))), int(check(cu.cuStreamIsCapturing(stream))),
])
""",
    )
    assert told == [1, 0, True, True, 0, 0]
