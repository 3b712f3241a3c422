/* nvidia-smi mig -cgi, -cci. A list is not atomic: what was made stays, and the first failure ends the command. */
#include "mig.h"

#include <stdio.h>
#include <string.h>

/* "9", "3g.20gb" or "MIG 3g.20gb", each with an optional ":START". */
typedef struct {
    char profile[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    bool has_start;
    unsigned start;
} ProfileTuple;

static bool parse_tuple(const char *text, ProfileTuple *tuple) {
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    if (!length || length >= sizeof tuple->profile) return false;
    memcpy(tuple->profile, text, length);
    tuple->profile[length] = '\0';
    tuple->has_start = colon != NULL;
    return !colon || smi_number(colon + 1, &tuple->start);
}

static bool find_gi_profile(const SmiGpu *gpu, const char *text, MigGiProfile *profile) {
    MigGiProfile profiles[NVML_GPU_INSTANCE_PROFILE_COUNT];
    unsigned count = mig_gi_profiles(gpu, profiles), id = 0;
    bool by_id = smi_number(text, &id);
    for (unsigned i = 0; i < count; i++) {
        if (by_id ? profiles[i].id != id : !mig_is_name(text, profiles[i].name)) continue;
        *profile = profiles[i];
        return true;
    }
    return false;
}

static bool find_ci_profile(nvmlGpuInstance_t gi, const char *text, MigCiProfile *profile) {
    MigCiProfile profiles[NVML_COMPUTE_INSTANCE_PROFILE_COUNT];
    unsigned count = mig_ci_profiles(gi, profiles), id = 0;
    bool by_id = smi_number(text, &id);
    for (unsigned i = 0; i < count; i++) {
        if (by_id ? profiles[i].id != id : !mig_is_name(text, profiles[i].name)) continue;
        *profile = profiles[i];
        return true;
    }
    return false;
}

/* A profile has one size; its starts are what -lgipp lists. */
static nvmlReturn_t placement_size(const SmiGpu *gpu, unsigned profile_id, unsigned *size) {
    nvmlGpuInstancePlacement_t placements[SMI_MAX_INSTANCES];
    unsigned count = SMI_MAX_INSTANCES;
    nvmlReturn_t result =
        nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu->handle, profile_id, placements, &count);
    if (!result && !count) result = NVML_ERROR_INVALID_ARGUMENT;
    if (!result) *size = placements[0].size;
    return result;
}

static nvmlReturn_t create_gi(const SmiGpu *gpu, const char *text, MigGi *gi) {
    ProfileTuple tuple;
    MigGiProfile profile;
    if (!parse_tuple(text, &tuple) || !find_gi_profile(gpu, tuple.profile, &profile))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result;
    if (tuple.has_start) {
        nvmlGpuInstancePlacement_t placement = {.start = tuple.start};
        result = placement_size(gpu, profile.id, &placement.size);
        if (!result) result = nvmlDeviceCreateGpuInstanceWithPlacement(gpu->handle, profile.id, &placement, &gi->handle);
    } else {
        result = nvmlDeviceCreateGpuInstance(gpu->handle, profile.id, &gi->handle);
    }
    if (!result) result = nvmlGpuInstanceGetInfo(gi->handle, &gi->info);
    memcpy(gi->name, profile.name, sizeof gi->name);
    return result;
}

/* A compute instance's size is its number of slices, which a double-memory one does not share with its placement. */
static nvmlReturn_t ci_placement_size(nvmlGpuInstance_t gi, unsigned profile_id, unsigned *size) {
    nvmlComputeInstancePlacement_t placements[SMI_MAX_INSTANCES];
    unsigned count = SMI_MAX_INSTANCES;
    nvmlReturn_t result =
        nvmlGpuInstanceGetComputeInstancePossiblePlacements(gi, profile_id, placements, &count);
    if (!result && !count) result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    if (!result) *size = placements[0].size;
    return result;
}

