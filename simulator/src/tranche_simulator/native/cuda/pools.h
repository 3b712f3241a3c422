/* Pools that streams take device memory from. They keep what comes back until a program waits for the GPU. */
#ifndef TRANCHE_CUDA_POOLS_H
#define TRANCHE_CUDA_POOLS_H

#include "contexts.h"

/* Memory for an allocation out of the pool, which takes more from its device if it has to. */
CUresult pool_take(CUmemoryPool pool, uint64_t size);
void pool_give(CUmemoryPool pool, uint64_t size);

/* Pools of the device give back what they keep beyond their thresholds. True when that is anything. */
bool pools_trim(struct cuda_device *device);
/* The device's last context has ended: its pools have nothing. */
void pools_free(const struct cuda_device *device);

#endif
