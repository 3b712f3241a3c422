#include <stdio.h>
#include <string.h>

#include "clients.h"
#include "driver_release.h"

nvmlReturn_t trancheSimDescribe(trancheSimMachine_t m, trancheSimDescription_t *description) {
    if (m == NULL || description == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    memset(description, 0, sizeof *description);
    memcpy(description->name, m->state->name, sizeof description->name);
    description->gpuCount = m->state->gpu_count;
    description->ownerUid = m->state->owner_uid;
    uint64_t scale = atomic_load(&m->state->time_scale);
    memcpy(&description->timeScale, &scale, sizeof description->timeScale);
    description->seed = m->state->seed;
    description->boots = atomic_load(&m->state->boots);
    description->changedAt = atomic_load(&m->state->changed_at);
    driver_version(m, description->driver);
    return NVML_SUCCESS;
}

static bool has_derived_numbers(const struct board *board) {
    bool derived = board->unverified;
    for (unsigned int i = 0; i < board->gi_count; i++) {
        derived = derived || board->gis[i].unverified;
    }
    return derived;
}

static void count_instances(const struct gpu_state *state, trancheSimGpuDescription_t *description) {
    for (unsigned int gi = 0; gi < BOARD_MAX_GI_IDS; gi++) {
        description->gpuInstances += state->gis[gi].live;
        for (unsigned int ci = 0; ci < STATE_MAX_CIS; ci++) {
            description->computeInstances += state->gis[gi].live && state->gis[gi].cis[ci].live;
        }
    }
}

nvmlReturn_t trancheSimDescribeGpu(trancheSimMachine_t m, unsigned int gpu, trancheSimGpuDescription_t *description) {
    if (m == NULL || description == NULL || gpu >= m->state->gpu_count) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct gpu_record *record = &m->state->gpus[gpu];
    struct gpu_state state;
    gpu_read(m, gpu, &state);
    struct usage usage;
    usage_of(m, gpu, NO_INSTANCE, NO_INSTANCE, &usage);
    memset(description, 0, sizeof *description);
    memcpy(description->board, record->board, sizeof description->board);
    memcpy(description->name, record->name, sizeof description->name);
    memcpy(description->uuid, record->uuid, sizeof record->uuid);
    struct pci_ids pci = board_pci_ids(m->boards[gpu], record->pci_device_id);
    description->pciDeviceId = pci.device;
    description->pciSubsystemId = pci.subsystem;
    description->pciClass = pci.class_code;
    snprintf(description->busId, sizeof description->busId, "%08X:%02X:%02X.0", record->pci_domain, record->pci_bus,
             record->pci_device);
    description->memoryBytes = (unsigned long long)m->boards[gpu]->memory_mib << 20;
    description->swapped = record->swapped;
    description->numaNode = record->numa_node;
    description->migSupported = m->boards[gpu]->placement_units != 0;
    description->migCurrent = state.mig_current;
    description->migPending = state.mig_pending;
    count_instances(&state, description);
    description->clients = usage.clients;
    description->lost = atomic_load(&record->lost);
    description->stuckMode = atomic_load(&record->stuck_mode);
    description->unverified = has_derived_numbers(m->boards[gpu]);
    description->generation = atomic_load(&record->generation);
    return NVML_SUCCESS;
}

nvmlReturn_t trancheSimSetTimeScale(trancheSimMachine_t m, double timeScale) {
    if (m == NULL || !m->writable || !(timeScale >= 0.0)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    uint64_t bits;
    memcpy(&bits, &timeScale, sizeof bits);
    atomic_store(&m->state->time_scale, bits);
    return NVML_SUCCESS;
}

nvmlReturn_t trancheSimSetDriver(trancheSimMachine_t m, const char *version) {
    if (m == NULL || !m->writable || version == NULL || driver_number(version) == 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    atomic_store(&m->state->driver, driver_number(version));
    return NVML_SUCCESS;
}

nvmlReturn_t trancheSimSetContextMemory(trancheSimMachine_t m, unsigned long long bytes) {
    if (m == NULL || !m->writable) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    atomic_store(&m->state->context_bytes, bytes);
    return NVML_SUCCESS;
}

nvmlReturn_t trancheSimSetLimitsBackend(trancheSimMachine_t m, unsigned int backend) {
    if (m == NULL || !m->writable || backend > LIMITS_LAX) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    atomic_store(&m->state->limits_backend, backend);
    return NVML_SUCCESS;
}
