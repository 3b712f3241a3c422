"""Limits of a GPU's memory for control groups, as drivers from release 615 on keep them. NVML must be initialised."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pynvml

from tranche.core.errors import HardwareError, VerificationFailed

_NO_LIMIT: Final = 2**64 - 1
_NOT_THERE: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def limit_memory(gpu_uuid: str, group: Path, *, soft: int, hard: int) -> None:
    """Let the processes of a group use at most `hard` bytes of the GPU together, and `soft` whatever others do.

    HardwareError if the driver refuses; there is then nothing to lift.
    """
    try:
        _set(gpu_uuid, group, soft, hard)
    except pynvml.NVMLError as error:
        raise _refused("limit the memory of", group, gpu_uuid, error) from error


def verify_limit(gpu_uuid: str, group: Path, *, soft: int, hard: int) -> None:
    """VerificationFailed if the driver reports other limits for the group; HardwareError if it reports none."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(str(group).encode())
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid), limits)
    except pynvml.NVMLError as error:
        raise _refused("read back the limit of", group, gpu_uuid, error) from error
    if (limits.softLimit, limits.hardLimit) != (soft, hard):
        raise VerificationFailed(
            f"Tranche limited {group} to {hard} bytes of GPU {gpu_uuid}, but the driver shows {limits.hardLimit}"
        )


def has_limit(gpu_uuid: str, group: Path) -> bool:
    """Whether the driver reports a limit for the group. If it reports none, or does not answer, there is none to lift."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(str(group).encode())
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid), limits)
    except pynvml.NVMLError:
        return False
    return (limits.softLimit, limits.hardLimit) != (0, _NO_LIMIT)


def lift_limit(gpu_uuid: str, group: Path) -> None:
    """Remove the limits of a group. Do so before the group goes, or its soft limit stays with the groups above.

    HardwareError if the driver refuses; a GPU that is lost or gone has nothing left to lift.
    """
    try:
        _set(gpu_uuid, group, 0, _NO_LIMIT)
    except pynvml.NVMLError as error:
        if gpu_answers(gpu_uuid):
            raise _refused("lift the limit of", group, gpu_uuid, error) from error


def gpu_answers(gpu_uuid: str) -> bool:
    """False only if the driver says that it has lost the GPU, or does not know it."""
    try:
        pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid))
    except pynvml.NVMLError as error:
        return error.value not in _NOT_THERE
    return True


def _set(gpu_uuid: str, group: Path, soft: int, hard: int) -> None:
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(str(group).encode(), soft, hard)
    pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid), limits)


def _refused(what: str, group: Path, gpu_uuid: str, error: pynvml.NVMLError) -> HardwareError:
    return HardwareError(
        f"the driver refuses to {what} the control group {group} on GPU {gpu_uuid}: {error} (NVML error {error.value})",
        hint="compare with: nvidia-smi memory-limits --get -n GROUP -i GPU",
    )
