"""Injected faults and events: errors, latency, XIDs, a lost GPU, and the counters of change calls."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
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
    process_environment,
    run_python,
    talking_to,
)
from tranche_simulator import SimulatedMachine
from tranche_simulator.errors import SimulatorError

TIMEOUT, LOST, IN_USE, UNKNOWN, NOT_SUPPORTED = 10, 15, 19, 999, 3
XID = nvml.nvmlEventTypeXidCriticalError


@pytest.fixture
def two(tmp_path: Path) -> SimulatedMachine:
    return make_machine(tmp_path, "A100-40GB", "H100-80GB-SXM")


def test_error_for_the_next_calls_of_a_function(machine: SimulatedMachine, a100: Any) -> None:
    machine.inject_error("nvmlDeviceCreateGpuInstance", UNKNOWN, calls=2)
    assert [error_of(create, a100, 19) for _ in range(3)] == [UNKNOWN, UNKNOWN, 0]
    assert error_of(nvml.nvmlDeviceGetName, a100) == 0


def test_error_on_one_gpu(two: SimulatedMachine) -> None:
    two.inject_error("nvmlDeviceGetName", IN_USE, gpu=1)
    with talking_to(two):
        assert error_of(nvml.nvmlDeviceGetName, gpu(0)) == 0
        assert error_of(nvml.nvmlDeviceGetName, gpu(1)) == IN_USE
        assert error_of(nvml.nvmlDeviceGetName, gpu(1)) == 0


def test_error_reaches_every_version_of_the_function_and_other_processes(two: SimulatedMachine) -> None:
    two.inject_error("nvmlDeviceGetHandleByIndex", UNKNOWN)
    done = run_python(two, "import pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceGetHandleByIndex(0)")
    assert "NVMLError_Unknown" in done.stderr
    with talking_to(two):
        assert error_of(nvml.nvmlDeviceGetHandleByIndex, 0) == 0, "the one call is used up"


def test_error_of_initialisation_of_an_instance_call_and_of_an_unsupported_function(
    machine: SimulatedMachine, a100: Any
) -> None:
    machine.inject_error("nvmlInitWithFlags", UNKNOWN)
    assert error_of(nvml.nvmlInit) == UNKNOWN
    instance = create(a100, 19)
    machine.inject_error("nvmlGpuInstanceDestroy", IN_USE)
    assert error_of(nvml.nvmlGpuInstanceDestroy, instance) == IN_USE
    assert error_of(nvml.nvmlGpuInstanceDestroy, instance) == 0
    machine.inject_error("nvmlDeviceGetEncoderStats", UNKNOWN)
    assert error_of(nvml.nvmlDeviceGetEncoderStats, a100) == UNKNOWN
    assert error_of(nvml.nvmlDeviceGetEncoderStats, a100) == NOT_SUPPORTED


def test_error_of_a_reset(machine: SimulatedMachine) -> None:
    machine.inject_error("trancheSimResetGpu", UNKNOWN)
    with pytest.raises(SimulatorError):
        machine.reset_gpu(0)
    machine.reset_gpu(0)


def test_latency_until_cleared(machine: SimulatedMachine, a100: Any) -> None:
    def duration() -> float:
        begin = time.monotonic()
        nvml.nvmlDeviceGetName(a100)
        return time.monotonic() - begin

    machine.inject_latency("nvmlDeviceGetName", 0.2)
    assert duration() >= 0.2
    assert duration() >= 0.2
    machine.clear_injections()
    machine.inject_latency("nvmlDeviceGetUUID", 30.0)
    nvml.nvmlDeviceGetName(a100)  # would outlast the test's patience if it were slowed too


def test_operation_times_scale(machine: SimulatedMachine, a100: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.set_time_scale(1.0)
    assert machine.time_scale == 1.0
    begin = time.monotonic()
    create(a100, 19)
    assert time.monotonic() - begin >= 0.9 * 0.16
    machine.set_time_scale(1e9)
    monkeypatch.setenv("TRANCHE_SIM_TIME_SCALE", "0")
    create(a100, 19)  # the variable wins, or this would take years


def test_bad_injections_are_refused(machine: SimulatedMachine) -> None:
    with pytest.raises(SimulatorError):
        machine.inject_error("nvmlDeviceGetName", 0)
    with pytest.raises(SimulatorError):
        machine.inject_error("nvmlDeviceGetName", 1, gpu=5)
    with pytest.raises(SimulatorError):
        machine.inject_latency("nvmlDeviceGetName", -1.0)
    with pytest.raises(SimulatorError):
        machine.inject_lost(9)
    for _ in range(64):
        machine.inject_error("nvmlDeviceGetName", 1)
    with pytest.raises(SimulatorError):
        machine.inject_error("nvmlDeviceGetName", 1)


def test_a_lost_gpu_says_so_until_it_is_back(two: SimulatedMachine) -> None:
    with talking_to(two):
        device = gpu(1)
        uuid = nvml.nvmlDeviceGetUUID(device)
        two.inject_lost(1)
        assert nvml.nvmlDeviceGetCount() == 2
        for call in (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlDeviceGetMigMode):
            assert error_of(call, device) == LOST
        assert error_of(nvml.nvmlDeviceGetHandleByIndex, 1) == LOST
        assert error_of(nvml.nvmlDeviceGetHandleByUUID, uuid) == LOST
        assert error_of(nvml.nvmlDeviceGetName, gpu(0)) == 0
        two.inject_lost(1, lost=False)
        assert error_of(nvml.nvmlDeviceGetName, device) == 0


def registered(*devices: Any) -> Any:
    events = nvml.nvmlEventSetCreate()
    for device in devices:
        nvml.nvmlDeviceRegisterEvents(device, XID, events)
    return events


def test_xid_reaches_every_set_that_is_registered(two: SimulatedMachine) -> None:
    with talking_to(two):
        both, second = registered(gpu(0), gpu(1)), registered(gpu(1))
        two.inject_xid(0, 79)
        two.inject_xid(1, 63, gpu_instance_id=3, compute_instance_id=0)
        first = nvml.nvmlEventSetWait_v2(both, 5000)
        assert (first.eventType, first.eventData) == (XID, 79)
        assert nvml.nvmlDeviceGetIndex(first.device) == 0
        assert first.gpuInstanceId == 0xFFFFFFFF
        for events in (both, second):
            event = nvml.nvmlEventSetWait_v2(events, 5000)
            assert (event.eventData, event.gpuInstanceId, event.computeInstanceId) == (63, 3, 0)
        assert error_of(nvml.nvmlEventSetWait_v2, both, 0) == TIMEOUT
        nvml.nvmlEventSetFree(both)
        nvml.nvmlEventSetFree(second)


def test_events_before_registration_are_not_delivered(two: SimulatedMachine) -> None:
    two.inject_xid(0, 13)
    with talking_to(two):
        events = registered(gpu(0))
        assert error_of(nvml.nvmlEventSetWait_v2, events, 30) == TIMEOUT


def test_a_waiting_process_is_woken_by_another(two: SimulatedMachine) -> None:
    code = """
