"""The GPU instances, compute instances and processes that exist on one GPU, read through NVML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml

from tranche.core.board import GpuInstanceProfile
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName
from tranche.core.state import ComputeInstance, GpuInstance, GpuProcess

_NO_INSTANCE = 0xFFFFFFFF
_COMPUTE_PROFILE_ENUMS = range(9)
_LOOKS = 10
# Clients of MPS have a list of their own; the server that they share stands in the first.
_PROCESS_LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
)
_GONE = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def read_processes(handle: Any) -> dict[tuple[int | None, int | None], list[GpuProcess]]:
    """Processes by (GPU instance id, compute instance id); (None, None) for those on the uncut GPU."""
    found: dict[tuple[int | None, int | None], dict[int, GpuProcess]] = {}
    for query in _PROCESS_LISTS:
        try:
            listed = query(handle)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            continue
        for item in listed:
            place = (_instance_id(item, "gpuInstanceId"), _instance_id(item, "computeInstanceId"))
            process = GpuProcess(item.pid, process_name(item.pid), item.usedGpuMemory)
            found.setdefault(place, {}).setdefault(item.pid, process)
    return {place: list(by_pid.values()) for place, by_pid in found.items()}


def process_name(pid: int) -> str:
    """The command's name as NVML or the kernel knows it; empty when neither does."""
    try:
        name = pynvml.nvmlSystemGetProcessName(pid)
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        if text:
            return Path(text).name
    except pynvml.NVMLError:
        pass
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def read_mig_devices(handle: Any) -> dict[tuple[int, int], tuple[int, str]]:
    """(GPU instance id, compute instance id) -> (MIG device index, UUID)."""
    devices: dict[tuple[int, int], tuple[int, str]] = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            gi_id = pynvml.nvmlDeviceGetGpuInstanceId(device)
            ci_id = pynvml.nvmlDeviceGetComputeInstanceId(device)
            devices[gi_id, ci_id] = (index, pynvml.nvmlDeviceGetUUID(device))
        except pynvml.NVMLError as error:
            # Indexes have no gaps (nvml.h), but an instance may vanish between two calls.
            if error.value in _GONE:
                continue
            raise
    return devices


