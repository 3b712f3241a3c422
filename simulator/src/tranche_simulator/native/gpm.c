#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "clients.h"

/* GPM: performance counters, sampled twice, from which metrics come. Hopper and later have them, for the GPU and for each GPU
 * instance. Here a sample notes what the clients do at that moment, and a metric is the mean of two samples: an instance's own
 * units are its 100 %. Beside utilization of the SMs the values are plausible ones, not a model. */

typedef struct {
    unsigned int version;
    unsigned int isSupportedDevice;
} gpm_support;

typedef struct {
    unsigned int metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct {
        const char *shortName;
        const char *longName;
        const char *unit;
    } metricInfo;
} gpm_metric;

struct gpm_sample {
    const machine *m; /* NULL: nothing was sampled yet */
    unsigned int gpu;
    unsigned int gi;
    uint64_t nanoseconds;
    double busy; /* percent of the SMs */
};

typedef struct {
    unsigned int version;
    unsigned int numMetrics;
    const struct gpm_sample *sample1;
    const struct gpm_sample *sample2;
    gpm_metric metrics[];
} gpm_metrics_get;

NVML_CHECK_SIZE(gpm_metric, 40);
NVML_CHECK_SIZE(gpm_metrics_get, 24);

enum { GPM_VERSION = 1, ARCHITECTURE_HOPPER = 9 };

static bool has_counters(const struct target *target) {
    return target->board->family->architecture >= ARCHITECTURE_HOPPER;
}

NVML_API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, gpm_support *support) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(support != NULL);
    if (support->version != GPM_VERSION) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    support->isSupportedDevice = has_counters(&target);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(sample != NULL);
    *sample = calloc(1, sizeof **sample);
    return *sample != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_API nvmlReturn_t nvmlGpmSampleFree(struct gpm_sample *sample) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(sample != NULL);
    free(sample);
    return NVML_SUCCESS;
}

/* Each compute instance's clients, weighed by its part of the GPU instance. */
static double busy_of_instance(const struct target *target, unsigned int gi) {
    const struct gi_state *state = &target->state.gis[gi];
    const struct gi_profile *profile = &target->board->gis[state->profile];
    double busy = 0.0;
    for (unsigned int ci = 0; ci < STATE_MAX_CIS; ci++) {
        if (state->cis[ci].live) {
            struct usage usage;
            usage_of(target->m, target->place.gpu, gi, ci, &usage);
            busy += usage.utilization * (double)profile->cis[state->cis[ci].profile].slices / profile->slices;
        }
    }
    return busy;
}

static void take(const struct target *target, unsigned int gi, double busy, struct gpm_sample *sample) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    sample->m = target->m;
    sample->gpu = target->place.gpu;
    sample->gi = gi;
    sample->nanoseconds = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    sample->busy = busy;
}

/* Under MIG the instances are sampled; what a real driver then reports for the whole GPU is unknown. */
NVML_API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, struct gpm_sample *sample) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(sample != NULL);
    if (!has_counters(&target) || target.state.mig_current != NVML_DEVICE_MIG_DISABLE) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    struct usage usage;
    usage_of(target.m, target.place.gpu, NO_INSTANCE, NO_INSTANCE, &usage);
    take(&target, NO_INSTANCE, usage.utilization, sample);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpuInstanceId, struct gpm_sample *sample) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(sample != NULL);
    if (!has_counters(&target) || target.state.mig_current == NVML_DEVICE_MIG_DISABLE) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    REQUIRE(gpuInstanceId < BOARD_MAX_GI_IDS && target.state.gis[gpuInstanceId].live &&
            view_shows_gi(target.view, target.place.gpu, gpuInstanceId));
    take(&target, gpuInstanceId, busy_of_instance(&target, gpuInstanceId), sample);
    return NVML_SUCCESS;
}

/* The part of `busy` that a metric shows, in percent; negative for one that is not sampled here. */
static double share_of(unsigned int metric) {
    switch (metric) {
    case 1: /* GRAPHICS_UTIL */
    case 2: /* SM_UTIL */
        return 1.0;
    case 3: /* SM_OCCUPANCY */
    case 10: /* DRAM_BW_UTIL */
        return 0.5;
    case 5: /* ANY_TENSOR_UTIL */
        return 0.4;
    case 12: /* FP32_UTIL */
    case 13: /* FP16_UTIL */
        return 0.25;
    case 11: /* FP64_UTIL */
        return 0.0;
    default:
        return -1.0;
    }
}

NVML_API nvmlReturn_t nvmlGpmMetricsGet(gpm_metrics_get *get) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(get != NULL);
    if (get->version != GPM_VERSION) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    const struct gpm_sample *first = get->sample1, *second = get->sample2;
    REQUIRE(first != NULL && second != NULL && first->m != NULL);
    REQUIRE(first->m == second->m && first->gpu == second->gpu && first->gi == second->gi &&
            first->nanoseconds < second->nanoseconds);
    double busy = (first->busy + second->busy) / 2;
    for (unsigned int i = 0; i < get->numMetrics; i++) {
        gpm_metric *metric = &get->metrics[i];
        double share = share_of(metric->metricId);
        metric->nvmlReturn = share < 0.0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
        metric->value = share < 0.0 ? 0.0 : share * busy;
    }
    return NVML_SUCCESS;
}
