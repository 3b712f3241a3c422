"""NVIDIA_VISIBLE_DEVICES: what a process sees, as in a container."""

from __future__ import annotations

from pathlib import Path

import pynvml as nvml
import pytest

from tests.simulator.machines import create, error_of, gpu, instances, make_machine, mig_devices, span, talking_to
from tranche_simulator import SimulatedMachine

NO_PERMISSION, NOT_FOUND, NO_DRIVER = 4, 6, 9


@pytest.fixture
def three(tmp_path: Path) -> SimulatedMachine:
    """Three A100: the second in MIG mode with a 3g, a 2g and a 1g slice."""
    machine = make_machine(tmp_path, "A100-40GB", "A100-40GB", "A100-40GB")
    with talking_to(machine):
        nvml.nvmlDeviceSetMigMode(gpu(1), 1)
        machine.reset_gpu(1)
        for profile in (9, 14, 19):
            span(create(gpu(1), profile))
    return machine


def seen(machine: SimulatedMachine, value: str) -> list[int]:
    """Minor numbers of the visible GPUs."""
    with talking_to(machine, NVIDIA_VISIBLE_DEVICES=value):
        return [nvml.nvmlDeviceGetMinorNumber(gpu(index)) for index in range(nvml.nvmlDeviceGetCount())]


def test_indexes_uuids_and_lists(three: SimulatedMachine) -> None:
    uuids = [gpu.uuid for gpu in three.gpus()]
    assert seen(three, "all") == [0, 1, 2]
    assert seen(three, "none") == []
    assert seen(three, "2") == [2]
    assert seen(three, "2,0") == [0, 2], "in the order of the machine"
    assert seen(three, uuids[1]) == [1]
    assert seen(three, f"{uuids[2]},0") == [0, 2]
    assert seen(three, "7,GPU-unknown,1x,1:") == [], "what names nothing shows nothing"


@pytest.mark.parametrize("value", ["void", ""])
def test_void_has_no_driver(three: SimulatedMachine, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    three.preload()
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", value)
    monkeypatch.setenv("TRANCHE_SIM_STATE", str(three.state))
    assert error_of(nvml.nvmlInit) == NO_DRIVER


def test_indexes_are_renumbered(three: SimulatedMachine) -> None:
    uuids = [gpu.uuid for gpu in three.gpus()]
    with talking_to(three, NVIDIA_VISIBLE_DEVICES="2"):
        assert nvml.nvmlDeviceGetIndex(gpu(0)) == 0
        assert nvml.nvmlDeviceGetUUID(gpu(0)) == uuids[2]
        assert error_of(nvml.nvmlDeviceGetHandleByUUID, uuids[0]) == NOT_FOUND


def devices_seen(machine: SimulatedMachine, value: str) -> list[str]:
    with talking_to(machine, NVIDIA_VISIBLE_DEVICES=value):
        return [nvml.nvmlDeviceGetName(device).rsplit(" ", 1)[1] for device in mig_devices(gpu(0))]


def test_mig_devices_by_index_and_uuid(three: SimulatedMachine) -> None:
    with talking_to(three):
        uuids = [nvml.nvmlDeviceGetUUID(device) for device in mig_devices(gpu(1))]
    assert devices_seen(three, "1") == ["3g.20gb", "2g.10gb", "1g.5gb"]
    assert devices_seen(three, "1:0") == ["3g.20gb"]
    assert devices_seen(three, uuids[2]) == ["1g.5gb"]
    assert devices_seen(three, f"1:1,{uuids[2]}") == ["2g.10gb", "1g.5gb"]
    assert devices_seen(three, "1:1,1") == ["3g.20gb", "2g.10gb", "1g.5gb"], "the whole GPU includes its slices"
    assert seen(three, uuids[0]) == [1], "only the parent of the slice"


def test_a_slice_shows_nothing_of_its_neighbours(three: SimulatedMachine) -> None:
    with talking_to(three):
        uuids = [nvml.nvmlDeviceGetUUID(device) for device in mig_devices(gpu(1))]
    for uuid in uuids:
        three.inject_busy(uuid, pid=5_000_000 + uuids.index(uuid))
    with talking_to(three, NVIDIA_VISIBLE_DEVICES=uuids[1]):
        assert [info[0] for info in instances(gpu(0)).values()] == [14]
        assert [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu(0))] == [5_000_001]
        assert error_of(nvml.nvmlDeviceGetHandleByUUID, uuids[0]) == NOT_FOUND
        (own,) = mig_devices(gpu(0))
        assert nvml.nvmlDeviceGetIndex(own) == 0


def test_a_process_with_a_slice_only_may_change_nothing(three: SimulatedMachine) -> None:
    with talking_to(three, NVIDIA_VISIBLE_DEVICES="1:2"):
        assert error_of(create, gpu(0), 19) == NO_PERMISSION
        assert error_of(nvml.nvmlDeviceSetMigMode, gpu(0), 0) == NO_PERMISSION
        ((gi_id, _),) = instances(gpu(0)).items()
        instance = nvml.nvmlDeviceGetGpuInstanceById(gpu(0), gi_id)
        assert error_of(nvml.nvmlComputeInstanceDestroy, nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)) == 4


def test_a_slice_is_seen_again_after_it_was_made_anew(three: SimulatedMachine) -> None:
    with talking_to(three):
        one_slice = mig_devices(gpu(1))[2]
        uuid = nvml.nvmlDeviceGetUUID(one_slice)
        instance = nvml.nvmlDeviceGetGpuInstanceById(gpu(1), nvml.nvmlDeviceGetGpuInstanceId(one_slice))
        compute = nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
        nvml.nvmlComputeInstanceDestroy(compute)
        nvml.nvmlGpuInstanceDestroy(instance)
    with talking_to(three, NVIDIA_VISIBLE_DEVICES=uuid):
        assert mig_devices(gpu(0)) == []
        assert instances(gpu(0)) == {}
    with talking_to(three):
        span(create(gpu(1), 19))
    assert devices_seen(three, uuid) == ["1g.5gb"]


def test_a_folder_names_devices_by_its_files(three: SimulatedMachine, tmp_path: Path) -> None:
    with talking_to(three):
        uuids = [nvml.nvmlDeviceGetUUID(device) for device in mig_devices(gpu(1))]
    folder = tmp_path / "devices"
    assert seen(three, str(folder)) == [], "a folder that is not there names nothing"
    folder.mkdir()
    assert seen(three, str(folder)) == []
    for name in (uuids[2], "1:0", "README"):
        (folder / name).touch()
    assert devices_seen(three, str(folder)) == ["3g.20gb", "1g.5gb"]
    (folder / "2").touch()
    assert seen(three, str(folder)) == [1, 2]
