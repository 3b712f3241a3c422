"""What one GPU can be cut into, by the driver's own answers; the catalogue stands in where the driver gives none."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pynvml

from tranche.core.board import Board, ComputeInstanceProfile, GpuInstanceProfile, board_of
from tranche.core.errors import UsageError
from tranche.core.profile import ProfileName, parse_profile
from tranche.core.quantity import GIB, MIB

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

    On Ampere with MIG off the driver answers neither; on other boards the queries work with MIG off too (captures of p5 and p6
    nodes were taken that way).
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
    """Compute profiles can be asked only of a GPU instance that exists; until then the catalogue's, else the spanning one."""
    if known is not None and known.name == name and known.compute_profiles:
        return known.compute_profiles
    return (ComputeInstanceProfile(name=name, enum=-1, id=-1, slices=slices, sm=sm, max_instances=1),)
