"""Compute instances: profiles inside each GPU instance, placements, ids, names, capacity."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tests.simulator.machines import (
    compute_instances,
    create,
    enable_mig,
    error_of,
    gpu,
    make_machine,
    mig_devices,
    span,
    spanning_profile,
    talking_to,
)
from tranche_simulator import SimulatedMachine

INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, IN_USE, NO_ROOM = 2, 3, 4, 6, 19, 23
ONE, TWO, THREE, FOUR, SEVEN, ONE_REV1 = 0, 1, 2, 3, 4, 7


def profiles(gpu_instance: Any) -> dict[int, int]:
    """CI profile -> how many fit."""
    found = {}
    for profile in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, profile, 0)
        except nvml.NVMLError_NotSupported:
            continue
        found[int(info.id)] = int(info.instanceCount)
    return found


def free(gpu_instance: Any) -> dict[int, int]:
    return {
        profile: nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gpu_instance, profile)
        for profile in profiles(gpu_instance)
    }


@pytest.mark.parametrize(
    ("profile", "inside"),
    [
        (19, {ONE: 1}),
        (14, {ONE: 2, TWO: 1}),
        (9, {ONE: 3, TWO: 1, THREE: 1}),
        (5, {ONE: 4, TWO: 2, FOUR: 1}),
        (0, {ONE: 7, TWO: 3, THREE: 2, FOUR: 1, SEVEN: 1}),
    ],
)
def test_profiles_inside_a_gpu_instance(a100: Any, profile: int, inside: dict[int, int]) -> None:
    instance = create(a100, profile)
    assert profiles(instance) == inside
    assert free(instance) == inside


@pytest.mark.parametrize(
    ("board", "name", "inside"),
    [
        ("A100-40GB", "1g.10gb", {ONE: 1}),
        ("A100-80GB", "1g.20gb", {ONE: 1}),
        ("H100-80GB-SXM", "1g.20gb", {ONE: 1, ONE_REV1: 1}),
        ("H100-NVL-94GB", "1g.24gb", {ONE: 1, ONE_REV1: 1}),
        ("GH200-96GB", "1g.24gb", {ONE: 1, ONE_REV1: 1}),
        ("H200-141GB", "1g.35gb", {ONE: 1, ONE_REV1: 1}),
        ("B200", "1g.45gb", {ONE: 1, ONE_REV1: 1}),
        ("GB200", "1g.47gb", {ONE: 1, ONE_REV1: 1}),
        ("GB300", "1g.70gb", {ONE: 1, ONE_REV1: 1}),
    ],
)
def test_a_slice_with_double_memory_takes_the_profile_that_nvidias_tools_ask_for(
    tmp_path: Path, board: str, name: str, inside: dict[int, int]
) -> None:
    """mig-parted and the DRA driver ask for 1_SLICE, nvidia-smi for 1_SLICE_REV1; each compute instance is listed once."""
    machine = make_machine(tmp_path, board)
    with talking_to(machine):
        enable_mig(machine)
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(), nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2)
        for profile in inside:
            instance = create(gpu(), int(info.id))
            assert profiles(instance) == inside
            asked = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, 0)
            assert (asked.id, asked.sliceCount) == (profile, 1)
            made = nvml.nvmlGpuInstanceCreateComputeInstance(instance, asked.id)
            assert free(instance) == dict.fromkeys(inside, 0), "both take the same room"
            assert nvml.nvmlComputeInstanceGetInfo(made).profileId == profile
            assert compute_instances(instance) == [(0, 0, 1)]
            (device,) = mig_devices(gpu())
            assert nvml.nvmlDeviceGetName(device).endswith(f"MIG {name}")
            nvml.nvmlComputeInstanceDestroy(made)
            nvml.nvmlGpuInstanceDestroy(instance)


def test_starts_and_ids_count_up(a100: Any) -> None:
    instance = create(a100, 9)
    for _ in range(3):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, ONE)
    assert compute_instances(instance) == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]
    assert error_of(nvml.nvmlGpuInstanceCreateComputeInstance, instance, ONE) == NO_ROOM
    middle = nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 1)
    nvml.nvmlComputeInstanceDestroy(middle)
    assert error_of(nvml.nvmlGpuInstanceGetComputeInstanceById, instance, 1) == NOT_FOUND
    assert error_of(nvml.nvmlComputeInstanceDestroy, middle) == INVALID
    assert error_of(nvml.nvmlGpuInstanceCreateComputeInstance, instance, TWO) == NO_ROOM
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, ONE)
    assert sorted(compute_instances(instance)) == [(0, 0, 1), (1, 1, 1), (2, 2, 1)], "the lowest free id and start"


def test_capacity_follows_what_is_taken(a100: Any) -> None:
    instance = create(a100, 0)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, THREE)
    assert free(instance) == {ONE: 4, TWO: 1, THREE: 1, FOUR: 0, SEVEN: 0}
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, TWO)
    assert sorted(compute_instances(instance)) == [(0, 0, 3), (1, 4, 2)]


def test_explicit_placement(a100: Any) -> None:
    instance = create(a100, 5)

    def at(profile: int, start: int, size: int) -> int:
        placement = nvml.c_nvmlComputeInstancePlacement_t(start, size)
        make = nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement
        return error_of(make, instance, profile, ctypes.byref(placement))

    assert at(TWO, 2, 2) == 0
    assert at(TWO, 1, 2) == INVALID
    assert at(TWO, 2, 2) == NO_ROOM
    assert at(ONE, 0, 2) == INVALID
    assert at(ONE, 1, 1) == 0
    assert sorted(compute_instances(instance)) == [(0, 2, 2), (1, 1, 1)]


def test_possible_placements(a100: Any) -> None:
    instance = create(a100, 0)
    count = ctypes.c_uint(8)
    found = (nvml.c_nvmlComputeInstancePlacement_t * 8)()
    ask = nvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements
    ask(instance, TWO, found, ctypes.byref(count))
    assert [(p.start, p.size) for p in found[: count.value]] == [(0, 2), (2, 2), (4, 2)]
    count = ctypes.c_uint(2)
    assert error_of(ask, instance, TWO, found, ctypes.byref(count)) == nvml.NVML_ERROR_INSUFFICIENT_SIZE


def test_unknown_profiles(a100: Any) -> None:
    instance = create(a100, 14)
    assert error_of(nvml.nvmlGpuInstanceCreateComputeInstance, instance, THREE) == NOT_SUPPORTED
    assert error_of(nvml.nvmlGpuInstanceCreateComputeInstance, instance, 42) == INVALID
    assert error_of(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, ONE, 1) == INVALID, "engine profile"


def test_names_and_sizes_of_parts(a100: Any) -> None:
    instance = create(a100, 9)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, TWO)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, ONE)
    names = [nvml.nvmlDeviceGetName(device) for device in mig_devices(a100)]
    assert names == ["NVIDIA A100-SXM4-40GB MIG 2c.3g.20gb", "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"]
    parts = [nvml.nvmlDeviceGetAttributes(device) for device in mig_devices(a100)]
    assert [part.multiprocessorCount for part in parts] == [28, 14]
    assert [part.memorySizeMB for part in parts] == [20096, 20096], "memory is shared"
    assert [part.sharedCopyEngineCount for part in parts] == [3, 3], "engines are shared"
    assert len({nvml.nvmlDeviceGetUUID(device) for device in mig_devices(a100)}) == 2


def test_info_names_its_gpu_instance(a100: Any) -> None:
    instance = create(a100, 14)
    compute = span(instance)
    info = nvml.nvmlComputeInstanceGetInfo(compute)
    assert nvml.nvmlGpuInstanceGetInfo(info.gpuInstance).id == nvml.nvmlGpuInstanceGetInfo(instance).id
    assert nvml.nvmlDeviceGetUUID(info.device) == nvml.nvmlDeviceGetUUID(a100)
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (0, TWO, 0, 2)


def test_changes_need_permission(a100: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = create(a100, 14)
    compute = span(instance)
    monkeypatch.setenv("TRANCHE_SIM_UNPRIVILEGED", "1")
    assert error_of(nvml.nvmlComputeInstanceDestroy, compute) == NO_PERMISSION
    assert error_of(nvml.nvmlGpuInstanceCreateComputeInstance, instance, ONE) == NO_PERMISSION
    assert error_of(nvml.nvmlGpuInstanceDestroy, instance) == NO_PERMISSION


def test_compute_instance_with_a_client_is_in_use(machine: SimulatedMachine, a100: Any) -> None:
    instance = create(a100, 9)
    for _ in range(2):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, ONE)
    busy, idle = mig_devices(a100)
    machine.inject_busy(nvml.nvmlDeviceGetUUID(busy))
    assert error_of(nvml.nvmlComputeInstanceDestroy, nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)) == IN_USE
    assert nvml.nvmlDeviceGetComputeInstanceId(idle) == 1
    assert error_of(nvml.nvmlComputeInstanceDestroy, nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 1)) == 0


@pytest.mark.parametrize("board", ["A30-24GB", "A100-80GB", "H100-80GB-PCIe", "B200", "GB300", "RTX-PRO-6000-96GB"])
def test_every_gpu_instance_takes_a_spanning_compute_instance(tmp_path: Path, board: str) -> None:
    machine = make_machine(tmp_path, board)
    with talking_to(machine):
        enable_mig(machine)
        for profile in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(), profile)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                continue
            instance = create(gpu(), int(info.id))
            compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, spanning_profile(instance))
            (device,) = mig_devices(gpu())
            gi_name = info.name.decode() if isinstance(info.name, bytes) else info.name
            assert nvml.nvmlDeviceGetName(device).endswith(gi_name), "the spanning part has the instance's name"
            assert nvml.nvmlDeviceGetAttributes(device).multiprocessorCount == info.multiprocessorCount
            nvml.nvmlComputeInstanceDestroy(compute)
            nvml.nvmlGpuInstanceDestroy(instance)