import pynvml as n
n.nvmlInit()
s = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(1), n.nvmlEventTypeXidCriticalError, s)
print("waiting", flush=True)
print(n.nvmlEventSetWait_v2(s, 60000).eventData, flush=True)
"""
    environment = process_environment(two)
    waiting = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "waiting\n"
    two.inject_xid(1, 48)
    assert waiting.communicate(timeout=60)[0] == "48\n"


def test_a_gpu_lost_while_waiting_ends_the_wait(two: SimulatedMachine) -> None:
    with talking_to(two):
        events = registered(gpu(0))
        threading.Timer(0.05, two.inject_lost, (0,)).start()
        assert error_of(nvml.nvmlEventSetWait_v2, events, 60_000) == LOST


def test_unknown_event_types_are_not_supported(two: SimulatedMachine) -> None:
    with talking_to(two):
        events = nvml.nvmlEventSetCreate()
        assert nvml.nvmlDeviceGetSupportedEventTypes(gpu(0)) & XID
        assert error_of(nvml.nvmlDeviceRegisterEvents, gpu(0), 1 << 40, events) == NOT_SUPPORTED


def test_a_slow_reader_gets_the_newest_events(two: SimulatedMachine) -> None:
    with talking_to(two):
        events = registered(gpu(0))
        for xid in range(100):
            two.inject_xid(0, xid)
        received = []
        while True:
            try:
                received.append(int(nvml.nvmlEventSetWait_v2(events, 0).eventData))
            except nvml.NVMLError_Timeout:
                break
        assert received[-1] == 99
        assert received == list(range(received[0], 100))
        assert len(received) >= 32


def test_change_calls_are_counted_also_when_they_fail(machine: SimulatedMachine, a100: Any) -> None:
    before = machine.total_change_calls()
    nvml.nvmlDeviceGetMigMode(a100)
    nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(a100, 19)
    assert machine.total_change_calls() == before
    instance = create(a100, 19)
    error_of(create, a100, 0)
    nvml.nvmlGpuInstanceDestroy(instance)
    assert machine.total_change_calls() == before + 3
    calls = machine.change_calls()
    assert calls["nvmlDeviceCreateGpuInstance"] == 2
    assert calls["nvmlGpuInstanceDestroy"] == 1


def test_the_last_change_that_took_effect_has_its_time(two: SimulatedMachine) -> None:
    assert two.changed_at == 0
    with talking_to(two):
        before = time.monotonic()
        enable_mig(two)
        create(gpu(0), 0)
        created = two.changed_at
        assert before < created < time.monotonic()
        assert error_of(create, gpu(0), 0) != 0, "there is no room for a second one"
        nvml.nvmlDeviceGetMigMode(gpu(0))
        assert two.changed_at == created
        create(gpu(1), 19)
    assert created < two.changed_at < time.monotonic()
