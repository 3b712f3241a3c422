/* Compute processes of a GPU, those of its MIG devices included. */
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>

nvmlReturn_t smi_processes(const SmiGpu *gpu, nvmlProcessInfo_t **infos, unsigned *count) {
    unsigned room = 16;
    for (;;) {
        *infos = calloc(room, sizeof **infos);
        if (!*infos) return NVML_ERROR_MEMORY;
        *count = room;
        nvmlReturn_t result = nvmlDeviceGetComputeRunningProcesses_v3(gpu->handle, count, *infos);
        if (result == NVML_SUCCESS) return result;
        free(*infos);
        *infos = NULL;
        if (result != NVML_ERROR_INSUFFICIENT_SIZE) {
            *count = 0;
            return result;
        }
        room = *count > room ? *count + 8 : room * 2; /* clients may come between the two calls */
    }
}

const char *smi_process_name(unsigned pid, char *name, unsigned size) {
    if (nvmlSystemGetProcessName(pid, name, size)) snprintf(name, size, "[Not Found]");
    return name;
}
