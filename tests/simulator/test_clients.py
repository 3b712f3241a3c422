"""Processes that use a GPU or a MIG device: counted while they live, gone when they die, in the way meanwhile."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tests.simulator.machines import (
    create,
    enable_mig,
    error_of,
    gpu,
    make_machine,
    mig_devices,
    process_environment,
    span,
    talking_to,
)
from tranche_simulator import SimulatedMachine
from tranche_simulator.errors import GpuInUse, GpuUnknown, SimulatorError

IN_USE, TOO_SMALL = 19, 7

HOLD = """
import sys
from pathlib import Path
from tranche_simulator import SimulatedMachine
SimulatedMachine(Path(sys.argv[1])).attach(sys.argv[2], memory=int(sys.argv[3]))
print("attached", flush=True)
sys.stdin.read()
"""


@contextmanager
def client_process(machine: SimulatedMachine, uuid: str, memory: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that has attached, killed at the end of the block."""
    command = [sys.executable, "-c", HOLD, str(machine.directory), uuid, str(memory)]
    environment = process_environment(machine)
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "attached\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def slices(machine: SimulatedMachine, a100: Any) -> list[str]:
    """UUIDs of two 1g slices of the A100."""
    for _ in range(2):
        span(create(a100, 19))
    return [str(nvml.nvmlDeviceGetUUID(device)) for device in mig_devices(a100)]


def test_a_client_is_shown_on_its_slice_and_on_the_gpu(machine: SimulatedMachine, a100: Any, slices: list[str]) -> None:
    with client_process(machine, slices[1], memory=1 << 30) as process:
        used, idle = mig_devices(a100)[1], mig_devices(a100)[0]
        (shown,) = nvml.nvmlDeviceGetComputeRunningProcesses(used)
        assert (shown.pid, shown.usedGpuMemory) == (process.pid, 1 << 30)
        assert shown.gpuInstanceId == nvml.nvmlDeviceGetGpuInstanceId(used)
        assert shown.computeInstanceId == 0
        assert nvml.nvmlDeviceGetComputeRunningProcesses(idle) == []
        (on_gpu,) = nvml.nvmlDeviceGetComputeRunningProcesses(a100)
        assert (on_gpu.pid, on_gpu.gpuInstanceId) == (process.pid, shown.gpuInstanceId)
        assert nvml.nvmlDeviceGetMemoryInfo(used).used == 1 << 30
        assert nvml.nvmlDeviceGetMemoryInfo(idle).used == 0
        assert "python" in nvml.nvmlSystemGetProcessName(process.pid)
        assert nvml.nvmlDeviceGetGraphicsRunningProcesses(a100) == []


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_is_gone_when_its_process_is(
    machine: SimulatedMachine, slices: list[str], end: signal.Signals
) -> None:
    with client_process(machine, slices[0]) as process:
        assert [client.pid for client in machine.clients()] == [process.pid]
        process.send_signal(end)
        process.wait()
        assert machine.clients() == ()


def test_a_live_client_stands_in_the_way(machine: SimulatedMachine, a100: Any, slices: list[str]) -> None:
    instance = nvml.nvmlDeviceGetGpuInstanceById(a100, nvml.nvmlDeviceGetGpuInstanceId(mig_devices(a100)[0]))
    compute = nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    with client_process(machine, slices[0]) as process:
        assert error_of(nvml.nvmlComputeInstanceDestroy, compute) == IN_USE
        assert error_of(nvml.nvmlDeviceSetMigMode, a100, 0) == IN_USE
        with pytest.raises(GpuInUse):
            machine.reset_gpu(0)
        process.kill()
        process.wait()
        assert error_of(nvml.nvmlComputeInstanceDestroy, compute) == 0


