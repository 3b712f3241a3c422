/* NVML handles. They are addresses in arrays that hold nothing: the place in the array says what is meant, so a stale
 * or foreign pointer is recognised and never followed. Valid for the life of the process. */
#ifndef TRANCHE_HANDLES_H
#define TRANCHE_HANDLES_H

#include "state.h"

struct device_place {
    unsigned int gpu; /* index on the machine */
    bool is_mig;
    unsigned int gi;
    unsigned int ci;
};

nvmlDevice_t device_handle(unsigned int gpu);
nvmlDevice_t mig_handle(unsigned int gpu, unsigned int gi, unsigned int ci);
nvmlGpuInstance_t gi_handle(unsigned int gpu, unsigned int gi);
nvmlComputeInstance_t ci_handle(unsigned int gpu, unsigned int gi, unsigned int ci);

bool device_of_handle(nvmlDevice_t handle, struct device_place *place);
bool gi_of_handle(nvmlGpuInstance_t handle, unsigned int *gpu, unsigned int *gi);
bool ci_of_handle(nvmlComputeInstance_t handle, unsigned int *gpu, unsigned int *gi, unsigned int *ci);

#endif
