#include "capability_files.h"
#include "clients.h"
#include "geometry.h"

static bool has_instances(const struct gpu_state *state) {
    for (unsigned int id = 0; id < BOARD_MAX_GI_IDS; id++) {
        if (state->gis[id].live) {
            return true;
        }
    }
    return false;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(currentMode != NULL && pendingMode != NULL);
    if (target.board->placement_units == 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *currentMode = target.state.mig_current;
    *pendingMode = target.state.mig_pending;
    return NVML_SUCCESS;
}

struct wanted_mode {
    uint8_t mode;
    nvmlReturn_t *why_not; /* why the mode did not become current at once */
};

static nvmlReturn_t change_mode(struct target *target, void *what) {
    const struct wanted_mode *wanted = what;
    machine *m = target->m;
    unsigned int gpu = target->place.gpu;
    struct gpu_state *state = &target->state;
    if (target->board->placement_units == 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *wanted->why_not = NVML_SUCCESS;
    if (wanted->mode == state->mig_current) {
        if (state->mig_pending != wanted->mode) {
            state->mig_pending = wanted->mode;
            gpu_commit(m, gpu, state);
        }
        return NVML_SUCCESS;
    }
    struct usage usage;
    usage_of(m, gpu, NO_INSTANCE, NO_INSTANCE, &usage);
    if (wanted->mode == NVML_DEVICE_MIG_DISABLE && (has_instances(state) || usage.clients > 0)) {
        return NVML_ERROR_IN_USE;
    }
    simulate_mode_change(m);
    state->mig_pending = wanted->mode;
    if (usage.clients > 0) {
        *wanted->why_not = NVML_ERROR_IN_USE;
    } else if (target->board->family->mode_change_needs_reset) {
        *wanted->why_not = NVML_ERROR_RESET_REQUIRED;
    } else {
        gpu_apply_pending_mode(m, gpu, state);
        *wanted->why_not = state->mig_current == wanted->mode ? NVML_SUCCESS : NVML_ERROR_TIMEOUT;
    }
    gpu_commit(m, gpu, state);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activationStatus) {
    struct target target;
    ENTER_GPU(device, &target);
    count_change(target.m, CHANGE_SET_MIG_MODE);
    REQUIRE(activationStatus != NULL && mode <= NVML_DEVICE_MIG_ENABLE);
    struct wanted_mode wanted = {.mode = (uint8_t)mode, .why_not = activationStatus};
    return change_gpu(&target, change_mode, &wanted);
}

/* The caller holds the GPU's lock. */
static nvmlReturn_t reset(machine *m, unsigned int gpu) {
    struct usage usage;
    usage_of(m, gpu, NO_INSTANCE, NO_INSTANCE, &usage);
    if (usage.clients > 0) {
        return NVML_ERROR_IN_USE;
    }
    simulate_reset(m);
    struct gpu_state state;
    gpu_read(m, gpu, &state);
    for (unsigned int id = 0; id < BOARD_MAX_GI_IDS; id++) {
        state.gis[id] = (struct gi_state){0};
    }
    gpu_apply_pending_mode(m, gpu, &state);
    gpu_commit(m, gpu, &state);
    return NVML_SUCCESS;
}

nvmlReturn_t trancheSimResetGpu(trancheSimMachine_t m, unsigned int gpu) {
    if (m == NULL || gpu >= m->state->gpu_count) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t result = fault_check(m, __func__, gpu);
    if (result != NVML_SUCCESS) {
        return result;
    }
    count_change(m, CHANGE_RESET_GPU);
    if (!caller_may_change(m)) {
        return NVML_ERROR_NO_PERMISSION;
    }
    if (atomic_load(&m->state->gpus[gpu].lost) != 0) {
        return NVML_ERROR_GPU_IS_LOST;
    }
    int lock;
    result = state_lock(m, LOCK_GPU + gpu, &lock);
    if (result == NVML_SUCCESS) {
        result = reset(m, gpu);
        state_unlock(lock);
    }
    return result;
}

nvmlReturn_t trancheSimResetDevice(nvmlDevice_t device) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(!target.place.is_mig);
    if (target.view->only_mig[target.place.gpu]) {
        return NVML_ERROR_NO_PERMISSION;
    }
    return trancheSimResetGpu(target.m, target.place.gpu);
}

nvmlReturn_t trancheSimReboot(trancheSimMachine_t m) {
    if (m == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!m->writable) {
        return NVML_ERROR_NO_PERMISSION;
    }
    /* No call may be half done across a boot, so every GPU is held; always in the same order. */
    int locks[TRANCHE_SIM_MAX_GPUS];
    unsigned int held = 0;
    nvmlReturn_t result = NVML_SUCCESS;
    while (held < m->state->gpu_count && result == NVML_SUCCESS) {
        result = state_lock(m, LOCK_GPU + held, &locks[held]);
        held += result == NVML_SUCCESS;
    }
    if (result == NVML_SUCCESS) {
        atomic_fetch_add(&m->state->boots, 1);
        for (unsigned int gpu = 0; gpu < held; gpu++) {
            struct gpu_state state;
            gpu_read(m, gpu, &state);
            capability_files_update(m, gpu, &state);
        }
    }
    while (held > 0) {
        state_unlock(locks[--held]);
    }
    return result;
}