def test_a_forked_child_is_no_client(machine: SimulatedMachine) -> None:
    client = machine.attach(machine.gpus()[0].uuid)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        machine.detach(client)
        assert machine.clients() == (), "the child does not hold the parent's place"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_forked_child_does_not_keep_a_killed_parent_alive(machine: SimulatedMachine) -> None:
    uuid = machine.gpus()[0].uuid
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        machine.attach(uuid)
        if os.fork() == 0:
            # Said by the child itself: only then it has let go of what it inherited.
            os.write(write, str(os.getpid()).encode())
        signal.pause()
        os._exit(0)
    child = int(os.read(read, 20))
    try:
        assert [client.pid for client in machine.clients()] == [parent]
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert machine.clients() == ()
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_memory_is_limited_by_the_instance(machine: SimulatedMachine, slices: list[str]) -> None:
    with pytest.raises(GpuInUse):
        machine.attach(slices[0], memory=4865 << 20)
    with machine.attached(slices[0], memory=4000 << 20):
        with pytest.raises(GpuInUse):
            machine.attach(slices[0], memory=865 << 20)
        with machine.attached(slices[0], memory=864 << 20):
            assert len(machine.clients()) == 2


def test_where_one_can_attach(machine: SimulatedMachine, a100: Any, slices: list[str]) -> None:
    with pytest.raises(GpuInUse):
        machine.attach(machine.gpus()[0].uuid)
    with pytest.raises(GpuUnknown):
        machine.attach("MIG-00000000-0000-5000-8000-000000000000")
    machine.inject_lost(0)
    with pytest.raises(SimulatorError):
        machine.attach(slices[0])


def test_only_the_owner_detaches(machine: SimulatedMachine) -> None:
    client = machine.attach(machine.gpus()[0].uuid)
    with pytest.raises(GpuUnknown):
        machine.detach(client + 1)
    machine.detach(client)
    with pytest.raises(GpuUnknown):
        machine.detach(client)


def test_one_process_is_a_client_of_two_machines(tmp_path: Path) -> None:
    first, second = (make_machine(tmp_path, name=name) for name in ("first", "second"))
    held = first.attach(first.gpus()[0].uuid)
    other = second.attach(second.gpus()[0].uuid)
    first.detach(held)
    assert (len(first.clients()), len(second.clients())) == (0, 1)
    second.detach(other)
    assert second.clients() == ()


def test_places_are_used_again(tmp_path: Path) -> None:
    machine = make_machine(tmp_path)
    uuid = machine.gpus()[0].uuid
    for _ in range(1500):  # more than there are places
        machine.detach(machine.attach(uuid))
    assert machine.attach(uuid) == 0
    assert len(machine.clients()) == 1


def test_phantoms_have_any_pid_and_stay_until_cleared(machine: SimulatedMachine, a100: Any, slices: list[str]) -> None:
    machine.inject_busy(slices[0], pid=5031337, name="ghost", memory=100 << 20)
    (shown,) = nvml.nvmlDeviceGetComputeRunningProcesses(a100)
    assert (shown.pid, shown.usedGpuMemory) == (5031337, 100 << 20)
    assert [client.phantom for client in machine.clients()] == [True]
    machine.clear_injections()
    assert nvml.nvmlDeviceGetComputeRunningProcesses(a100) == []


def test_process_list_reports_the_size_it_needs(machine: SimulatedMachine) -> None:
    uuid = machine.gpus()[0].uuid
    for pid in range(1000, 1005):
        machine.inject_busy(uuid, pid=pid)
    with talking_to(machine):
        count = ctypes.c_uint(2)
        infos = (nvml.c_nvmlProcessInfo_v3_t * 2)()
        call = nvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3
        assert call(gpu(), ctypes.byref(count), infos) == TOO_SMALL
        assert count.value == 5
        assert [info.pid for info in nvml.nvmlDeviceGetComputeRunningProcesses_v2(gpu())] == list(range(1000, 1005))


def test_hundred_clients_at_once_on_every_slice(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "A100-40GB", "A100-40GB")
    with talking_to(machine):
        enable_mig(machine)
        for index in range(2):
            for _ in range(7):
                span(create(gpu(index), 19))
        uuids = [nvml.nvmlDeviceGetUUID(device) for index in range(2) for device in mig_devices(gpu(index))]
        held = [machine.attach(uuid) for uuid in uuids for _ in range(8)]
        assert len(set(held)) == 112
        assert all(len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu(index))) == 56 for index in range(2))
        for client in held:
            machine.detach(client)
        assert machine.clients() == ()
