#include <stdio.h>
#include <string.h>

#include "clients.h"
#include "geometry.h"

/* What all versions of the profile info have in common. Engines are the GPU instance's. */
#define PROFILE_FIELDS(ci, gi)                                                                        \
    .id = (ci)->id, .sliceCount = (ci)->slices, .instanceCount = (ci)->max_instances,                 \
    .multiprocessorCount = (ci)->multiprocessors, .sharedCopyEngineCount = (gi)->copy_engines,        \
    .sharedDecoderCount = (gi)->decoders, .sharedEncoderCount = (gi)->encoders,                       \
    .sharedJpegCount = (gi)->jpegs, .sharedOfaCount = (gi)->ofas

/* The GPU instance a call is about. */
struct gi_target {
    struct target target;
    unsigned int id;
    struct gi_state *gi;
    const struct gi_profile *profile;
};

static nvmlReturn_t refer(struct gi_target *t) {
    t->gi = &t->target.state.gis[t->id];
    if (!t->gi->live) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    t->profile = &t->target.board->gis[t->gi->profile];
    return NVML_SUCCESS;
}

static nvmlReturn_t enter_gi(const char *function, nvmlGpuInstance_t instance, struct gi_target *t) {
    nvmlReturn_t result = enter_gpu_instance(function, instance, &t->target, &t->id);
    return result != NVML_SUCCESS ? result : refer(t);
}

#define ENTER_GI(instance, t)                                    \
    do {                                                         \
        nvmlReturn_t entered = enter_gi(__func__, instance, t);  \
        if (entered != NVML_SUCCESS) {                           \
            return entered;                                      \
        }                                                        \
    } while (0)

