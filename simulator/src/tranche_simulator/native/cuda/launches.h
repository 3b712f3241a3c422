/* Kernels given to streams. */
#ifndef TRANCHE_CUDA_LAUNCHES_H
#define TRANCHE_CUDA_LAUNCHES_H

#include "modules.h"
#include "streams.h"

struct launch {
    CUfunction function;
    unsigned int grid[3];
    unsigned int block[3];
    uint64_t nanoseconds; /* on a whole GPU that does nothing else */
};

/* Checks a launch, and what its arguments make of the kernel's time. */
CUresult launch_prepare(CUfunction handle, const unsigned int grid[3], const unsigned int block[3], void **parameters,
                        void **extra, struct launch *launch);
CUresult launch_put(const struct launch *launch, CUstream stream);

#endif
