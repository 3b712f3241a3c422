#include <string.h>

#include "state.h"

static const char *const change_functions[CHANGE_COUNT] = {
    [CHANGE_SET_MIG_MODE] = "nvmlDeviceSetMigMode",
    [CHANGE_CREATE_GPU_INSTANCE] = "nvmlDeviceCreateGpuInstance",
    [CHANGE_CREATE_GPU_INSTANCE_WITH_PLACEMENT] = "nvmlDeviceCreateGpuInstanceWithPlacement",
    [CHANGE_DESTROY_GPU_INSTANCE] = "nvmlGpuInstanceDestroy",
    [CHANGE_CREATE_COMPUTE_INSTANCE] = "nvmlGpuInstanceCreateComputeInstance",
    [CHANGE_CREATE_COMPUTE_INSTANCE_WITH_PLACEMENT] = "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    [CHANGE_DESTROY_COMPUTE_INSTANCE] = "nvmlComputeInstanceDestroy",
    [CHANGE_RESET_GPU] = "trancheSimResetGpu",
    [CHANGE_SET_PERSISTENCE_MODE] = "nvmlDeviceSetPersistenceMode",
    [CHANGE_SET_COMPUTE_MODE] = "nvmlDeviceSetComputeMode",
    [CHANGE_SET_TIMESLICE] = "trancheSimSetTimeslice",
    [CHANGE_SET_MEMORY_LIMITS] = "nvmlDeviceSetMemoryLimits_v1",
};

_Static_assert((unsigned int)CHANGE_COUNT <= STATE_MAX_COUNTERS, "room for every counter");

void count_change(machine *m, enum change_call call) {
    if (m->writable) {
        atomic_fetch_add(&m->state->changes[call], 1);
    }
}

const char *trancheSimChangeFunction(unsigned int index) {
    return index < CHANGE_COUNT ? change_functions[index] : NULL;
}

nvmlReturn_t trancheSimChangeCalls(trancheSimMachine_t m, const char *function, unsigned long long *count) {
    if (m == NULL || function == NULL || count == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned int i = 0; i < CHANGE_COUNT; i++) {
        if (strcmp(change_functions[i], function) == 0) {
            *count = atomic_load(&m->state->changes[i]);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}
