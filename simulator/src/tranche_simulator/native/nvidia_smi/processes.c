/* Compute processes of a GPU, those of its MIG devices included. */
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>

NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                                 nvmlProcessInfo_t *infos);

typedef nvmlReturn_t (*ProcessQuery)(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);

static nvmlReturn_t read_processes(ProcessQuery query, const SmiGpu *gpu, nvmlProcessInfo_t **infos, unsigned *count) {
    unsigned room = 16;
    for (;;) {
        *infos = calloc(room, sizeof **infos);
        if (!*infos) return NVML_ERROR_MEMORY;
        *count = room;
        nvmlReturn_t result = query(gpu->handle, count, *infos);
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

static nvmlReturn_t append(ProcessQuery query, const char *type, const SmiGpu *gpu, SmiProcess **processes, unsigned *count) {
    nvmlProcessInfo_t *infos;
    unsigned found;
    nvmlReturn_t result = read_processes(query, gpu, &infos, &found);
    if (result) return result;
    SmiProcess *grown = realloc(*processes, (*count + found + 1) * sizeof **processes);
    for (unsigned i = 0; grown && i < found; i++) grown[(*count)++] = (SmiProcess){infos[i], type};
    free(infos);
    *processes = grown ? grown : *processes;
    return grown ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t smi_processes(const SmiGpu *gpu, SmiProcess **processes, unsigned *count) {
    *processes = NULL;
    *count = 0;
    nvmlReturn_t result = append(nvmlDeviceGetComputeRunningProcesses_v3, "C", gpu, processes, count);
    return result ? result : append(nvmlDeviceGetMPSComputeRunningProcesses_v3, "M+C", gpu, processes, count);
}

const char *smi_process_name(unsigned pid, char *name, unsigned size) {
    if (nvmlSystemGetProcessName(pid, name, size)) snprintf(name, size, "[Not Found]");
    return name;
}