class InstanceReader:
    """Reads the instances of GPUs; remembers which compute profiles each kind of GPU instance has, which never changes."""

    def __init__(self) -> None:
        self._compute_profiles: dict[tuple[str, int], tuple[tuple[int, int], ...]] = {}

    def read(
        self,
        handle: Any,
        gpu_uuid: str,
        profiles: Sequence[GpuInstanceProfile],
        processes: Mapping[tuple[int | None, int | None], Sequence[GpuProcess]],
    ) -> tuple[GpuInstance, ...]:
        """Every GPU instance on the GPU, by placement.

        It takes many calls, and another process may cut the GPU between two of them: an instance is gone, or the indexes of the
        MIG devices have moved and one was passed over. So the GPU is looked at again until the looks agree with themselves.
        """
        for look in range(1, _LOOKS + 1):
            try:
                instances = self._read_once(handle, gpu_uuid, profiles, processes)
            except pynvml.NVMLError as error:
                if error.value not in _GONE or look == _LOOKS:
                    raise
                continue
            if all(ci.uuid for instance in instances for ci in instance.compute_instances):
                break
        return instances

    def _read_once(
        self,
        handle: Any,
        gpu_uuid: str,
        profiles: Sequence[GpuInstanceProfile],
        processes: Mapping[tuple[int | None, int | None], Sequence[GpuProcess]],
    ) -> tuple[GpuInstance, ...]:
        devices: dict[tuple[int, int], tuple[int, str]] | None = None
        instances: list[GpuInstance] = []
        for profile in profiles:
            if profile.id is None:
                continue
            for gi_handle in _list(
                pynvml.nvmlDeviceGetGpuInstances, handle, profile.id, profile.max_instances, pynvml.c_nvmlGpuInstance_t
            ):
                if devices is None:
                    devices = read_mig_devices(handle)
                info = pynvml.nvmlGpuInstanceGetInfo(gi_handle)
                compute = self._compute_instances(gi_handle, info.id, gpu_uuid, profile, devices, processes)
                known = {ci.id for ci in compute}
                instances.append(
                    GpuInstance(
                        id=info.id,
                        profile=profile.name,
                        profile_id=profile.id,
                        placement=Placement(info.placement.start, info.placement.size),
                        memory=profile.memory,
                        compute_instances=compute,
                        stray_processes=tuple(
                            process
                            for (gi_id, ci_id), listed in processes.items()
                            if gi_id == info.id and ci_id not in known
                            for process in listed
                        ),
                    )
                )
        return tuple(sorted(instances, key=lambda instance: instance.placement))

    def compute_profiles(self, gi_handle: Any, gpu_uuid: str, profile_id: int) -> tuple[tuple[int, int], ...]:
        """(compute profile id, compute slices) of each way to cut the inside of the GPU instance, smallest first.

        Of two of one size the higher id comes first: in a 1g with double memory nvidia-smi's default is 7 (1_SLICE_REV1), not 0.
        """
        key = (gpu_uuid, profile_id)
        if key not in self._compute_profiles:
            found = []
            for enum in _COMPUTE_PROFILE_ENUMS:
                try:
                    info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi_handle, enum, 0)
                except pynvml.NVMLError as error:
                    if error.value in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED):
                        continue
                    raise
                found.append((info.id, info.sliceCount))
            # What was asked of an instance that is gone meanwhile is not remembered: it lacks profiles, or is of another one.
            if pynvml.nvmlGpuInstanceGetInfo(gi_handle).profileId != profile_id:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            self._compute_profiles[key] = tuple(sorted(found, key=lambda item: (item[1], -item[0])))
        return self._compute_profiles[key]

    def _compute_instances(
        self,
        gi_handle: Any,
        gi_id: int,
        gpu_uuid: str,
        profile: GpuInstanceProfile,
        devices: Mapping[tuple[int, int], tuple[int, str]],
        processes: Mapping[tuple[int | None, int | None], Sequence[GpuProcess]],
    ) -> tuple[ComputeInstance, ...]:
        assert profile.id is not None
        found: list[ComputeInstance] = []
        for ci_profile_id, slices in self.compute_profiles(gi_handle, gpu_uuid, profile.id):
            listed = _list(
                pynvml.nvmlGpuInstanceGetComputeInstances,
                gi_handle,
                ci_profile_id,
                profile.slices // slices,
                pynvml.c_nvmlComputeInstance_t,
            )
            for ci_handle in listed:
                info = pynvml.nvmlComputeInstanceGetInfo(ci_handle)
                index, uuid = devices.get((gi_id, info.id), (None, ""))
                name = ProfileName(
                    profile.name.slices, profile.name.memory_gb, slices, profile.name.added, profile.name.removed
                )
                found.append(
                    ComputeInstance(
                        id=info.id,
                        name=name,
                        profile_id=ci_profile_id,
                        start=info.placement.start,
                        slices=slices,
                        uuid=uuid,
                        mig_index=index,
                        processes=tuple(processes.get((gi_id, info.id), ())),
                    )
                )
        return tuple(sorted(found, key=lambda ci: (ci.start, ci.id)))


def _list(query: Any, parent: Any, profile_id: int, capacity: int, handle_type: Any) -> list[Any]:
    """The instances of one profile under a GPU or GPU instance."""
    array = (handle_type * max(1, capacity))()
    count = pynvml.c_uint(len(array))
    try:
        query(parent, profile_id, array, pynvml.byref(count))
    except pynvml.NVMLError as error:
        # Old drivers answer a profile without instances, or MIG off, with an error.
        if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED):
            return []
        raise
    return [array[i] for i in range(count.value)]


def _instance_id(item: Any, field: str) -> int | None:
    value = getattr(item, field, None)
    return None if value in (None, _NO_INSTANCE) else int(value)
