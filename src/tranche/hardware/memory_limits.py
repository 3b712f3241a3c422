"""Limits of a GPU's memory for control groups, which drivers from release 615 on keep. NVML must be initialised."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pynvml

from tranche.core.errors import HardwareError, VerificationFailed

_NO_LIMIT: Final = 2**64 - 1


def limit_memory(gpu_uuid: str, group: Path, *, soft: int, hard: int) -> None:
    """Let the processes of a group have at most `hard` bytes of the GPU together, and `soft` whatever others do.

    VerificationFailed when the driver does not show the limits afterwards; HardwareError when it refuses them.
    """
    _set(gpu_uuid, group, soft, hard)
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(str(group).encode())
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid), limits)
    except pynvml.NVMLError as error:
        raise _refused("read back the limit of", group, gpu_uuid, error) from error
    if (limits.softLimit, limits.hardLimit) != (soft, hard):
        raise VerificationFailed(
            f"the driver was told to limit {group} to {hard} bytes of GPU {gpu_uuid}, and shows {limits.hardLimit}"
        )


def lift_limit(gpu_uuid: str, group: Path) -> None:
    """Take the limits of a group away; that must be before the group goes, or its soft limit stays with the groups above."""
    _set(gpu_uuid, group, 0, _NO_LIMIT)


def _set(gpu_uuid: str, group: Path, soft: int, hard: int) -> None:
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(str(group).encode(), soft, hard)
    try:
        pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid), limits)
    except pynvml.NVMLError as error:
        raise _refused("limit the memory of", group, gpu_uuid, error) from error


def _refused(what: str, group: Path, gpu_uuid: str, error: pynvml.NVMLError) -> HardwareError:
    return HardwareError(
        f"the driver does not {what} the control group {group} on GPU {gpu_uuid}: {error} (NVML error {error.value})",
        hint="see its own word: nvidia-smi memory-limits --get -n GROUP -i GPU",
    )
