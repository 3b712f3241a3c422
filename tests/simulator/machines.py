"""Simulated machines for tests: make one, talk NVML to it in this process or in others, check that its state is sound."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml as nvml

from tranche.core.errors import TrancheError
from tranche_simulator import GpuSpec, SimulatedMachine

Handle = Any

SIMULATOR_VARIABLES = (
    "TRANCHE_SIM_STATE",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "TRANCHE_SIM_TIME_SCALE",
    "TRANCHE_SIM_UNPRIVILEGED",
)

MAX_PLACEMENTS = 16

SEVEN_SLICE = ("A100-40GB", "A100-80GB", "H100-80GB-SXM", "H200-141GB", "B200")


def make_machine(root: Path, *boards: str, name: str = "machine", swapped: bool = False) -> SimulatedMachine:
    """A machine of these boards (one A100 by default) whose operations take no time."""
    gpus = tuple(
        GpuSpec(board, swapped=swapped, numa_node=index % 2, pci=(0, 0x10 + index, 0))
        for index, board in enumerate(boards or ("A100-40GB",))
    )
    return SimulatedMachine.create(name, gpus=gpus, root=root, time_scale=0.0)


@contextmanager
def talking_to(machine: SimulatedMachine, **variables: str) -> Iterator[None]:
    """NVML in this process shows the machine inside the block, with these environment variables set."""
    before = {name: os.environ.get(name) for name in SIMULATOR_VARIABLES}
    machine.preload()
    os.environ.update(variables)
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def enable_mig(machine: SimulatedMachine) -> None:
    """MIG mode on every GPU that has it, by mode change and, where the board needs it, reset. Inside talking_to."""
    for gpu in machine.gpus():
        if gpu.mig_supported:
            nvml.nvmlDeviceSetMigMode(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid), 1)
    for gpu in machine.gpus():
        if gpu.mig_pending and not gpu.mig_current:
            machine.reset_gpu(gpu.index)


def gpu(index: int = 0) -> Handle:
    """NVML's handle of a GPU."""
    return nvml.nvmlDeviceGetHandleByIndex(index)


def create(device: Handle, profile: int, start: int | None = None) -> Handle:
    """A GPU instance of a profile ID, where the driver likes or at a start."""
    if start is None:
        return nvml.nvmlDeviceCreateGpuInstance(device, profile)
    sizes = {p.start: p.size for p in placements(device, profile)}
    return create_at(device, profile, start, sizes.get(start, 1))


def create_at(device: Handle, profile: int, start: int, size: int) -> Handle:
    """A GPU instance at exactly this placement, legal or not."""
    placement = nvml.c_nvmlGpuInstancePlacement_t(start, size)
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, ctypes.byref(placement))


def placements(device: Handle, profile: int) -> list[Any]:
    """Every legal placement of a profile ID."""
    count = ctypes.c_uint(MAX_PLACEMENTS)
    found = (nvml.c_nvmlGpuInstancePlacement_t * MAX_PLACEMENTS)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, found, ctypes.byref(count))
    return list(found[: count.value])


def span(gpu_instance: Handle) -> Handle:
    """The compute instance that takes all of the GPU instance."""
    info = spanning_profile(gpu_instance)
    return nvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, info)


def spanning_profile(gpu_instance: Handle) -> int:
    """Profile ID of the largest compute instance that the GPU instance takes."""
    sizes = {}
    for profile in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, profile, 0)
        except nvml.NVMLError:
            continue
        sizes[int(info.sliceCount)] = int(info.id)
    if not sizes:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)  # another process has destroyed the instance
    return sizes[max(sizes)]


def profile_ids(device: Handle) -> list[int]:
    """Profile IDs that the GPU offers, by NVML enum."""
    found = []
    for profile in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            found.append(int(nvml.nvmlDeviceGetGpuInstanceProfileInfo(device, profile).id))
        except nvml.NVMLError:
            continue
    return found


def instances(device: Handle) -> dict[int, tuple[int, int, int]]:
    """GI id -> (profile ID, start, size) of every GPU instance, as NVML lists them."""
    found = {}
    for profile in profile_ids(device):
        count = ctypes.c_uint()
        handles = (nvml.c_nvmlGpuInstance_t * MAX_PLACEMENTS)()
        nvml.nvmlDeviceGetGpuInstances(device, profile, handles, ctypes.byref(count))
        for handle in handles[: count.value]:
            info = nvml.nvmlGpuInstanceGetInfo(handle)
            found[int(info.id)] = (int(info.profileId), int(info.placement.start), int(info.placement.size))
    return found


def mig_devices(device: Handle) -> list[Handle]:
    """Handles of the GPU's MIG devices, in index order."""
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
        except nvml.NVMLError_NotFound:
            break
    return found


def compute_instances(gpu_instance: Handle) -> list[tuple[int, int, int]]:
    """(id, start, size) of every compute instance in a GPU instance."""
    found = []
    for profile in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        count = ctypes.c_uint()
        handles = (nvml.c_nvmlComputeInstance_t * MAX_PLACEMENTS)()
        try:
            nvml.nvmlGpuInstanceGetComputeInstances(gpu_instance, profile, handles, ctypes.byref(count))
        except nvml.NVMLError_NotSupported:
            continue
        for handle in handles[: count.value]:
            info = nvml.nvmlComputeInstanceGetInfo(handle)
            found.append((int(info.id), int(info.placement.start), int(info.placement.size)))
    return found


def assert_sound(device: Handle) -> None:
    """No two instances share a memory or compute slice, every placement is legal, devices and instances agree."""
    listed = instances(device)
    taken: set[int] = set()
    devices = 0
    for gi_id, (profile, start, size) in listed.items():
        legal = {(p.start, p.size) for p in placements(device, profile)}
        assert (start, size) in legal, f"GI {gi_id} of profile {profile} at {start}:{size}"
        units = set(range(start, start + size))
        assert not units & taken, f"GI {gi_id} overlaps another"
        taken |= units
        handle = nvml.nvmlDeviceGetGpuInstanceById(device, gi_id)
        slices: set[int] = set()
        for ci_id, ci_start, ci_size in compute_instances(handle):
            compute = set(range(ci_start, ci_start + ci_size))
            assert not compute & slices, f"CI {ci_id} of GI {gi_id} overlaps another"
            slices |= compute
            devices += 1
    assert len(mig_devices(device)) == devices


def run_python(machine: SimulatedMachine, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own that finds the simulator as any NVML program would."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=process_environment(machine, **variables),
        capture_output=True,
        text=True,
        timeout=60,
    )


def process_environment(machine: SimulatedMachine, **variables: str) -> dict[str, str]:
    """The environment of such a process."""
    inherited = {name: value for name, value in os.environ.items() if name not in SIMULATOR_VARIABLES}
    return inherited | machine.environment() | variables


def error_of(call: object, *arguments: object) -> int:
    """The NVML code with which a call fails; 0 when it does not."""
    assert callable(call)
    try:
        call(*arguments)
    except nvml.NVMLError as error:
        return int(error.value)
    except TrancheError as error:
        raise AssertionError(f"not an NVML error: {error}") from error
    return 0
