#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "clients.h"
#include "compute.h"
#include "memory_limits.h"

/* What the sensors say. Memory follows the clients; temperature, power and clocks are plausible values between an idle
 * and a busy figure of the board, not a model. */

static struct usage usage_of_target(const struct target *target) {
    struct usage usage;
    compute_settle(target->m, target->place.gpu);
    usage_of(target->m, target->place.gpu, target->place.gi, NO_INSTANCE, &usage);
    return usage;
}

struct memory {
    uint64_t total;
    uint64_t reserved;
    uint64_t used; /* without the reserved part */
};

/* A MIG device shows its GPU instance's memory, which its compute instances share. */
static struct memory memory_of(const struct target *target) {
    uint64_t total = target->place.is_mig ? target->profile->memory_mib : target->board->memory_mib;
    uint64_t reserved = target->place.is_mig ? 0 : target->board->reserved_mib;
    struct memory memory = {.total = total << 20, .reserved = reserved << 20};
    uint64_t used = usage_of_target(target).memory_bytes;
    uint64_t usable = memory.total - memory.reserved;
    memory.used = used < usable ? used : usable;
    return memory;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(memory != NULL);
    struct memory now = memory_of(&target);
    memory->total = now.total;
    memory->used = now.used + now.reserved;
    memory->free = now.total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(memory != NULL);
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    struct memory now = memory_of(&target);
    struct group_chain groups;
    if (!target.place.is_mig && atomic_load(&target.m->state->limits_in_use) > 0) {
        group_of_process(&groups);
        if (limits_view(target.m, target.place.gpu, &groups, &now.total, &now.used)) {
            now.reserved = 0; /* a process with a limit of its own sees that as the GPU */
            now.used = now.used < now.total ? now.used : now.total;
        }
    }
    memory->total = now.total;
    memory->reserved = now.reserved;
    memory->used = now.used;
    memory->free = now.total - now.reserved - now.used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(memory != NULL);
    uint64_t board_bytes = (uint64_t)target.board->memory_mib << 20;
    uint64_t total = 1ull << 28;
    while (total < board_bytes) {
        total <<= 1; /* the window covers the whole memory, rounded up to a power of two */
    }
    if (target.place.is_mig) {
        total = total / target.board->placement_units * target.gi->size;
    }
    memory->bar1Total = total;
    memory->bar1Used = 1ull << 20;
    memory->bar1Free = total - memory->bar1Used;
    return NVML_SUCCESS;
}

/* Not available for MIG devices, nor for a GPU in MIG mode. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(utilization != NULL);
    if (target.state.mig_current) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    struct usage usage = usage_of_target(&target);
    utilization->gpu = usage.utilization;
    utilization->memory = usage.utilization / 2;
    return NVML_SUCCESS;
}

/* Fixed-function engines are idle: clients only compute. */
#define IDLE_ENGINE(function)                                                                                  \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *utilization, unsigned int *periodUs);    \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *utilization, unsigned int *periodUs) {            \
        struct target target;                                                                                  \
        ENTER_GPU(device, &target);                                                                            \
        REQUIRE(utilization != NULL && periodUs != NULL);                                                      \
        if (target.state.mig_current) {                                                                        \
            return NVML_ERROR_NOT_SUPPORTED;                                                                   \
        }                                                                                                      \
        *utilization = 0;                                                                                      \
        *periodUs = 167000;                                                                                    \
        return NVML_SUCCESS;                                                                                   \
    }

IDLE_ENGINE(nvmlDeviceGetEncoderUtilization)
IDLE_ENGINE(nvmlDeviceGetDecoderUtilization)
IDLE_ENGINE(nvmlDeviceGetJpgUtilization)
IDLE_ENGINE(nvmlDeviceGetOfaUtilization)

static unsigned int between(unsigned int idle, unsigned int busy, unsigned int percent) {
    return idle + (busy - idle) * percent / 100;
}

