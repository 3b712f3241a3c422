"""Limits of a GPU's memory for control groups, which drivers from release 615 on keep. NVML must be initialised."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pynvml

from tranche.core.errors import HardwareError, VerificationFailed

_NO_LIMIT: Final = 2**64 - 1
_NOT_THERE: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def limit_memory(gpu_uuid: str, group: Path, *, soft: int, hard: int) -> None:
    """Let the processes of a group have at most `hard` bytes of the GPU together, and `soft` whatever others do.

    HardwareError when the driver refuses; there is nothing to lift then.
    """
    try:
        _set(gpu_uuid, group, soft, hard)
    except pynvml.NVMLError as error:
        raise _refused("limit the memory of", group, gpu_uuid, error) from error


def verify_limit(gpu_uuid: str, group: Path, *, soft: int, hard: int) -> None:
    """VerificationFailed when the driver does not show these limits of the group; HardwareError when it shows none."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(str(group).encode())
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid), limits)
    except pynvml.NVMLError as error:
        raise _refused("read back the limit of", group, gpu_uuid, error) from error
    if (limits.softLimit, limits.hardLimit) != (soft, hard):
        raise VerificationFailed(
            f"the driver was told to limit {group} to {hard} bytes of GPU {gpu_uuid}, and shows {limits.hardLimit}"
        )


def has_limit(gpu_uuid: str, group: Path) -> bool:
    """Whether the driver shows a limit of the group. Where it shows none, or does not answer, there is none to be lifted."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(str(group).encode())
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid), limits)
    except pynvml.NVMLError:
        return False
    return (limits.softLimit, limits.hardLimit) != (0, _NO_LIMIT)


def lift_limit(gpu_uuid: str, group: Path) -> None:
    """Take the limits of a group away; that must be before the group goes, or its soft limit stays with the groups above.

    HardwareError when the driver refuses; of a GPU that is lost, or not there any more, nothing is left to lift.
    """
    try:
        _set(gpu_uuid, group, 0, _NO_LIMIT)
    except pynvml.NVMLError as error:
        if gpu_answers(gpu_uuid):
            raise _refused("lift the limit of", group, gpu_uuid, error) from error


def gpu_answers(gpu_uuid: str) -> bool:
    """False only when the driver says that it has lost the GPU, or does not know it."""
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
        f"the driver does not {what} the control group {group} on GPU {gpu_uuid}: {error} (NVML error {error.value})",
        hint="see its own word: nvidia-smi memory-limits --get -n GROUP -i GPU",
    )
