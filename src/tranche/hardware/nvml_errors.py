"""NVML's return codes as errors of the product."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pynvml

from tranche.core.errors import (
    DriverNotFound,
    GpuBusy,
    GpuNotFound,
    HardwareError,
    MigNotSupported,
    NoRoom,
    PermissionDenied,
    TrancheError,
)
from tranche.hardware.error_tally import NVML_ERRORS

_CLASSES: dict[int, type[TrancheError]] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: MigNotSupported,
    pynvml.NVML_ERROR_NO_PERMISSION: PermissionDenied,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: DriverNotFound,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: DriverNotFound,
    pynvml.NVML_ERROR_IN_USE: GpuBusy,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: NoRoom,
}

_HINTS: dict[type[TrancheError], str] = {
    PermissionDenied: "cutting a GPU needs root: run the command with sudo",
    DriverNotFound: "install the NVIDIA driver, or try a simulated machine: tranche --simulate p4d.24xlarge gpus",
    GpuBusy: "see what uses it with: tranche ps",
    NoRoom: "see what is free with: tranche gpus",
}


@contextmanager
def explained(action: str) -> Iterator[None]:
    """Turn an NVML error inside the block into ours; `action` completes the sentence `cannot ...`."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise explain(action, error) from error


def explain(action: str, error: pynvml.NVMLError) -> TrancheError:
    """Count NVML's error and return ours."""
    NVML_ERRORS.note(error)
    cls = _CLASSES.get(error.value, HardwareError)
    if error.value == pynvml.NVML_ERROR_NOT_FOUND:
        cls = GpuNotFound
    hint = _HINTS.get(cls, "")
    if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
        hint = "the GPU fell off the bus: drain the machine and power-cycle it"
    if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        hint = (
            "the driver's libraries and its kernel module differ, as after an update: restart the machine; "
            "if it is simulated, another version made it: tranche sim destroy"
        )
    return cls(f"cannot {action}: {error} (NVML error {error.value})", hint=hint)
