#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients.h"
#include "compute.h"

/* Clients that a query on the device shows, put first in `clients`; the number of them. A GPU shows those of all its
 * instances (only the visible ones, in a container that was given MIG devices). */
enum process_kind { PROCESS_COMPUTE = 1, PROCESS_MPS = 2, PROCESS_ANY = PROCESS_COMPUTE | PROCESS_MPS };

static unsigned int shown_clients(const struct target *target, enum process_kind kinds, trancheSimClient_t *clients) {
    compute_settle(target->m, target->place.gpu);
    unsigned int alive = clients_alive(target->m, clients, STATE_MAX_CLIENTS);
    unsigned int count = 0;
    for (unsigned int i = 0; i < alive; i++) {
        const trancheSimClient_t *client = &clients[i];
        bool here = client->gpu == target->place.gpu && (kinds & (client->mpsServer != 0 ? PROCESS_MPS : PROCESS_COMPUTE));
        if (target->place.is_mig) {
            here = here && client->gpuInstanceId == target->place.gi && client->computeInstanceId == target->place.ci;
        } else if (here && client->gpuInstanceId != NO_INSTANCE) {
            const struct gi_state *gi = &target->state.gis[client->gpuInstanceId];
            here = view_shows_mig(target->view, client->gpu, client->gpuInstanceId, gi, client->computeInstanceId);
        }
        if (here) {
            clients[count++] = *client;
        }
    }
    return count;
}

static nvmlReturn_t running_processes(const struct target *target, enum process_kind kinds, unsigned int *count,
                                      size_t size, void *infos) {
    REQUIRE(count != NULL && (infos != NULL || *count == 0));
    trancheSimClient_t *clients = malloc(STATE_MAX_CLIENTS * sizeof *clients);
    if (clients == NULL) {
        return NVML_ERROR_MEMORY;
    }
    unsigned int room = *count;
    *count = shown_clients(target, kinds, clients);
    nvmlReturn_t result = *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    for (unsigned int i = 0; i < *count && result == NVML_SUCCESS; i++) {
        nvmlProcessInfo_t info = {
            .pid = clients[i].pid,
            .usedGpuMemory = clients[i].memoryBytes,
            .gpuInstanceId = clients[i].gpuInstanceId,
            .computeInstanceId = clients[i].computeInstanceId,
        };
        memcpy((char *)infos + i * size, &info, size); /* version 1 is the beginning of the later ones */
    }
    free(clients);
    return result;
}

/* The first list has an MPS server and its clients too, as seen of an H200 with 580.159. */
#define RUNNING_PROCESSES(function, kinds, info)                                              \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, info *infos);    \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, info *infos) {            \
        struct target target;                                                                 \
        ENTER_DEVICE(device, &target);                                                        \
        return running_processes(&target, kinds, count, sizeof *infos, infos);                \
    }

RUNNING_PROCESSES(nvmlDeviceGetComputeRunningProcesses, PROCESS_ANY, nvmlProcessInfo_v1_t)
RUNNING_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, PROCESS_ANY, nvmlProcessInfo_t)
RUNNING_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, PROCESS_ANY, nvmlProcessInfo_t)
RUNNING_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, PROCESS_MPS, nvmlProcessInfo_v1_t)
RUNNING_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, PROCESS_MPS, nvmlProcessInfo_t)
RUNNING_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, PROCESS_MPS, nvmlProcessInfo_t)

/* Nobody draws. */
#define NO_PROCESSES(function)                                                                \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, void *infos);    \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, void *infos) {            \
        struct target target;                                                                 \
        ENTER_DEVICE(device, &target);                                                        \
        REQUIRE(count != NULL && (infos != NULL || *count == 0));                             \
        *count = 0;                                                                           \
        return NVML_SUCCESS;                                                                  \
    }

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)

NVML_API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(list != NULL);
    if (list->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    enum { MODE_COUNT = 4 };
    static const enum process_kind kinds[MODE_COUNT] = {PROCESS_COMPUTE, 0, PROCESS_MPS, PROCESS_ANY};
    REQUIRE(list->mode < MODE_COUNT && (list->procArray != NULL || list->numProcArrayEntries == 0));
    trancheSimClient_t *clients = malloc(STATE_MAX_CLIENTS * sizeof *clients);
    if (clients == NULL) {
        return NVML_ERROR_MEMORY;
    }
    unsigned int count = shown_clients(&target, kinds[list->mode], clients);
    nvmlReturn_t result = count > list->numProcArrayEntries ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    for (unsigned int i = 0; i < count && result == NVML_SUCCESS; i++) {
        list->procArray[i] = (nvmlProcessDetail_v1_t){
            .pid = clients[i].pid,
            .usedGpuMemory = clients[i].memoryBytes,
            .gpuInstanceId = clients[i].gpuInstanceId,
            .computeInstanceId = clients[i].computeInstanceId,
        };
    }
    list->numProcArrayEntries = count;
    free(clients);
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(count != NULL && (samples != NULL || *count == 0));
    if (target.place.is_mig || target.state.mig_current) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    trancheSimClient_t *clients = malloc(STATE_MAX_CLIENTS * sizeof *clients);
    if (clients == NULL) {
        return NVML_ERROR_MEMORY;
    }
    unsigned int room = *count;
    *count = shown_clients(&target, PROCESS_ANY, clients);
    nvmlReturn_t result = *count == 0 ? NVML_ERROR_NOT_FOUND
                          : *count > room ? NVML_ERROR_INSUFFICIENT_SIZE
                                          : NVML_SUCCESS;
    for (unsigned int i = 0; i < *count && result == NVML_SUCCESS; i++) {
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = clients[i].pid,
            .timeStamp = since + 1,
            .smUtil = clients[i].utilizationPercent,
        };
    }
    free(clients);
    return result;
}

static bool read_command_line(unsigned int pid, char *name, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return false;
    }
    ssize_t length = read(descriptor, name, size - 1);
    close(descriptor);
    if (length <= 0) {
        return false;
    }
    name[length] = '\0'; /* the first argument ends at its own zero byte */
    return true;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(name != NULL && length > 0);
    char found[4096];
    bool known = read_command_line(pid, found, sizeof found);
    if (!known) {
        trancheSimClient_t *clients = malloc(STATE_MAX_CLIENTS * sizeof *clients);
        if (clients == NULL) {
            return NVML_ERROR_MEMORY;
        }
        unsigned int count = clients_alive(session->m, clients, STATE_MAX_CLIENTS);
        for (unsigned int i = 0; i < count && !known; i++) {
            known = clients[i].pid == pid;
            snprintf(found, sizeof found, "%s", clients[i].name);
        }
        free(clients);
    }
    if (!known) {
        return NVML_ERROR_NOT_FOUND;
    }
    snprintf(name, length, "%s", found);
    return NVML_SUCCESS;
}
