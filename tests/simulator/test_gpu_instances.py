"""GPU instances: the order of checks and their codes, listings, destruction, UUIDs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tests.simulator.machines import (
    create,
    create_at,
    enable_mig,
    error_of,
    gpu,
    instances,
    make_machine,
    mig_devices,
    span,
    talking_to,
)
from tranche_simulator import SimulatedMachine

INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
IN_USE, NO_ROOM = 19, 23
UNKNOWN_PROFILE, ONE_SLICE = 77, 19


def test_uninitialised_comes_first(machine: SimulatedMachine) -> None:
    with talking_to(machine):
        device = gpu()
    assert error_of(nvml.nvmlDeviceCreateGpuInstance, device, ONE_SLICE) == nvml.NVML_ERROR_UNINITIALIZED


def test_checks_come_in_the_drivers_order(machine: SimulatedMachine) -> None:
    with talking_to(machine, TRANCHE_SIM_UNPRIVILEGED="1"):
        assert error_of(nvml.nvmlDeviceCreateGpuInstance, None, ONE_SLICE) == INVALID, "handle before permission"
        assert error_of(nvml.nvmlDeviceCreateGpuInstance, gpu(), ONE_SLICE) == NO_PERMISSION, "permission before mode"
        os.environ["TRANCHE_SIM_UNPRIVILEGED"] = "0"
        assert error_of(nvml.nvmlDeviceCreateGpuInstance, gpu(), UNKNOWN_PROFILE) == NOT_SUPPORTED, (
            "mode before profile"
        )
        enable_mig(machine)
        create(gpu(), 0)
        assert error_of(nvml.nvmlDeviceCreateGpuInstance, gpu(), UNKNOWN_PROFILE) == INVALID, "profile before room"
        assert error_of(create_at, gpu(), 9, 2, 4) == INVALID, "legal placement before room"
        assert error_of(create_at, gpu(), 9, 0, 3) == INVALID, "the size belongs to the placement"
        assert error_of(create_at, gpu(), 9, 4, 4) == NO_ROOM
        assert error_of(nvml.nvmlDeviceCreateGpuInstance, gpu(), ONE_SLICE) == NO_ROOM


def test_explicit_placement_is_kept(a100: Any) -> None:
    create_at(a100, 19, 2, 1)
    create_at(a100, 9, 4, 4)
    assert instances(a100) == {9: (19, 2, 1), 2: (9, 4, 4)}


def test_enum_and_profile_id_are_two_numbers(a100: Any) -> None:
    info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(a100, nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2)
    assert (info.id, info.sliceCount, info.instanceCount, info.memorySizeMB) == (15, 1, 4, 9984)
    missing = nvml.NVML_GPU_INSTANCE_PROFILE_6_SLICE
    assert error_of(nvml.nvmlDeviceGetGpuInstanceProfileInfo, a100, missing) == NOT_SUPPORTED
    assert error_of(nvml.nvmlDeviceGetGpuInstanceProfileInfo, a100, nvml.NVML_GPU_INSTANCE_PROFILE_COUNT) == INVALID


@pytest.mark.parametrize(
    ("board", "profile", "multiprocessors", "memory", "copy", "decoders", "jpeg"),
    [
        ("H100-80GB-SXM", 9, 60, 40448, 3, 3, 3),
        ("H100-80GB-SXM", 0, 132, 81152, 8, 7, 7),
        ("H100-80GB-SXM", 15, 26, 20096, 1, 1, 1),
        ("B200", 14, 36, 45312, 4, 2, 2),
        ("H200-141GB", 19, 16, 16384, 1, 1, 1),
        ("A30-24GB", 6, 28, 11968, 2, 2, 1),
        ("RTX-PRO-6000-96GB", 64, 94, 48512, 2, 4, 4),
    ],
)
def test_profile_numbers_are_those_of_the_board(
    tmp_path: Path, board: str, profile: int, multiprocessors: int, memory: int, copy: int, decoders: int, jpeg: int
) -> None:
    with talking_to(make_machine(tmp_path, board)):
        enable_mig(SimulatedMachine(tmp_path / "machine"))
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfoById(gpu(), profile)
        assert info.multiprocessorCount == multiprocessors
        assert info.memorySizeMB == memory
        assert (info.copyEngineCount, info.decoderCount, info.jpegCount) == (copy, decoders, jpeg)
        assert info.isP2pSupported == 0


def test_profiles_are_hidden_while_mig_is_off_on_ampere_only(tmp_path: Path) -> None:
    with talking_to(make_machine(tmp_path, "A100-40GB", "H100-80GB-SXM", "B200")):
        ask = nvml.nvmlDeviceGetGpuInstanceProfileInfo
        assert error_of(ask, gpu(0), 0) == NOT_SUPPORTED
        assert ask(gpu(1), 0).id == 19
        assert ask(gpu(2), 0).id == 19
        assert error_of(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity, gpu(0), 19) == NOT_SUPPORTED
        assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(1), 19) == 7, "as an H200 said"


def test_full_gpu_leaves_no_room_and_partial_failure_keeps_the_earlier_ones(a100: Any) -> None:
    for profile in (19, 19, 14):
        create(a100, profile)
    assert error_of(create, a100, 9) == NO_ROOM
    assert len(instances(a100)) == 3


def test_gpu_instance_with_a_compute_instance_is_in_use(a100: Any) -> None:
    instance = create(a100, 14)
    compute = span(instance)
    assert error_of(nvml.nvmlGpuInstanceDestroy, instance) == IN_USE
    nvml.nvmlComputeInstanceDestroy(compute)
    assert error_of(nvml.nvmlGpuInstanceDestroy, instance) == 0
    assert error_of(nvml.nvmlGpuInstanceDestroy, instance) == INVALID, "it is gone"
    assert error_of(nvml.nvmlGpuInstanceGetInfo, instance) == INVALID


def test_first_partial_instance_needs_the_gpu_free_of_clients(machine: SimulatedMachine, a100: Any) -> None:
    machine.inject_busy(machine.gpus()[0].uuid, pid=5004711)
    assert error_of(create, a100, 19) == IN_USE
    assert error_of(create, a100, 0) == 0, "the full-GPU profile partitions nothing"
    machine.clear_injections()
    nvml.nvmlGpuInstanceDestroy(nvml.nvmlDeviceGetGpuInstanceById(a100, 0))
    create(a100, 19)
    machine.inject_busy(machine.gpus()[0].uuid, pid=5004711)
    assert error_of(create, a100, 19) == 0, "only the first one partitions the memory"


def test_by_id(a100: Any) -> None:
    create(a100, 14)
    assert nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(a100, 5)).profileId == 14
    assert error_of(nvml.nvmlDeviceGetGpuInstanceById, a100, 3) == NOT_FOUND
    assert error_of(nvml.nvmlDeviceGetGpuInstanceById, a100, 99) == NOT_FOUND


def test_same_slot_has_the_same_uuid_again_and_every_slot_another(a100: Any) -> None:
    def uuid_of_only_device() -> str:
        (device,) = mig_devices(a100)
        return str(nvml.nvmlDeviceGetUUID(device))

    seen = []
    for start in (6, 6, 5):
        instance = create_at(a100, 19, start, 1)
        compute = span(instance)
        seen.append(uuid_of_only_device())
        nvml.nvmlComputeInstanceDestroy(compute)
        nvml.nvmlGpuInstanceDestroy(instance)
    assert seen[0] == seen[1] != seen[2]
    assert all(uuid.startswith("MIG-") and uuid[18] == "5" for uuid in seen), "version-5 UUIDs"


def test_machine_of_the_same_name_and_seed_has_the_same_uuids(tmp_path: Path) -> None:
    def uuids(folder: str, seed: int) -> list[str]:
        machine = SimulatedMachine.create("m", machine_type="p4d.24xlarge", root=tmp_path / folder, seed=seed)
        return [gpu.uuid for gpu in machine.gpus()]

    first = uuids("a", 1)
    assert first == uuids("b", 1)
    assert not set(first) & set(uuids("c", 2))
    assert len(set(first)) == 8


def test_device_index_orders_by_gi_id_then_ci_id(a100: Any) -> None:
    for profile in (19, 14, 19):
        span(create(a100, profile))
    ids = [nvml.nvmlDeviceGetGpuInstanceId(device) for device in mig_devices(a100)]
    assert ids == sorted(ids)
    assert len(ids) == 3
    indexes = [nvml.nvmlDeviceGetIndex(device) for device in mig_devices(a100)]
    assert indexes == [0, 1, 2]
    assert error_of(nvml.nvmlDeviceGetMigDeviceHandleByIndex, a100, 3) == NOT_FOUND
    assert error_of(nvml.nvmlDeviceGetMigDeviceHandleByIndex, a100, 7) == INVALID


def test_mig_device_handle_answers_for_its_instance(a100: Any) -> None:
    span(create(a100, 9))
    (device,) = mig_devices(a100)
    assert int(nvml.nvmlDeviceIsMigDeviceHandle(device).value) == 1
    assert int(nvml.nvmlDeviceIsMigDeviceHandle(a100).value) == 0
    assert nvml.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert nvml.nvmlDeviceGetMemoryInfo(device).total == 20096 << 20
    assert (nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvmlDeviceGetComputeInstanceId(device)) == (2, 0)
    attributes = nvml.nvmlDeviceGetAttributes(device)
    assert attributes.multiprocessorCount == 42
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 3)
    assert attributes.memorySizeMB == 20096
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert nvml.nvmlDeviceGetUUID(parent) == nvml.nvmlDeviceGetUUID(a100)
    by_uuid = nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(device))
    assert nvml.nvmlDeviceGetGpuInstanceId(by_uuid) == 2
    for parent_only in (nvml.nvmlDeviceGetSerial, nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetUtilizationRates):
        assert error_of(parent_only, device) == NOT_SUPPORTED
    assert error_of(nvml.nvmlDeviceGetGpuInstanceId, a100) == INVALID, "as an H200 said"
    assert error_of(nvml.nvmlDeviceGetAttributes, a100) == NOT_SUPPORTED


def test_handle_of_a_destroyed_device_is_invalid(a100: Any) -> None:
    instance = create(a100, 19)
    compute = span(instance)
    (device,) = mig_devices(a100)
    uuid = nvml.nvmlDeviceGetUUID(device)
    nvml.nvmlComputeInstanceDestroy(compute)
    assert error_of(nvml.nvmlDeviceGetName, device) == INVALID
    assert error_of(nvml.nvmlDeviceGetHandleByUUID, uuid) == NOT_FOUND


def test_boards_without_mig_say_not_supported(tmp_path: Path) -> None:
    with talking_to(make_machine(tmp_path, "T4", "L4", "A10G")):
        for index in range(3):
            assert error_of(nvml.nvmlDeviceGetMigMode, gpu(index)) == NOT_SUPPORTED
            assert error_of(nvml.nvmlDeviceSetMigMode, gpu(index), 1) == NOT_SUPPORTED
            assert error_of(nvml.nvmlDeviceCreateGpuInstance, gpu(index), 19) == NOT_SUPPORTED
            assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu(index)) == 0
