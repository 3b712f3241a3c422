"""What a tenant of a GPU runs: takes the memory it is let have, computes without a pause, and prints its GFLOPS once a second.

The PTX is valid for a real driver; the simulator reads from its comment how long the kernel takes on a GPU of its own.
"""

import ctypes
import sys
import time

GIGA_OPERATIONS = 800
"""What a kernel counts for: 100 ms of a T4's 8,000 GFLOPS."""
STEP = 64 << 20
MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""
AHEAD = 15
"""So many kernels wait behind the one that runs: a tenant's processor may be away for as long as these take, and its GPU time
stays its own. The simulator keeps 32 items of a stream, and each kernel has an event behind it.
"""
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
// tranche-sim: work time=100ms
.visible .entry work() { ret; }
"""

cuda = ctypes.CDLL("libcuda.so.1")


def check(code: int) -> None:
    if code:
        sys.exit(f"CUDA error {code}")


context, module, kernel, memory, *done = (ctypes.c_void_p() for _ in range(4 + AHEAD))
count = ctypes.c_int()
check(cuda.cuInit(0))
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
check(cuda.cuDeviceGetAttribute(ctypes.byref(count), MULTIPROCESSORS, 0))
check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"work"))
for event in done:
    check(cuda.cuEventCreate(ctypes.byref(event), 0))
taken = 0
while cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(STEP)) == 0:
    taken += STEP
print(taken >> 20, "MiB,", count.value, "multiprocessors")
kernels, began = 0, time.monotonic()
while True:
    event = done[kernels % AHEAD]
    check(cuda.cuEventSynchronize(event))
    check(cuda.cuLaunchKernel(kernel, 1000, 1, 1, 128, 1, 1, 0, None, None, None))
    check(cuda.cuEventRecord(event, None))
    kernels += 1
    if (seconds := time.monotonic() - began) >= 1:
        print(round(GIGA_OPERATIONS * kernels / seconds), "GFLOPS")
        kernels, began = 0, time.monotonic()
