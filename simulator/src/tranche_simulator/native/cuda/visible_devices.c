#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "identity.h"
#include "mig_devices.h"

/* Compute instances of one GPU, at most. */
enum { MAX_CANDIDATES = BOARD_MAX_GI_IDS * STATE_MAX_CIS };

/* What CUDA could use: a GPU without MIG, or a compute instance. */
struct candidate {
    struct device_place place;
    const struct gi_profile *profile;
    const struct ci_profile *ci_profile;
    unsigned int ci_start; /* first compute slice of the compute instance, which its UUID comes from */
};

static void uuid_of(const struct candidate *candidate, char *uuid, size_t size) {
    const char *gpu_uuid = driver.m->state->gpus[candidate->place.gpu].uuid;
    if (candidate->place.is_mig) {
        identify_mig(gpu_uuid, candidate->place.gi, candidate->ci_start, uuid, size);
    } else {
        snprintf(uuid, size, "%s", gpu_uuid);
    }
}

static bool is_offered(const struct candidate *candidate) {
    char uuid[64];
    uuid_of(candidate, uuid, sizeof uuid);
    return mps_shows(driver.mps, uuid);
}

static uint64_t speed_of(const struct board *board) {
    return (uint64_t)board->multiprocessors * board->cores_per_multiprocessor * board->sm_clock_mhz;
}

/* The GPUs that the process sees, as CUDA numbers them: the fastest first, unless CUDA_DEVICE_ORDER asks for bus order. */
static unsigned int ordered_gpus(const struct view *view, unsigned int *gpus) {
    unsigned int count = 0;
    for (unsigned int i = 0; i < view->count; i++) {
        if (atomic_load(&driver.m->state->gpus[view->gpus[i]].lost) == 0) {
            gpus[count++] = view->gpus[i];
        }
    }
    const char *order = getenv("CUDA_DEVICE_ORDER");
    if (order != NULL && strcmp(order, "PCI_BUS_ID") == 0) {
        return count;
    }
    for (unsigned int i = 1; i < count; i++) {
        unsigned int gpu = gpus[i], j = i;
        for (; j > 0 && speed_of(driver.m->boards[gpus[j - 1]]) < speed_of(driver.m->boards[gpu]); j--) {
            gpus[j] = gpus[j - 1];
        }
        gpus[j] = gpu;
    }
    return count;
}

/* The compute instances of a GPU that the process sees, appended to `found`. */
static unsigned int instances_of(const struct view *view, unsigned int gpu, struct candidate *found) {
    const struct board *board = driver.m->boards[gpu];
    struct gpu_state state;
    gpu_read(driver.m, gpu, &state);
    unsigned int count = 0, gi, ci;
    for (unsigned int i = 0; mig_device_at(&state, i, view, gpu, &gi, &ci); i++) {
        const struct gi_profile *profile = &board->gis[state.gis[gi].profile];
        found[count] = (struct candidate){
            .place = {.gpu = gpu, .is_mig = true, .gi = gi, .ci = ci},
            .profile = profile,
            .ci_profile = &profile->cis[state.gis[gi].cis[ci].profile],
            .ci_start = state.gis[gi].cis[ci].start,
        };
        count += is_offered(&found[count]) ? 1 : 0;
    }
    return count;
}

static bool in_mig_mode(unsigned int gpu) {
    struct gpu_state state;
    gpu_read(driver.m, gpu, &state);
    return state.mig_current == NVML_DEVICE_MIG_ENABLE;
}

CUuuid uuid_bytes(const char *text) {
    CUuuid id = {{0}};
    unsigned int digits = 0;
    for (text = strchr(text, '-') + 1; *text != '\0' && digits < 32; text++) {
        if (*text != '-') {
            char digit[2] = {*text, '\0'};
            id.bytes[digits / 2] |= (unsigned char)(strtoul(digit, NULL, 16) << (digits % 2 == 0 ? 4 : 0));
            digits++;
        }
    }
    return id;
}

static void add_device(const struct candidate *candidate) {
    const struct board *board = driver.m->boards[candidate->place.gpu];
    struct cuda_device *device = &driver.devices[driver.device_count];
    char uuid[64];
    uuid_of(candidate, uuid, sizeof uuid);
    if (driver.device_count == CUDA_MAX_DEVICES) {
        return;
    }
    memset(device, 0, sizeof *device);
    device->place = candidate->place;
    device->board = board;
    device->profile = candidate->profile;
    memcpy(device->uuid, uuid, sizeof device->uuid);
    device->id = uuid_bytes(uuid);
    const char *product = driver.m->state->gpus[candidate->place.gpu].name;
    if (candidate->place.is_mig) {
        device->multiprocessors = candidate->ci_profile->multiprocessors;
        device->memory = (uint64_t)candidate->profile->memory_mib << 20;
        snprintf(device->name, sizeof device->name, "%s MIG %s", product, candidate->ci_profile->name);
    } else {
        device->multiprocessors = board->multiprocessors;
        device->memory = (uint64_t)(board->memory_mib - board->reserved_mib) << 20;
        snprintf(device->name, sizeof device->name, "%s", product);
    }
    driver.device_count++;
}

