"""NVML's return codes as errors of the product, and how many of each this process met: NVML belongs to the process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

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

_CLASSES: dict[int, type[TrancheError]] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: MigNotSupported,
    pynvml.NVML_ERROR_NO_PERMISSION: PermissionDenied,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: DriverNotFound,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: DriverNotFound,
    pynvml.NVML_ERROR_IN_USE: GpuBusy,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: NoRoom,
}

_HINTS: dict[type[TrancheError], str] = {
    PermissionDenied: "partitioning a GPU needs root: run the command with sudo",
    DriverNotFound: "install the NVIDIA driver, or try a simulated machine: tranche --simulate p4d.24xlarge gpus",
    GpuBusy: "see what is using it with: tranche ps",
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
            "the driver's libraries and its kernel module have different versions, for example after an update: "
            "restart the machine; "
            "if it is simulated, another version of Tranche created it; remove it with: tranche sim destroy"
        )
    return cls(f"cannot {action}: {error} (NVML error {error.value})", hint=hint)


@cache
def _names() -> Mapping[int, str]:
    """Names by code, built late: every command loads this module, few meet an error. The documents' name wins for a code."""
    found: dict[int, str] = {}
    for name, value in vars(pynvml).items():
        if name.startswith("NVML_ERROR_") and isinstance(value, int):
            found.setdefault(value, name.removeprefix("NVML_ERROR_"))
    return found


class _ErrorTally:
    """Counts NVML's errors by name; any thread may count and read."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, error: pynvml.NVMLError) -> None:
        """Count one."""
        with self._lock:
            self._counts[_names().get(error.value, str(error.value))] += 1

    def counts(self) -> Mapping[str, int]:
        """The number of each error, by its name in nvml.h without `NVML_ERROR_`: `GPU_IS_LOST`."""
        with self._lock:
            return dict(self._counts)


NVML_ERRORS = _ErrorTally()
