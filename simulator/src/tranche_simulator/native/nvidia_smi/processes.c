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

nvmlReturn_t smi_processes(const SmiGpu *gpu, SmiProcess **processes, unsigned *count) {
    *processes = NULL;
    *count = 0;
    nvmlProcessInfo_t *all, *clients = NULL;
    unsigned client_count = 0;
    nvmlReturn_t result = read_processes(nvmlDeviceGetComputeRunningProcesses_v3, gpu, &all, count);
    if (result) return result;
    result = read_processes(nvmlDeviceGetMPSComputeRunningProcesses_v3, gpu, &clients, &client_count);
    *processes = result ? NULL : malloc((*count + 1) * sizeof **processes);
    for (unsigned i = 0; *processes && i < *count; i++) {
        (*processes)[i] = (SmiProcess){all[i], "C"};
        for (unsigned j = 0; j < client_count; j++) {
            if (clients[j].pid == all[i].pid) (*processes)[i].type = "M+C";
        }
    }
    free(all);
    free(clients);
    return result ? result : *processes ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

const char *smi_process_name(unsigned pid, char *name, unsigned size) {
    if (nvmlSystemGetProcessName(pid, name, size)) snprintf(name, size, "[Not Found]");
    return name;
}
