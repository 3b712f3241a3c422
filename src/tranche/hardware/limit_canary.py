"""Asks for more GPU memory than its control group may have; the exit code tells whether it got it.

It is run by its path, with only the standard library: `limit_canary.py GROUP BYTES`.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

KEPT: Final = 10
"""The driver refused the memory."""
NOT_KEPT: Final = 11
"""The driver gave it."""
UNKNOWN: Final = 12
"""Something else went wrong."""

_OUT_OF_MEMORY: Final = 2


def ask(group: str, amount: int) -> int:
    """Enter the group and request `amount` bytes of the first CUDA device; returns the exit code."""
    try:
        with open(f"{group}/cgroup.procs", "w") as processes:
            processes.write("0")
        cuda = ctypes.CDLL("libcuda.so.1")
        device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        code = (
            cuda.cuInit(0)
            or cuda.cuDeviceGet(ctypes.byref(device), 0)
            or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
            or cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(amount))
        )
    except (OSError, AttributeError):
        return UNKNOWN
    return {0: NOT_KEPT, _OUT_OF_MEMORY: KEPT}.get(code, UNKNOWN)


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], int(sys.argv[2])))
