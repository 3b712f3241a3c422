#include <stdio.h>
#include <string.h>

#include "clients.h"
#include "driver_release.h"
#include "geometry.h"

/* What all versions of the profile info have in common. */
#define PROFILE_FIELDS(profile)                                                                          \
    .id = (profile)->id, .sliceCount = (profile)->slices, .instanceCount = (profile)->max_instances,     \
    .multiprocessorCount = (profile)->multiprocessors, .copyEngineCount = (profile)->copy_engines,       \
    .decoderCount = (profile)->decoders, .encoderCount = (profile)->encoders,                            \
    .jpegCount = (profile)->jpegs, .ofaCount = (profile)->ofas, .memorySizeMB = (profile)->memory_mib

/* Lists profiles while MIG is off only where the driver does (Hopper and later). */
static nvmlReturn_t queries_allowed(const struct target *target) {
    bool off = !target->state.mig_current && target->board->family->queries_need_mode;
    return target->board->placement_units == 0 || off ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static nvmlReturn_t find_profile(const struct target *target, unsigned int value, bool by_id,
                                 const struct gi_profile **profile) {
    nvmlReturn_t allowed = queries_allowed(target);
    /* 580.159 does not know the last one; which later driver does first is not known. */
    unsigned int known = NVML_GPU_INSTANCE_PROFILE_COUNT - (driver_release(target->m) <= 580 ? 1u : 0u);
    if (!by_id && value >= known) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (allowed != NVML_SUCCESS) {
        return allowed;
    }
    *profile = by_id ? board_profile_by_id(target->board, value) : board_profile_by_enum(target->board, value);
    if (*profile == NULL) {
        return by_id ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(info != NULL);
    const struct gi_profile *found;
    nvmlReturn_t result = find_profile(&target, profile, false, &found);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *info = (nvmlGpuInstanceProfileInfo_t){
        PROFILE_FIELDS(found),
    };
    return NVML_SUCCESS;
}

static nvmlReturn_t versioned_info(const struct target *target, unsigned int value, bool by_id,
                                   nvmlGpuInstanceProfileInfo_v2_t *info) {
    unsigned int version = info->version;
    if (version != NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2u) &&
        version != NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v3_t, 3u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    const struct gi_profile *found;
    nvmlReturn_t result = find_profile(target, value, by_id, &found);
    if (result != NVML_SUCCESS) {
        return result;
    }
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = {0};
    snprintf(name, sizeof name, "MIG %s", found->name);
    if (version == NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2u)) {
        *info = (nvmlGpuInstanceProfileInfo_v2_t){
            .version = version,
            PROFILE_FIELDS(found),
        };
        memcpy(info->name, name, sizeof name);
        return NVML_SUCCESS;
    }
    nvmlGpuInstanceProfileInfo_v3_t *info3 = (nvmlGpuInstanceProfileInfo_v3_t *)(void *)info;
    *info3 = (nvmlGpuInstanceProfileInfo_v3_t){
        .version = version,
        PROFILE_FIELDS(found),
        .capabilities = found->graphics ? NVML_GPU_INSTANCE_PROFILE_CAPS_GFX : 0,
    };
    memcpy(info3->name, name, sizeof name);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(info != NULL);
    return versioned_info(&target, profile, false, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int profileId,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(info != NULL);
    return versioned_info(&target, profileId, true, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profileId,
                                                       unsigned int *count) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(count != NULL);
    const struct gi_profile *profile;
    nvmlReturn_t result = find_profile(&target, profileId, true, &profile);
    if (result == NVML_SUCCESS) {
        *count = gi_remaining_capacity(target.board, &target.state, profile);
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profileId,
                                                           nvmlGpuInstancePlacement_t *placements,
                                                           unsigned int *count) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(count != NULL);
    const struct gi_profile *profile;
    nvmlReturn_t result = find_profile(&target, profileId, true, &profile);
    if (result != NVML_SUCCESS) {
        return result;
    }
    unsigned int room = *count;
    *count = profile->start_count;
    if (placements == NULL) {
        return NVML_SUCCESS;
    }
    if (room < profile->start_count) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (unsigned int i = 0; i < profile->start_count; i++) {
        placements[i] = (nvmlGpuInstancePlacement_t){.start = profile->starts[i], .size = profile->size};
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int profileId,
                                                        nvmlGpuInstancePlacement_t *placements, unsigned int *count) {
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profileId, placements, count);
}

/* The first instance that does not take the whole GPU partitions its memory, which no client may hold then. */
static bool memory_is_held(const struct target *target, const struct gi_profile *profile) {
    return profile->size < target->board->placement_units && grid_occupied(&target->state) == 0 &&
           whole_gpu_clients(target->m, target->place.gpu) > 0;
}

struct wanted_gi {
    unsigned int profile_id;
    const nvmlGpuInstancePlacement_t *placement; /* NULL: where the driver would put it */
    unsigned int created;                        /* its id */
};

static nvmlReturn_t create(struct target *target, void *what) {
    struct wanted_gi *wanted = what;
    struct gpu_state *state = &target->state;
    const nvmlGpuInstancePlacement_t *asked = wanted->placement;
    if (!state->mig_current) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    const struct gi_profile *profile = board_profile_by_id(target->board, wanted->profile_id);
    if (profile == NULL || (asked != NULL &&
                            (asked->size != profile->size || !gi_start_is_legal(profile, asked->start)))) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (gi_remaining_capacity(target->board, state, profile) == 0 ||
        (asked != NULL && !gi_start_is_free(state, profile, asked->start))) {
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    if (memory_is_held(target, profile)) {
        return NVML_ERROR_IN_USE;
    }
    unsigned int start = asked != NULL ? asked->start : gi_default_start(target->board, state, profile);
    unsigned int id = gi_id_of(target->board, target->record->swapped, start, profile->size);
    if (id == BOARD_MAX_GI_IDS) {
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    simulate_gi_create(target->m, target->board, profile->slices);
    state->gis[id] = (struct gi_state){
        .live = 1,
        .profile = (uint8_t)(profile - target->board->gis),
        .start = (uint8_t)start,
        .size = (uint8_t)profile->size,
    };
    gpu_commit(target->m, target->place.gpu, state);
    wanted->created = id;
    return NVML_SUCCESS;
}

static nvmlReturn_t create_one(struct target *target, unsigned int profile_id,
                               const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *instance) {
    struct wanted_gi wanted = {.profile_id = profile_id, .placement = placement};
    nvmlReturn_t result = change_gpu(target, create, &wanted);
    if (result == NVML_SUCCESS) {
        *instance = gi_handle(target->place.gpu, wanted.created);
    }
    return result;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstance_t *gpuInstance) {
    struct target target;
    ENTER_GPU(device, &target);
    count_change(target.m, CHANGE_CREATE_GPU_INSTANCE);
    REQUIRE(gpuInstance != NULL);
    return create_one(&target, profileId, NULL, gpuInstance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *gpuInstance) {
    struct target target;
    ENTER_GPU(device, &target);
    count_change(target.m, CHANGE_CREATE_GPU_INSTANCE_WITH_PLACEMENT);
    REQUIRE(gpuInstance != NULL && placement != NULL);
    return create_one(&target, profileId, placement, gpuInstance);
}

static nvmlReturn_t destroy(struct target *target, void *what) {
    unsigned int id = *(const unsigned int *)what;
    struct gpu_state *state = &target->state;
    if (!state->gis[id].live) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct usage usage;
    usage_of(target->m, target->place.gpu, id, NO_INSTANCE, &usage);
    if (gi_has_compute_instance(&state->gis[id]) || usage.clients > 0) {
        return NVML_ERROR_IN_USE;
    }
    simulate_gi_destroy(target->m, target->board, target->board->gis[state->gis[id].profile].slices);
    state->gis[id] = (struct gi_state){0};
    gpu_commit(target->m, target->place.gpu, state);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance) {
    unsigned int id;
    struct target target;
    ENTER_GPU_INSTANCE(gpuInstance, &target, &id);
    count_change(target.m, CHANGE_DESTROY_GPU_INSTANCE);
    return change_gpu(&target, destroy, &id);
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstance_t *gpuInstances,
                                       unsigned int *count) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(gpuInstances != NULL && count != NULL);
    if (target.board->placement_units == 0 || !target.state.mig_current) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    const struct gi_profile *profile = board_profile_by_id(target.board, profileId);
    REQUIRE(profile != NULL);
    *count = 0;
    for (unsigned int id = 0; id < BOARD_MAX_GI_IDS; id++) {
        const struct gi_state *gi = &target.state.gis[id];
        if (gi->live && &target.board->gis[gi->profile] == profile &&
            view_shows_gi(target.view, target.place.gpu, id)) {
            gpuInstances[(*count)++] = gi_handle(target.place.gpu, id);
        }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gpuInstance) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(gpuInstance != NULL);
    nvmlReturn_t allowed = queries_allowed(&target);
    if (allowed != NVML_SUCCESS) {
        return allowed;
    }
    if (id >= BOARD_MAX_GI_IDS || !target.state.gis[id].live ||
        !view_shows_gi(target.view, target.place.gpu, id)) {
        return NVML_ERROR_NOT_FOUND;
    }
    *gpuInstance = gi_handle(target.place.gpu, id);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info) {
    unsigned int id;
    struct target target;
    ENTER_GPU_INSTANCE(gpuInstance, &target, &id);
    const struct gi_state *gi = &target.state.gis[id];
    REQUIRE(info != NULL && gi->live);
    *info = (nvmlGpuInstanceInfo_t){
        .device = device_handle(target.place.gpu),
        .id = id,
        .profileId = target.board->gis[gi->profile].id,
        .placement = {.start = gi->start, .size = gi->size},
    };
    return NVML_SUCCESS;
}
