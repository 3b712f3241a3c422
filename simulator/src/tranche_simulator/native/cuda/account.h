/* How much device memory this process holds, in the machine's state, where NVML and other processes see it. */
#ifndef TRANCHE_CUDA_ACCOUNT_H
#define TRANCHE_CUDA_ACCOUNT_H

#include "driver.h"

/* Opens a context on the device, and returns the context's own memory in `bytes`. */
CUresult account_open(struct cuda_device *device, uint64_t *bytes);
void account_close(struct cuda_device *device, uint64_t bytes);

/* Device memory for an allocation of that size; `large` ones have pieces of their own. */
CUresult account_take(struct cuda_device *device, uint64_t bytes);
void account_give(struct cuda_device *device, uint64_t bytes);

/* As cuMemGetInfo tells them. */
void account_info(const struct cuda_device *device, uint64_t *available, uint64_t *total);

#endif