static unsigned int celsius_of(const struct target *target) {
    return between(31, 68, usage_of_target(target).utilization) + target->place.gpu % 4;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(celsius != NULL && sensor == NVML_TEMPERATURE_GPU);
    *celsius = celsius_of(&target);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(temperature != NULL);
    if (temperature->version != NVML_STRUCT_VERSION(nvmlTemperature_v1_t, 1u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    REQUIRE(temperature->sensorType == NVML_TEMPERATURE_GPU);
    temperature->temperature = (int)celsius_of(&target);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int type, unsigned int *celsius) {
    static const unsigned int thresholds[] = {
        [NVML_TEMPERATURE_THRESHOLD_SHUTDOWN] = 92,
        [NVML_TEMPERATURE_THRESHOLD_SLOWDOWN] = 89,
        [NVML_TEMPERATURE_THRESHOLD_MEM_MAX] = 95,
        [NVML_TEMPERATURE_THRESHOLD_GPU_MAX] = 85,
    };
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(celsius != NULL);
    if (type >= sizeof thresholds / sizeof thresholds[0]) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *celsius = thresholds[type];
    return NVML_SUCCESS;
}

/* Passively cooled, like every board in the tables. */
nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *percent) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(percent != NULL);
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *count) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(milliwatts != NULL);
    unsigned int limit = target.board->power_limit_mw;
    *milliwatts = between(limit / 8, limit / 10 * 9, usage_of_target(&target).utilization);
    return NVML_SUCCESS;
}

#define POWER_LIMIT(function)                                                 \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *milliwatts);     \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *milliwatts) {             \
        struct target target;                                                 \
        ENTER_GPU(device, &target);                                           \
        REQUIRE(milliwatts != NULL);                                          \
        *milliwatts = target.board->power_limit_mw;                           \
        return NVML_SUCCESS;                                                  \
    }

POWER_LIMIT(nvmlDeviceGetPowerManagementLimit)
POWER_LIMIT(nvmlDeviceGetPowerManagementDefaultLimit)
POWER_LIMIT(nvmlDeviceGetEnforcedPowerLimit)

NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
                                                          unsigned int *most) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(least != NULL && most != NULL);
    *least = target.board->power_limit_mw / 4;
    *most = target.board->power_limit_mw;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *state) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(state != NULL);
    *state = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned int *state) {
    return nvmlDeviceGetPerformanceState(device, state);
}

static nvmlReturn_t clock_of(const struct target *target, unsigned int type, unsigned int percent, unsigned int *mhz) {
    unsigned int busy = target->board->sm_clock_mhz;
    switch (type) {
    case NVML_CLOCK_GRAPHICS:
    case NVML_CLOCK_SM:
        *mhz = between(busy / 4, busy, percent);
        return NVML_SUCCESS;
    case NVML_CLOCK_MEM:
        *mhz = target->board->memory_clock_mhz;
        return NVML_SUCCESS;
    case NVML_CLOCK_VIDEO:
        *mhz = between(busy / 4, busy / 10 * 9, percent);
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(mhz != NULL);
    return clock_of(&target, type, usage_of_target(&target).clients > 0 ? 100 : 0, mhz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(mhz != NULL);
    return clock_of(&target, type, 100, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *bits) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(bits != NULL);
    *bits = target.board->memory_bus_bits;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(current != NULL && pending != NULL);
    if (!target.board->ecc) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *current = NVML_FEATURE_ENABLED;
    *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int errorType, unsigned int counterType,
                                         unsigned long long *count) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(count != NULL && errorType < 2 && counterType < 2);
    if (!target.board->ecc) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *kbPerSecond) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(kbPerSecond != NULL && counter < 2);
    *kbPerSecond = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(millijoules != NULL);
    struct timespec now; /* as if idle since the host started */
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = (unsigned long long)now.tv_sec * (target.board->power_limit_mw / 8);
    return NVML_SUCCESS;
}

static nvmlReturn_t no_reasons(nvmlDevice_t device, unsigned long long *reasons, const char *function) {
    struct target target;
    nvmlReturn_t entered = enter_gpu(function, device, &target);
    if (entered != NVML_SUCCESS) {
        return entered;
    }
    REQUIRE(reasons != NULL);
    enum { GPU_IDLE = 1 };
    *reasons = usage_of_target(&target).clients > 0 ? 0 : GPU_IDLE;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return no_reasons(device, reasons, __func__);
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return no_reasons(device, reasons, __func__);
}
