"""Counts the driver's errors to this process. NVML belongs to the process, and so does the tally."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from functools import cache

import pynvml


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
