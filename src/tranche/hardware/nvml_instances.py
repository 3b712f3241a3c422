"""What one GPU can be cut into, and its instances, compute instances and processes, read through NVML.

The catalogue fills in for missing answers of the driver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from tranche.core.board import Board, ComputeInstanceProfile, GpuInstanceProfile, board_of
from tranche.core.errors import UsageError
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.quantity import GIB, MIB
from tranche.core.state import ComputeInstance, GpuInstance, GpuProcess
from tranche.hardware.process_stat import process_file

# NVML_GPU_INSTANCE_PROFILE_*: the attribute that each variant carries (nvml.h).
_ADDED = {7: "me", 8: "me", 10: "gfx", 11: "gfx", 12: "gfx", 15: "me.all", 16: "me.all", 17: "gfx"}
_REMOVED = {13: "me", 14: "me"}
_PROFILE_ENUMS = range(18)


class GpuProfileTable(NamedTuple):
    """The profiles of a GPU, the length of its placement grid, and whether `driver` or `catalogue` said so."""

    profiles: tuple[GpuInstanceProfile, ...]
    memory_slices: int
    source: str


def read_profiles(handle: Any, pci_device_id: str, name: str, memory: int) -> GpuProfileTable:
    """Ask the driver for every profile and its placements.

    On Ampere with MIG off the driver answers neither; on other boards the queries also work with MIG off, as the captures of p5
    and p6 nodes show.
    """
    board = board_of(pci_device_id, name, memory)
    profiles = [p for enum in _PROFILE_ENUMS if (p := _read_profile(handle, enum, board, memory)) is not None]
    if profiles:
        units = max(p.size + max(p.starts, default=0) for p in profiles)
        return GpuProfileTable(tuple(profiles), units, "driver")
    if board is not None:
        return GpuProfileTable(board.profiles, board.memory_slices or 0, "catalogue")
    return GpuProfileTable((), 0, "driver")


def profile_name(enum: int, slices: int, memory: int, total: int) -> ProfileName:
    """A profile's name by the driver's own rule, for drivers whose profile info carries no name.

    The figure is round(ceil(8 * memory / total) / 8 * ceil(total in GiB)), halves rounded up.
    """
    eighths = math.ceil(8 * memory / total)
    memory_gb = math.floor(eighths * math.ceil(total / GIB) / 8 + 0.5)
    added = (_ADDED[enum],) if enum in _ADDED else ()
    removed = (_REMOVED[enum],) if enum in _REMOVED else ()
    return ProfileName(slices, memory_gb, slices, added, removed)


def _read_profile(handle: Any, enum: int, board: Board | None, total: int) -> GpuInstanceProfile | None:
    info = _profile_info(handle, enum)
    if info is None:
        return None
    memory = info.memorySizeMB * MIB
    known = None if board is None else next((p for p in board.profiles if p.enum == enum), None)
    name = _reported_name(info) or profile_name(enum, info.sliceCount, memory, total)
    starts, size = _read_placements(handle, info.id, info.instanceCount)
    if not starts and known is not None:
        starts, size = known.starts, known.size
    return GpuInstanceProfile(
        name=name,
        enum=enum,
        id=info.id,
        slices=info.sliceCount,
        memory=memory,
        sm=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg=info.jpegCount,
        ofa=info.ofaCount,
        max_instances=info.instanceCount,
        starts=starts,
        size=size,
        compute_profiles=_compute_profiles(name, info.sliceCount, info.multiprocessorCount, known),
    )


def _profile_info(handle: Any, enum: int) -> Any:
    for version in (2, 1):
        try:
            return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, enum, version=version)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                continue
            # The end of the enumeration, a profile that this GPU lacks, or Ampere with MIG off.
            if error.value in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED):
                return None
            raise
    return None


def _reported_name(info: Any) -> ProfileName | None:
    raw = getattr(info, "name", b"")
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    try:
        return parse_profile(text.removeprefix("MIG ").strip())
    except UsageError:
        return None


def _read_placements(handle: Any, profile_id: int, instance_count: int) -> tuple[tuple[int, ...], int]:
    count = pynvml.c_uint(0)
    try:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, pynvml.byref(count))
        if count.value == 0:
            return (), 0
        array = (pynvml.c_nvmlGpuInstancePlacement_t * max(count.value, instance_count))()
        count.value = len(array)
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, array, pynvml.byref(count))
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return (), 0
    found = sorted((array[i].start, array[i].size) for i in range(count.value))
    return tuple(start for start, _ in found), found[0][1] if found else 0


def _compute_profiles(
    name: ProfileName, slices: int, sm: int, known: GpuInstanceProfile | None
) -> tuple[ComputeInstanceProfile, ...]:
    """The driver names compute profiles only for an existing GPU instance; until then the catalogue's, else the spanning one."""
    if known is not None and known.name == name and known.compute_profiles:
        return known.compute_profiles
    return (ComputeInstanceProfile(name=name, enum=-1, id=-1, slices=slices, sm=sm, max_instances=1),)


_NO_INSTANCE = 0xFFFFFFFF
_COMPUTE_PROFILE_ENUMS = range(9)
_LOOKS = 10
# MPS clients have their own list; the server that they share is in the first.
_PROCESS_LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
)
_GONE = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def read_processes(handle: Any) -> tuple[dict[tuple[int | None, int | None], list[GpuProcess]], bool]:
    """Processes by (GPU instance id, compute instance id); (None, None) for those on the uncut GPU.

    Also whether the driver listed those that compute.
    """
    failed = set()
    found: dict[tuple[int | None, int | None], dict[int, GpuProcess]] = {}
    for query in _PROCESS_LISTS:
        try:
            listed = query(handle)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            failed.add(query)
            continue
        for item in listed:
            place = (_instance_id(item, "gpuInstanceId"), _instance_id(item, "computeInstanceId"))
            process = GpuProcess(item.pid, process_name(item.pid), item.usedGpuMemory)
            found.setdefault(place, {}).setdefault(item.pid, process)
    return {place: list(by_pid.values()) for place, by_pid in found.items()}, _PROCESS_LISTS[0] not in failed


def process_name(pid: int) -> str:
    """The command's name as NVML or the kernel knows it; empty if neither does."""
    try:
        name = pynvml.nvmlSystemGetProcessName(pid)
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        if text:
            return Path(text).name
    except pynvml.NVMLError:
        pass
    try:
        return process_file(pid, "comm").decode(errors="replace").strip()
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
    """Reads the instances of GPUs; remembers the compute profiles of each kind of GPU instance, which never change."""

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

        Reading takes many calls, and another process may cut the GPU between two of them: an instance disappears, or the indexes
        of MIG devices shift and one is skipped. So it repeats the look until the looks agree.
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

        Of two with equal size the higher id comes first: in a 1g with double memory nvidia-smi's default is 7 (1_SLICE_REV1), not
        0.
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
            # Answers about a vanished instance are not remembered: they lack profiles, or describe another instance.
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
