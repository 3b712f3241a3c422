#include "session.h"

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(mode != NULL);
    *mode = target.state.persistence ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(mode != NULL);
    *mode = target.state.compute_mode;
    return NVML_SUCCESS;
}

struct setting {
    enum change_call call;
    uint8_t value;
};

static nvmlReturn_t write_setting(struct target *target, void *what) {
    const struct setting *setting = what;
    if (setting->call == CHANGE_SET_PERSISTENCE_MODE) {
        target->state.persistence = setting->value;
    } else if (setting->call == CHANGE_SET_TIMESLICE) {
        target->state.timeslice = setting->value;
    } else {
        target->state.compute_mode = setting->value;
    }
    gpu_commit(target->m, target->place.gpu, &target->state);
    return NVML_SUCCESS;
}

static nvmlReturn_t change_setting(struct target *target, enum change_call call, uint8_t value) {
    count_change(target->m, call);
    return change_gpu(target, write_setting, &(struct setting){.call = call, .value = value});
}

NVML_API nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(mode == NVML_FEATURE_DISABLED || mode == NVML_FEATURE_ENABLED);
    return change_setting(&target, CHANGE_SET_PERSISTENCE_MODE, mode == NVML_FEATURE_ENABLED);
}

NVML_API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(mode == NVML_COMPUTEMODE_DEFAULT || mode == NVML_COMPUTEMODE_PROHIBITED ||
            mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
    return change_setting(&target, CHANGE_SET_COMPUTE_MODE, (uint8_t)mode);
}

nvmlReturn_t trancheSimGetTimeslice(nvmlDevice_t device, unsigned int *timeslice) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(timeslice != NULL);
    *timeslice = target.state.timeslice;
    return NVML_SUCCESS;
}

nvmlReturn_t trancheSimSetTimeslice(nvmlDevice_t device, unsigned int timeslice) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(timeslice <= TRANCHE_SIM_LONG_TIMESLICE);
    return change_setting(&target, CHANGE_SET_TIMESLICE, (uint8_t)timeslice);
}

/* No display is connected. */
nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *active) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(active != NULL);
    *active = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(mode != NULL);
    *mode = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned int *mode) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(mode != NULL);
    *mode = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *defaultMode) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(enabled != NULL && defaultMode != NULL);
    *enabled = 1;
    *defaultMode = 1;
    return NVML_SUCCESS;
}
