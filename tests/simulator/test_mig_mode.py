"""MIG mode by family, GPU reset, reboot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tests.simulator.machines import create, enable_mig, error_of, gpu, instances, make_machine, span, talking_to
from tranche_simulator import SimulatedMachine
from tranche_simulator.errors import GpuInUse, NotPermitted

IN_USE, RESET_REQUIRED, TIMEOUT, NO_PERMISSION = 19, 16, 10, 4
LATER_BOARDS = ["H100-80GB-SXM", "B200", "RTX-PRO-6000-96GB"]


def mode() -> list[int]:
    return list(nvml.nvmlDeviceGetMigMode(gpu()))


@pytest.mark.parametrize("board", ["A100-40GB", "A30-24GB"])
def test_ampere_changes_mode_at_reset(tmp_path: Path, board: str) -> None:
    machine = make_machine(tmp_path, board)
    with talking_to(machine):
        assert nvml.nvmlDeviceSetMigMode(gpu(), 1) == RESET_REQUIRED
        assert mode() == [0, 1]
        assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu()) == 0
        machine.reset_gpu(0)
        assert mode() == [1, 1]
        assert nvml.nvmlDeviceSetMigMode(gpu(), 0) == RESET_REQUIRED
        assert mode() == [1, 0]
        assert nvml.nvmlDeviceSetMigMode(gpu(), 1) == 0, "back to what it is: nothing is pending"
        assert mode() == [1, 1]


@pytest.mark.parametrize("board", LATER_BOARDS)
def test_later_boards_change_at_once(tmp_path: Path, board: str) -> None:
    with talking_to(make_machine(tmp_path, board)):
        assert nvml.nvmlDeviceSetMigMode(gpu(), 1) == 0
        assert mode() == [1, 1]
        assert nvml.nvmlDeviceSetMigMode(gpu(), 0) == 0
        assert mode() == [0, 0]


@pytest.mark.parametrize("board", ["A100-40GB", *LATER_BOARDS])
def test_enabling_with_a_client_stays_pending(tmp_path: Path, board: str) -> None:
    machine = make_machine(tmp_path, board)
    with talking_to(machine), machine.attached(machine.gpus()[0].uuid):
        assert nvml.nvmlDeviceSetMigMode(gpu(), 1) == IN_USE
        assert mode() == [0, 1]


@pytest.mark.parametrize("board", ["A100-40GB", "H100-80GB-SXM"])
def test_disabling_is_refused_while_instances_exist(tmp_path: Path, board: str) -> None:
    machine = make_machine(tmp_path, board)
    with talking_to(machine):
        enable_mig(machine)
        instance = create(gpu(), 19)
        assert error_of(nvml.nvmlDeviceSetMigMode, gpu(), 0) == IN_USE
        assert mode() == [1, 1]
        assert nvml.nvmlDeviceSetMigMode(gpu(), 1) == 0, "the mode it has is no change"
        nvml.nvmlGpuInstanceDestroy(instance)
        assert error_of(nvml.nvmlDeviceSetMigMode, gpu(), 0) == 0


def test_reset_takes_the_instances_and_is_refused_while_there_are_clients(machine: SimulatedMachine, a100: Any) -> None:
    span(create(a100, 19))
    uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(a100, 0))
    with machine.attached(uuid), pytest.raises(GpuInUse):
        machine.reset_gpu(0)
    assert len(instances(a100)) == 1
    machine.reset_gpu(0)
    assert instances(a100) == {}
    assert mode() == [1, 1]


def test_reset_and_mode_need_permission(machine: SimulatedMachine, a100: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANCHE_SIM_UNPRIVILEGED", "1")
    with pytest.raises(NotPermitted):
        machine.reset_gpu(0)
    assert error_of(nvml.nvmlDeviceSetMigMode, a100, 0) == NO_PERMISSION


def test_reboot_keeps_the_mode_on_ampere_only_and_no_instance(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "A100-40GB", "H100-80GB-SXM", "A30-24GB", "B200")
    with talking_to(machine):
        enable_mig(machine)
        for index, profile in enumerate((19, 19, 14, 19)):
            span(create(gpu(index), profile))
        machine.reboot()
        assert [gpu.mig_current for gpu in machine.gpus()] == [True, False, True, False]
        assert [gpu.gpu_instances for gpu in machine.gpus()] == [0, 0, 0, 0]
        assert machine.boots == 1


def test_reboot_applies_a_pending_mode_on_ampere(machine: SimulatedMachine) -> None:
    with talking_to(machine):
        nvml.nvmlDeviceSetMigMode(gpu(), 1)
        machine.reboot()
        assert mode() == [1, 1]


def test_reboot_ends_clients_real_and_phantom(machine: SimulatedMachine) -> None:
    uuid = machine.gpus()[0].uuid
    machine.inject_busy(uuid)
    with machine.attached(uuid):
        assert machine.gpus()[0].clients == 2
        machine.reboot()
        assert machine.gpus()[0].clients == 0
        machine.inject_busy(uuid)
        assert machine.gpus()[0].clients == 1


@pytest.mark.parametrize("board", ["A100-40GB", "H100-80GB-SXM"])
def test_stuck_mode_change_stays_pending_until_cleared(tmp_path: Path, board: str) -> None:
    machine = make_machine(tmp_path, board)
    with talking_to(machine):
        machine.inject_stuck_mode(0)
        ampere = board.startswith("A100")
        assert nvml.nvmlDeviceSetMigMode(gpu(), 1) == (RESET_REQUIRED if ampere else TIMEOUT)
        machine.reset_gpu(0)
        assert mode() == [0, 1]
        machine.clear_injections()
        machine.reset_gpu(0)
        assert mode() == [1, 1]
