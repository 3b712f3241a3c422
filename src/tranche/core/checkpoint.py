"""Checkpoints: a machine's MIG modes and placed instances, in mig-parted's JSON.

Profiles are recorded by NVML's enum values (NVML_GPU_INSTANCE_PROFILE_*, NVML_COMPUTE_INSTANCE_PROFILE_*), not by the numbers
that nvidia-smi prints; for compute instances the two agree in every listing seen. GPUs that cannot be cut are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from tranche.core.board import GpuInstanceProfile
from tranche.core.errors import CheckpointInvalid
from tranche.core.grid import Placement
from tranche.core.profile import ProfileName
from tranche.core.state import GpuInstance, GpuState, NodeState

VERSION = "v1"

_HINT = "write one with: tranche layout checkpoint -f FILE"
_KINDS = {dict: "a mapping", str: "a text", int: "a number", list: "a list"}
_T = TypeVar("_T")

# Compute slices by NVML_COMPUTE_INSTANCE_PROFILE_*, from nvml.h: 7 is 1_SLICE_REV1.
_COMPUTE_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1}


@dataclass(frozen=True, slots=True)
class _RecordedInstance:
    """A recorded GPU instance; `compute_enums` is in order of creation."""

    profile_enum: int
    placement: Placement
    compute_enums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedGpu:
    """One recorded GPU."""

    uuid: str
    mig_enabled: bool
    instances: tuple[_RecordedInstance, ...] = ()


Checkpoint = tuple[RecordedGpu, ...]
"""Every MIG-capable GPU of a machine at one moment."""


def take_checkpoint(node: NodeState) -> Checkpoint:
    """Record the present modes and instances."""
    return tuple(_record_gpu(gpu) for gpu in node if gpu.mig_capable)


def checkpoint_to_data(checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint as JSON data, keys and empty values as mig-parted writes them."""
    devices = [
        {
            "UUID": gpu.uuid,
            "MigMode": int(gpu.mig_enabled),
            "GpuInstances": [_instance_to_data(instance) for instance in gpu.instances] or None,
        }
        for gpu in checkpoint
    ]
    return {"Version": VERSION, "MigState": {"Devices": devices or None}}


def parse_checkpoint(data: object) -> Checkpoint:
    """The recorded checkpoint; raises CheckpointInvalid with what is wrong and where."""
    version = _part(data, "Version", "the file", str)
    if version != VERSION:
        raise _invalid(f"its version is {version!r:.40}")
    devices = _list(_part(data, "MigState", "the file", dict), "Devices", "MigState")
    return tuple(_parse_gpu(device, f"device {number}") for number, device in enumerate(devices))


def gpu_instance_profile(gpu: GpuState, enum: int) -> GpuInstanceProfile:
    """The GPU's profile with that NVML enum value; raises CheckpointInvalid if it has none."""
    for profile in gpu.profiles:
        if profile.enum == enum:
            return profile
    raise CheckpointInvalid(
        f"{gpu.label} ({gpu.name}) has no GPU-instance profile {enum}, which the checkpoint records"
    )


def compute_instance_name(profile: GpuInstanceProfile, enum: int) -> ProfileName:
    """The name of the compute instance with that NVML enum value in the profile; raises CheckpointInvalid if there is none."""
    slices = _COMPUTE_SLICES.get(enum, 0)
    if not 1 <= slices <= profile.slices:
        raise CheckpointInvalid(f"{profile.name} has no compute-instance profile {enum}, which the checkpoint records")
    return profile.name._replace(compute=slices)


def _record_gpu(gpu: GpuState) -> RecordedGpu:
    if not gpu.mig_enabled:
        return RecordedGpu(gpu.uuid, False)
    profiles = {profile.name: profile for profile in gpu.profiles}
    # The format lists instances profile by profile, in the enum's order.
    recorded = sorted(
        (_record_instance(profiles[instance.profile], instance) for instance in gpu.instances),
        key=lambda instance: (instance.profile_enum, instance.placement),
    )
    return RecordedGpu(gpu.uuid, True, tuple(recorded))


def _record_instance(profile: GpuInstanceProfile, instance: GpuInstance) -> _RecordedInstance:
    inside = sorted(instance.compute_instances, key=lambda ci: (ci.profile_id, ci.start))
    return _RecordedInstance(profile.enum, instance.placement, tuple(ci.profile_id for ci in inside))


def _instance_to_data(instance: _RecordedInstance) -> dict[str, Any]:
    return {
        "ProfileID": instance.profile_enum,
        "Placement": {"Start": instance.placement.start, "Size": instance.placement.size},
        "ComputeInstances": [{"ProfileID": enum, "EngProfileID": 0} for enum in instance.compute_enums] or None,
    }


def _parse_gpu(data: object, where: str) -> RecordedGpu:
    uuid, mode = _part(data, "UUID", where, str), _part(data, "MigMode", where, int)
    if mode not in (0, 1):
        raise CheckpointInvalid(
            f"the checkpoint records MIG mode {mode!r:.40} for {uuid}; it must be 0 or 1", hint=_HINT
        )
    found = enumerate(_list(data, "GpuInstances", where))
    return RecordedGpu(uuid, bool(mode), tuple(_parse_instance(each, f"instance {n} of {where}") for n, each in found))


def _parse_instance(data: object, where: str) -> _RecordedInstance:
    spot = _part(data, "Placement", where, dict)
    start, size = (_part(spot, key, f"the placement of {where}", int) for key in ("Start", "Size"))
    inside = _list(data, "ComputeInstances", where)
    enums = tuple(_part(each, "ProfileID", f"a compute instance of {where}", int) for each in inside)
    return _RecordedInstance(_part(data, "ProfileID", where, int), Placement(start, size), enums)


def _part(data: object, key: str, where: str, kind: type[_T]) -> _T:
    """The value of the key; raises CheckpointInvalid if it is missing or has another type."""
    if not isinstance(data, dict):
        raise _invalid(f"{where} is not a mapping")
    if key not in data:
        raise _invalid(f"{where} has no '{key}'")
    found = data[key]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise _invalid(f"'{key}' of {where} is not {_KINDS[kind]}")
    return found


def _list(data: object, key: str, where: str) -> list[object]:
    """The list under the key; mig-parted writes null for an empty one."""
    if isinstance(data, dict) and key in data and data[key] is None:
        return []
    return _part(data, key, where, list)


def _invalid(what: str) -> CheckpointInvalid:
    return CheckpointInvalid(f"this is not a {VERSION} checkpoint: {what}", hint=_HINT)
