#define _GNU_SOURCE
#include <string.h>

#include "mps/mps_faults.h"
#include "session.h"

static const char *const special_faults[] = {"trancheSimResetGpu", MPS_FAULTS};

const char *trancheSimSpecialFault(unsigned int index) {
    return index < sizeof special_faults / sizeof *special_faults ? special_faults[index] : NULL;
}

/* Length of a function's name without its version: an injection into one version is meant for all of them. */
static size_t base_length(const char *function) {
    size_t length = strlen(function);
    if (length > 3 && function[length - 3] == '_' && function[length - 2] == 'v' && function[length - 1] >= '0' &&
        function[length - 1] <= '9') {
        return length - 3;
    }
    return length;
}

static bool same_function(const char *left, const char *right) {
    size_t length = base_length(left);
    return length == base_length(right) && strncmp(left, right, length) == 0;
}

static bool use_one_call(struct fault_record *fault) {
    uint32_t left = atomic_load(&fault->calls_left);
    while (left > 0) {
        if (atomic_compare_exchange_weak(&fault->calls_left, &left, left - 1)) {
            return true;
        }
    }
    return false;
}

nvmlReturn_t fault_check(machine *m, const char *function, unsigned int gpu) {
    uint32_t in_use = atomic_load_explicit(&m->state->faults_in_use, memory_order_acquire);
    nvmlReturn_t result = NVML_SUCCESS;
    for (uint32_t i = 0; i < in_use && i < STATE_MAX_FAULTS; i++) {
        struct fault_record *fault = &m->state->faults[i];
        uint32_t kind = atomic_load_explicit(&fault->kind, memory_order_acquire);
        if (kind == FAULT_NONE || (fault->gpu != TRANCHE_SIM_ANY_GPU && fault->gpu != gpu) ||
            !same_function(fault->function, function)) {
            continue;
        }
        if (kind == FAULT_LATENCY) {
            sleep_seconds(fault->seconds);
        } else if (result == NVML_SUCCESS && m->writable && use_one_call(fault)) {
            result = (nvmlReturn_t)fault->code;
        }
    }
    return result;
}

static nvmlReturn_t add_fault(machine *m, uint32_t kind, const char *function, unsigned int gpu, uint32_t code,
                              uint32_t calls, double seconds) {
    if (m == NULL || function == NULL || strlen(function) >= sizeof m->state->faults[0].function ||
        (gpu != TRANCHE_SIM_ANY_GPU && gpu >= m->state->gpu_count)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    int lock;
    nvmlReturn_t result = state_lock(m, LOCK_TABLES, &lock);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (uint32_t i = 0; i < STATE_MAX_FAULTS; i++) {
        struct fault_record *fault = &m->state->faults[i];
        bool used_up = atomic_load(&fault->kind) == FAULT_ERROR && atomic_load(&fault->calls_left) == 0;
        if (atomic_load(&fault->kind) != FAULT_NONE && !used_up) {
            continue;
        }
        atomic_store(&fault->kind, FAULT_NONE);
        fault->gpu = gpu;
        fault->code = code;
        fault->seconds = seconds;
        strcpy(fault->function, function);
        atomic_store(&fault->calls_left, calls);
        if (atomic_load(&m->state->faults_in_use) <= i) {
            atomic_store(&m->state->faults_in_use, i + 1);
        }
        atomic_store_explicit(&fault->kind, kind, memory_order_release);
        result = NVML_SUCCESS;
        break;
    }
    state_unlock(lock);
    return result;
}

nvmlReturn_t trancheSimInjectError(trancheSimMachine_t m, const char *function, unsigned int code, unsigned int calls,
                                   unsigned int gpu) {
    if (code == NVML_SUCCESS || calls == 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return add_fault(m, FAULT_ERROR, function, gpu, code, calls, 0.0);
}

nvmlReturn_t trancheSimInjectLatency(trancheSimMachine_t m, const char *function, double seconds, unsigned int gpu) {
    if (!(seconds > 0.0)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return add_fault(m, FAULT_LATENCY, function, gpu, 0, 0, seconds);
}

nvmlReturn_t trancheSimInjectLost(trancheSimMachine_t m, unsigned int gpu, unsigned int lost) {
    if (m == NULL || gpu >= m->state->gpu_count || !m->writable) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    atomic_store(&m->state->gpus[gpu].lost, lost != 0);
    return NVML_SUCCESS;
}

nvmlReturn_t trancheSimInjectStuckMode(trancheSimMachine_t m, unsigned int gpu, unsigned int stuck) {
    if (m == NULL || gpu >= m->state->gpu_count || !m->writable) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    atomic_store(&m->state->gpus[gpu].stuck_mode, stuck != 0);
    return NVML_SUCCESS;
}

nvmlReturn_t trancheSimClearInjections(trancheSimMachine_t m) {
    if (m == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    int lock;
    nvmlReturn_t result = state_lock(m, LOCK_TABLES, &lock);
    if (result != NVML_SUCCESS) {
        return result;
    }
    for (uint32_t i = 0; i < STATE_MAX_FAULTS; i++) {
        atomic_store(&m->state->faults[i].kind, FAULT_NONE);
    }
    for (uint32_t i = 0; i < STATE_MAX_CLIENTS; i++) {
        if (atomic_load(&m->state->clients[i].kind) == CLIENT_PHANTOM) {
            atomic_store(&m->state->clients[i].kind, CLIENT_FREE);
        }
    }
    for (uint32_t gpu = 0; gpu < m->state->gpu_count; gpu++) {
        atomic_store(&m->state->gpus[gpu].lost, 0);
        atomic_store(&m->state->gpus[gpu].stuck_mode, 0);
    }
    state_unlock(lock);
    return NVML_SUCCESS;
}