/* `text` is NULL for the default profile. */
static nvmlReturn_t create_ci(nvmlGpuInstance_t gi, const char *text, MigCiProfile *profile, MigCi *ci) {
    ProfileTuple tuple = {.has_start = false};
    bool found = text ? parse_tuple(text, &tuple) && find_ci_profile(gi, tuple.profile, profile)
                      : mig_default_ci_profile(gi, profile);
    if (!found) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result;
    if (tuple.has_start) {
        nvmlComputeInstancePlacement_t placement = {.start = tuple.start};
        result = ci_placement_size(gi, profile->id, &placement.size);
        if (!result)
            result = nvmlGpuInstanceCreateComputeInstanceWithPlacement(gi, profile->id, &placement, &ci->handle);
    } else {
        result = nvmlGpuInstanceCreateComputeInstance(gi, profile->id, &ci->handle);
    }
    return result ? result : nvmlComputeInstanceGetInfo_v2(ci->handle, &ci->info);
}

static int make_ci(const SmiGpu *gpu, const MigGi *gi, const char *text) {
    MigCiProfile profile = {.name = ""};
    MigCi ci;
    nvmlReturn_t result = create_ci(gi->handle, text, &profile, &ci);
    if (!result) {
        printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n",
               ci.info.id, gpu->index, gi->info.id, profile.name, profile.id);
        return 0;
    }
    printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %s: %s\n", gpu->index,
           gi->info.id, text ? text : profile.name, nvmlErrorString(result));
    printf("Failed to create compute instances: %s\n", nvmlErrorString(result));
    return smi_exit_code(result);
}

static int make_gi(const SmiGpu *gpu, const char *text, bool default_ci) {
    MigGi gi;
    nvmlReturn_t result = create_gi(gpu, text, &gi);
    if (!result) {
        printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", gi.info.id,
               gpu->index, gi.name, gi.info.profileId);
        return default_ci ? make_ci(gpu, &gi, NULL) : 0;
    }
    printf("Unable to create a GPU instance on GPU %2u using profile %s: %s\n", gpu->index, text,
           nvmlErrorString(result));
    printf("Failed to create GPU instances: %s\n", nvmlErrorString(result));
    return smi_exit_code(result);
}

int mig_create_gis(const MigRequest *request) {
    SmiList profiles;
    if (!smi_split(&profiles, request->options->profiles)) return smi_bad_combination();
    for (unsigned i = 0; i < request->gpus.count; i++)
        for (unsigned p = 0; p < profiles.count; p++) {
            int code = make_gi(&request->gpus.gpus[i], profiles.items[p], request->options->default_ci);
            if (code) return code;
        }
    return 0;
}

static int make_cis_in(const SmiGpu *gpu, const MigGi *gi, const SmiList *profiles) {
    if (!profiles) return make_ci(gpu, gi, NULL);
    for (unsigned p = 0; p < profiles->count; p++) {
        int code = make_ci(gpu, gi, profiles->items[p]);
        if (code) return code;
    }
    return 0;
}

int mig_create_cis(const MigRequest *request) {
    SmiList text;
    const SmiList *profiles = request->options->profiles ? &text : NULL;
    if (profiles && !smi_split(&text, request->options->profiles)) return smi_bad_combination();
    unsigned found = 0;
    for (unsigned i = 0; i < request->gpus.count; i++) {
        const SmiGpu *gpu = &request->gpus.gpus[i];
        MigGiList gis;
        nvmlReturn_t result = mig_gis(gpu, request->gi_ids, &gis);
        if (result) {
            printf("Failed to create compute instances: %s\n", nvmlErrorString(result));
            return smi_exit_code(result);
        }
        found += gis.count;
        for (unsigned g = 0; g < gis.count; g++) {
            int code = make_cis_in(gpu, &gis.items[g], profiles);
            if (code) return code;
        }
    }
    if (found) return 0;
    printf("No GPU instances found: Not Found\n");
    return SMI_EXIT_NOT_FOUND;
}
