#include "handles.h"

enum {
    CIS_PER_GPU = BOARD_MAX_GI_IDS * STATE_MAX_CIS,
    DEVICES_PER_GPU = 1 + CIS_PER_GPU, /* the GPU itself, then its possible MIG devices */
};

static char devices[TRANCHE_SIM_MAX_GPUS * DEVICES_PER_GPU];
static char gpu_instances[TRANCHE_SIM_MAX_GPUS * BOARD_MAX_GI_IDS];
static char compute_instances[TRANCHE_SIM_MAX_GPUS * CIS_PER_GPU];

static bool place_in(const void *handle, const char *array, size_t size, unsigned int *place) {
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)array;
    if (offset >= size) {
        return false;
    }
    *place = (unsigned int)offset;
    return true;
}

nvmlDevice_t device_handle(unsigned int gpu) { return (nvmlDevice_t)(void *)&devices[gpu * DEVICES_PER_GPU]; }

nvmlDevice_t mig_handle(unsigned int gpu, unsigned int gi, unsigned int ci) {
    return (nvmlDevice_t)(void *)&devices[gpu * DEVICES_PER_GPU + 1 + gi * STATE_MAX_CIS + ci];
}

nvmlGpuInstance_t gi_handle(unsigned int gpu, unsigned int gi) {
    return (nvmlGpuInstance_t)(void *)&gpu_instances[gpu * BOARD_MAX_GI_IDS + gi];
}

nvmlComputeInstance_t ci_handle(unsigned int gpu, unsigned int gi, unsigned int ci) {
    return (nvmlComputeInstance_t)(void *)&compute_instances[gpu * CIS_PER_GPU + gi * STATE_MAX_CIS + ci];
}

bool device_of_handle(nvmlDevice_t handle, struct device_place *place) {
    unsigned int index;
    if (!place_in(handle, devices, sizeof devices, &index)) {
        return false;
    }
    place->gpu = index / DEVICES_PER_GPU;
    unsigned int rest = index % DEVICES_PER_GPU;
    place->is_mig = rest != 0;
    place->gi = place->is_mig ? (rest - 1) / STATE_MAX_CIS : NO_INSTANCE;
    place->ci = place->is_mig ? (rest - 1) % STATE_MAX_CIS : NO_INSTANCE;
    return true;
}

bool gi_of_handle(nvmlGpuInstance_t handle, unsigned int *gpu, unsigned int *gi) {
    unsigned int index;
    if (!place_in(handle, gpu_instances, sizeof gpu_instances, &index)) {
        return false;
    }
    *gpu = index / BOARD_MAX_GI_IDS;
    *gi = index % BOARD_MAX_GI_IDS;
    return true;
}

bool ci_of_handle(nvmlComputeInstance_t handle, unsigned int *gpu, unsigned int *gi, unsigned int *ci) {
    unsigned int index;
    if (!place_in(handle, compute_instances, sizeof compute_instances, &index)) {
        return false;
    }
    *gpu = index / CIS_PER_GPU;
    *gi = index % CIS_PER_GPU / STATE_MAX_CIS;
    *ci = index % STATE_MAX_CIS;
    return true;
}
