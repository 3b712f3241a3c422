"""A tenant's program: keeps a GPU busy with kernels of so many blocks, by the driver API alone, until its stdin ends.

Started as `python tenant.py BLOCKS`. The PTX is valid for a real driver; the simulator reads how long the kernel takes.
"""

from __future__ import annotations

import ctypes
import select
import sys

_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
// tranche-sim: work time=20ms
.visible .entry work() { ret; }
"""


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(cuda.cuInit(0))
    _check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
    _check(cuda.cuModuleLoadData(ctypes.byref(module), _PTX))
    _check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"work"))
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        _check(cuda.cuLaunchKernel(kernel, int(sys.argv[1]), 1, 1, 128, 1, 1, 0, None, None, None))
    _check(cuda.cuCtxSynchronize())


def _check(code: int) -> None:
    if code:
        sys.exit(f"CUDA error {code}")


if __name__ == "__main__":
    main()
