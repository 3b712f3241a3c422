/* Profiles and instances of a GPU, in the order of nvidia-smi: by slices, plain before the attribute variants. */
#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Values of the GPU instance profile enumeration: 1g, +me, double memory, +gfx, +me.all, -me, then 2g likewise ... */
static const unsigned GI_LISTING_ORDER[] = {0x0, 0x7, 0x9, 0xA, 0xF, 0xD, 0x1,  0x8, 0xB,
                                            0x10, 0xE, 0x2, 0x11, 0x3, 0xC, 0x6, 0x4, 0x5};

static void prefix_name(char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE]) {
    if (strncmp(name, "MIG ", 4) == 0) return;
    memmove(name + 4, name, NVML_DEVICE_NAME_V2_BUFFER_SIZE - 5);
    memcpy(name, "MIG ", 4);
    name[NVML_DEVICE_NAME_V2_BUFFER_SIZE - 1] = '\0';
}

unsigned mig_gi_profiles(const SmiGpu *gpu, MigGiProfile profiles[NVML_GPU_INSTANCE_PROFILE_COUNT]) {
    unsigned found = 0;
    for (size_t i = 0; i < sizeof GI_LISTING_ORDER / sizeof *GI_LISTING_ORDER; i++) {
        MigGiProfile *profile = &profiles[found];
        profile->version = NVML_STRUCT_VERSION(MigGiProfile, 2u);
        if (nvmlDeviceGetGpuInstanceProfileInfoV(gpu->handle, GI_LISTING_ORDER[i], profile)) continue;
        prefix_name(profile->name);
        found++;
    }
    return found;
}

unsigned mig_ci_profiles(nvmlGpuInstance_t gi, MigCiProfile profiles[NVML_COMPUTE_INSTANCE_PROFILE_COUNT]) {
    unsigned found = 0;
    for (unsigned value = 0; value < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; value++) {
        MigCiProfile *profile = &profiles[found];
        profile->version = NVML_STRUCT_VERSION(MigCiProfile, 2u);
        if (nvmlGpuInstanceGetComputeInstanceProfileInfoV(gi, value, NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                                                          profile))
            continue;
        prefix_name(profile->name);
        found++;
    }
    return found;
}

/* The default is the one that spans the GPU instance, so the one with the most multiprocessors; of two, the later one
   (1_SLICE_REV1 beside 1_SLICE in a 1g with double memory). */
bool mig_default_ci_profile(nvmlGpuInstance_t gi, MigCiProfile *profile) {
    MigCiProfile profiles[NVML_COMPUTE_INSTANCE_PROFILE_COUNT];
    unsigned count = mig_ci_profiles(gi, profiles), best = 0;
    if (!count) return false;
    for (unsigned i = 1; i < count; i++)
        if (profiles[i].multiprocessorCount >= profiles[best].multiprocessorCount) best = i;
    *profile = profiles[best];
    return true;
}

static int by_gi_id(const void *left, const void *right) {
    unsigned a = ((const MigGi *)left)->info.id, b = ((const MigGi *)right)->info.id;
    return (a > b) - (a < b);
}

static int by_ci_id(const void *left, const void *right) {
    unsigned a = ((const MigCi *)left)->info.id, b = ((const MigCi *)right)->info.id;
    return (a > b) - (a < b);
}

static nvmlReturn_t gis_of_profile(const SmiGpu *gpu, const MigGiProfile *profile, const SmiList *ids, MigGiList *list) {
    nvmlGpuInstance_t handles[SMI_MAX_INSTANCES];
    unsigned count = SMI_MAX_INSTANCES, first = list->count;
    nvmlReturn_t result = nvmlDeviceGetGpuInstances(gpu->handle, profile->id, handles, &count);
    if (result) return result;
    for (unsigned i = 0; i < count && list->count < SMI_MAX_INSTANCES; i++) {
        MigGi *gi = &list->items[list->count];
        gi->handle = handles[i];
        if (nvmlGpuInstanceGetInfo(gi->handle, &gi->info)) continue; /* destroyed meanwhile */
        if (!smi_selects(ids, gi->info.id)) continue;
        memcpy(gi->name, profile->name, sizeof gi->name);
        list->count++;
    }
    qsort(&list->items[first], list->count - first, sizeof list->items[0], by_gi_id);
    return NVML_SUCCESS;
}

nvmlReturn_t mig_gis(const SmiGpu *gpu, const SmiList *ids, MigGiList *list) {
    MigGiProfile profiles[NVML_GPU_INSTANCE_PROFILE_COUNT];
    unsigned count = mig_gi_profiles(gpu, profiles);
    list->count = 0;
    for (unsigned i = 0; i < count; i++) {
        nvmlReturn_t result = gis_of_profile(gpu, &profiles[i], ids, list);
        if (result) return result;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t mig_cis(nvmlGpuInstance_t gi, const SmiList *ids, MigCiList *list) {
    MigCiProfile profiles[NVML_COMPUTE_INSTANCE_PROFILE_COUNT];
    unsigned profile_count = mig_ci_profiles(gi, profiles);
    list->count = 0;
    for (unsigned p = 0; p < profile_count; p++) {
        nvmlComputeInstance_t handles[SMI_MAX_INSTANCES];
        unsigned count = SMI_MAX_INSTANCES, first = list->count;
        nvmlReturn_t result = nvmlGpuInstanceGetComputeInstances(gi, profiles[p].id, handles, &count);
        if (result) return result;
        for (unsigned i = 0; i < count && list->count < SMI_MAX_INSTANCES; i++) {
            MigCi *ci = &list->items[list->count];
            ci->handle = handles[i];
            if (nvmlComputeInstanceGetInfo_v2(ci->handle, &ci->info)) continue;
            if (!smi_selects(ids, ci->info.id)) continue;
            memcpy(ci->name, profiles[p].name, sizeof ci->name);
            list->count++;
        }
        qsort(&list->items[first], list->count - first, sizeof list->items[0], by_ci_id);
    }
    return NVML_SUCCESS;
}

bool mig_is_name(const char *text, const char *name) {
    return strcasecmp(text, name) == 0 || strcasecmp(text, name + strlen("MIG ")) == 0;
}