static nvmlReturn_t find_profile(const struct gi_target *t, unsigned int profile, unsigned int engine,
                                 const struct ci_profile **found) {
    if (profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engine >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *found = gi_profile_ci(t->profile, profile);
    return *found != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpuInstance, unsigned int profile,
                                                          unsigned int engineProfile,
                                                          nvmlComputeInstanceProfileInfo_t *info) {
    struct gi_target t;
    ENTER_GI(gpuInstance, &t);
    REQUIRE(info != NULL);
    const struct ci_profile *found;
    nvmlReturn_t result = find_profile(&t, profile, engineProfile, &found);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *info = (nvmlComputeInstanceProfileInfo_t){
        PROFILE_FIELDS(found, t.profile),
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gpuInstance, unsigned int profile,
                                                           unsigned int engineProfile,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info) {
    struct gi_target t;
    ENTER_GI(gpuInstance, &t);
    REQUIRE(info != NULL);
    unsigned int version = info->version;
    bool third = version == NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3u);
    if (!third && version != NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    const struct ci_profile *found;
    nvmlReturn_t result = find_profile(&t, profile, engineProfile, &found);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *info = (nvmlComputeInstanceProfileInfo_v2_t){
        .version = version,
        PROFILE_FIELDS(found, t.profile),
    };
    snprintf(info->name, sizeof info->name, "MIG %s", found->name);
    if (third) { /* version 3 is version 2 with the capabilities behind the name */
        ((nvmlComputeInstanceProfileInfo_v3_t *)(void *)info)->capabilities =
            t.profile->graphics ? NVML_GPU_INSTANCE_PROFILE_CAPS_GFX : 0;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                                unsigned int *count) {
    struct gi_target t;
    ENTER_GI(gpuInstance, &t);
    REQUIRE(count != NULL);
    const struct ci_profile *profile;
    nvmlReturn_t result = find_profile(&t, profileId, 0, &profile);
    if (result == NVML_SUCCESS) {
        *count = ci_remaining_capacity(t.gi, t.profile, profile);
    }
    return result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                                 nvmlComputeInstancePlacement_t *placements,
                                                                 unsigned int *count) {
    struct gi_target t;
    ENTER_GI(gpuInstance, &t);
    REQUIRE(count != NULL);
    const struct ci_profile *profile;
    nvmlReturn_t result = find_profile(&t, profileId, 0, &profile);
    if (result != NVML_SUCCESS) {
        return result;
    }
    unsigned int room = *count;
    *count = ci_placements(t.profile, profile, NULL);
    if (placements == NULL) {
        return NVML_SUCCESS;
    }
    if (room < *count) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    ci_placements(t.profile, profile, placements);
    return NVML_SUCCESS;
}

static unsigned int free_ci_id(const struct gi_state *gi) {
    unsigned int id = 0;
    while (id < STATE_MAX_CIS && gi->cis[id].live) {
        id++;
    }
    return id;
}

struct wanted_ci {
    struct gi_target *place;
    unsigned int profile_id;
    const nvmlComputeInstancePlacement_t *placement; /* NULL: the lowest free start */
    unsigned int created;                            /* its id */
};

static nvmlReturn_t create(struct target *target, void *what) {
    struct wanted_ci *wanted = what;
    struct gi_target *t = wanted->place;
    const nvmlComputeInstancePlacement_t *asked = wanted->placement;
    nvmlReturn_t result = refer(t);
    if (result != NVML_SUCCESS) {
        return result;
    }
    const struct ci_profile *profile;
    result = find_profile(t, wanted->profile_id, 0, &profile);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (asked != NULL &&
        (asked->size != profile->slices || !ci_start_is_legal(t->profile, profile, asked->start))) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    unsigned int start = asked != NULL ? asked->start : ci_default_start(t->gi, t->profile, profile);
    unsigned int id = free_ci_id(t->gi);
    if (start == ANY_START || id == STATE_MAX_CIS || !ci_start_is_free(t->gi, profile, start)) {
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    simulate_ci_create(target->m, target->board, profile->slices);
    t->gi->cis[id] = (struct ci_state){
        .live = 1,
        .profile = (uint8_t)(profile - t->profile->cis),
        .start = (uint8_t)start,
        .size = (uint8_t)profile->slices,
    };
    gpu_commit(target->m, target->place.gpu, &target->state);
    wanted->created = id;
    return NVML_SUCCESS;
}

static nvmlReturn_t create_one(struct gi_target *t, unsigned int profile_id,
                               const nvmlComputeInstancePlacement_t *placement, nvmlComputeInstance_t *instance) {
    struct wanted_ci wanted = {.place = t, .profile_id = profile_id, .placement = placement};
    nvmlReturn_t result = change_gpu(&t->target, create, &wanted);
    if (result == NVML_SUCCESS) {
        *instance = ci_handle(t->target.place.gpu, t->id, wanted.created);
    }
    return result;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                  nvmlComputeInstance_t *computeInstance) {
    struct gi_target t;
    ENTER_GI(gpuInstance, &t);
    count_change(t.target.m, CHANGE_CREATE_COMPUTE_INSTANCE);
    REQUIRE(computeInstance != NULL);
    return create_one(&t, profileId, NULL, computeInstance);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                               const nvmlComputeInstancePlacement_t *placement,
                                                               nvmlComputeInstance_t *computeInstance) {
    struct gi_target t;
    ENTER_GI(gpuInstance, &t);
    count_change(t.target.m, CHANGE_CREATE_COMPUTE_INSTANCE_WITH_PLACEMENT);
    REQUIRE(computeInstance != NULL && placement != NULL);
    return create_one(&t, profileId, placement, computeInstance);
}

/* The compute instance a call is about. */
static nvmlReturn_t enter_ci(const char *function, nvmlComputeInstance_t instance, struct gi_target *t,
                             unsigned int *id) {
    const struct session *session;
    nvmlReturn_t result = session_of_call(&session);
    if (result != NVML_SUCCESS) {
        return result;
    }
    unsigned int gpu;
    REQUIRE(ci_of_handle(instance, &gpu, &t->id, id));
    result = enter_gpu_index(function, gpu, t->id, &t->target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = refer(t);
    if (result == NVML_SUCCESS &&
        (!t->gi->cis[*id].live || !view_shows_mig(t->target.view, gpu, t->id, t->gi, *id))) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return result;
}

struct unwanted_ci {
    struct gi_target *place;
    unsigned int id;
};

static nvmlReturn_t destroy(struct target *target, void *what) {
    const struct unwanted_ci *unwanted = what;
    struct gi_target *t = unwanted->place;
    nvmlReturn_t result = refer(t);
    if (result != NVML_SUCCESS || !t->gi->cis[unwanted->id].live) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct usage usage;
    usage_of(target->m, target->place.gpu, t->id, unwanted->id, &usage);
    if (usage.clients > 0) {
        return NVML_ERROR_IN_USE;
    }
    simulate_ci_destroy(target->m, target->board, t->gi->cis[unwanted->id].size);
    t->gi->cis[unwanted->id] = (struct ci_state){0};
    gpu_commit(target->m, target->place.gpu, &target->state);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance) {
    struct gi_target t;
    struct unwanted_ci unwanted = {.place = &t};
    nvmlReturn_t result = enter_ci(__func__, computeInstance, &t, &unwanted.id);
    if (result != NVML_SUCCESS) {
        return result;
    }
    count_change(t.target.m, CHANGE_DESTROY_COMPUTE_INSTANCE);
    return change_gpu(&t.target, destroy, &unwanted);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                nvmlComputeInstance_t *computeInstances, unsigned int *count) {
    struct gi_target t;
    ENTER_GI(gpuInstance, &t);
    REQUIRE(computeInstances != NULL && count != NULL);
    const struct ci_profile *profile;
    nvmlReturn_t result = find_profile(&t, profileId, 0, &profile);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *count = 0;
    unsigned int gpu = t.target.place.gpu;
    for (unsigned int id = 0; id < STATE_MAX_CIS; id++) {
        const struct ci_state *ci = &t.gi->cis[id];
        if (ci->live && &t.profile->cis[ci->profile] == profile &&
            view_shows_mig(t.target.view, gpu, t.id, t.gi, id)) {
            computeInstances[(*count)++] = ci_handle(gpu, t.id, id);
        }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id,
                                                   nvmlComputeInstance_t *computeInstance) {
    struct gi_target t;
    ENTER_GI(gpuInstance, &t);
    REQUIRE(computeInstance != NULL);
    unsigned int gpu = t.target.place.gpu;
    if (id >= STATE_MAX_CIS || !t.gi->cis[id].live || !view_shows_mig(t.target.view, gpu, t.id, t.gi, id)) {
        return NVML_ERROR_NOT_FOUND;
    }
    *computeInstance = ci_handle(gpu, t.id, id);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info) {
    struct gi_target t;
    unsigned int id;
    nvmlReturn_t result = enter_ci(__func__, computeInstance, &t, &id);
    if (result != NVML_SUCCESS) {
        return result;
    }
    REQUIRE(info != NULL);
    const struct ci_state *ci = &t.gi->cis[id];
    *info = (nvmlComputeInstanceInfo_t){
        .device = device_handle(t.target.place.gpu),
        .gpuInstance = gi_handle(t.target.place.gpu, t.id),
        .id = id,
        .profileId = t.profile->cis[ci->profile].id,
        .placement = {.start = ci->start, .size = ci->size},
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info) {
    return nvmlComputeInstanceGetInfo_v2(computeInstance, info);
}