/* The candidate that a GPU stands for: itself, or its first compute instance. */
static bool candidate_of_gpu(const struct view *view, unsigned int gpu, struct candidate *candidate) {
    if (!in_mig_mode(gpu)) {
        *candidate = (struct candidate){.place = {.gpu = gpu, .gi = NO_INSTANCE, .ci = NO_INSTANCE}};
        return !view->only_mig[gpu] && is_offered(candidate);
    }
    struct candidate found[MAX_CANDIDATES];
    if (instances_of(view, gpu, found) == 0) {
        return false;
    }
    *candidate = found[0];
    return true;
}

/* An MPS server's clients number only what it shows. */
static unsigned int without_hidden(const struct view *view, unsigned int *gpus, unsigned int count) {
    unsigned int kept = 0;
    for (unsigned int i = 0; i < count; i++) {
        struct candidate candidate;
        if (driver.mps == NULL || candidate_of_gpu(view, gpus[i], &candidate)) {
            gpus[kept++] = gpus[i];
        }
    }
    return kept;
}

static bool starts_with(const char *text, const char *beginning) {
    return strncasecmp(text, beginning, strlen(beginning)) == 0;
}

/* The older name of a MIG device: "MIG-GPU-uuid/gpu instance/compute instance". */
static bool has_old_name(const struct candidate *candidate, const char *entry) {
    char name[96];
    snprintf(name, sizeof name, "MIG-%s/%u/%u", driver.m->state->gpus[candidate->place.gpu].uuid, candidate->place.gi,
             candidate->place.ci);
    return strcasecmp(name, entry) == 0;
}

/* What one entry of CUDA_VISIBLE_DEVICES names: an index, or the beginning of one UUID and no other. */
static bool candidate_of_entry(const struct view *view, const unsigned int *gpus, unsigned int count, const char *entry,
                               struct candidate *candidate) {
    char *end;
    unsigned long index = strtoul(entry, &end, 10);
    if (end != entry) {
        return *end == '\0' && index < count && candidate_of_gpu(view, gpus[index], candidate);
    }
    bool mig = starts_with(entry, "MIG-");
    if (strlen(entry) <= 4 || (!mig && !starts_with(entry, "GPU-"))) {
        return false;
    }
    unsigned int matches = 0;
    for (unsigned int i = 0; i < count; i++) {
        struct candidate found[MAX_CANDIDATES];
        unsigned int offered = 1;
        if (mig) {
            offered = in_mig_mode(gpus[i]) ? instances_of(view, gpus[i], found) : 0;
        } else if (starts_with(driver.m->state->gpus[gpus[i]].uuid, entry)) {
            offered = candidate_of_gpu(view, gpus[i], &found[0]) ? 1 : 0;
        } else {
            offered = 0;
        }
        for (unsigned int j = 0; j < offered; j++) {
            char uuid[64];
            uuid_of(&found[j], uuid, sizeof uuid);
            if (!mig || starts_with(uuid, entry) || has_old_name(&found[j], entry)) {
                *candidate = found[j];
                matches++;
            }
        }
    }
    return matches == 1;
}

static bool same_place(const struct device_place *left, const struct device_place *right) {
    return left->gpu == right->gpu && left->gi == right->gi && left->ci == right->ci;
}

/* Of several candidates CUDA takes one compute instance, and nothing beside it. */
static void add_candidates(const struct candidate *candidates, unsigned int count) {
    for (unsigned int i = 0; i < count; i++) {
        if (candidates[i].place.is_mig) {
            add_device(&candidates[i]);
            return;
        }
    }
    for (unsigned int i = 0; i < count; i++) {
        add_device(&candidates[i]);
    }
}

static CUresult find_named(const struct view *view, const unsigned int *gpus, unsigned int count, const char *value) {
    char *entries = strdup(value);
    if (entries == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct candidate named[CUDA_MAX_DEVICES];
    unsigned int known = 0;
    char *rest = entries;
    bool repeated = false;
    for (char *entry; (entry = strsep(&rest, ",")) != NULL && known < CUDA_MAX_DEVICES;) {
        if (!candidate_of_entry(view, gpus, count, entry, &named[known])) {
            break; /* what stands behind an entry that names nothing is not visible */
        }
        for (unsigned int i = 0; i < known; i++) {
            repeated = repeated || same_place(&named[i].place, &named[known].place);
        }
        known++;
    }
    free(entries);
    add_candidates(named, repeated ? 0 : known);
    return repeated ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult find_devices(void) {
    struct view view;
    if (view_from_environment(driver.m, &view) != NVML_SUCCESS) {
        return CUDA_ERROR_NO_DEVICE;
    }
    unsigned int gpus[TRANCHE_SIM_MAX_GPUS];
    unsigned int count = without_hidden(&view, gpus, ordered_gpus(&view, gpus));
    driver.device_count = 0;
    const char *named = getenv("CUDA_VISIBLE_DEVICES");
    if (named != NULL) {
        return find_named(&view, gpus, count, named);
    }
    struct candidate all[CUDA_MAX_DEVICES];
    unsigned int offered = 0;
    for (unsigned int i = 0; i < count; i++) {
        offered += candidate_of_gpu(&view, gpus[i], &all[offered]) ? 1 : 0;
    }
    add_candidates(all, offered);
    return CUDA_SUCCESS;
}
