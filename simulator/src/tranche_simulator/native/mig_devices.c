#include "mig_devices.h"

#include <stdio.h>
#include <string.h>

#include "geometry.h"
#include "identity.h"

bool mig_device_at(const struct gpu_state *state, unsigned int index, const struct view *view, unsigned int gpu,
                   unsigned int *gi, unsigned int *ci) {
    for (unsigned int g = 0; g < BOARD_MAX_GI_IDS; g++) {
        if (!state->gis[g].live) {
            continue;
        }
        for (unsigned int c = 0; c < STATE_MAX_CIS; c++) {
            bool counted = state->gis[g].cis[c].live &&
                           (view == NULL || view_shows_mig(view, gpu, g, &state->gis[g], c));
            if (counted && index-- == 0) {
                *gi = g;
                *ci = c;
                return true;
            }
        }
    }
    return false;
}

static void uuid_of(const machine *m, unsigned int gpu, unsigned int gi, unsigned int start, char *uuid, size_t size) {
    identify_mig(m->state->gpus[gpu].uuid, gi, start, uuid, size);
}

bool mig_slot_of_uuid(const machine *m, unsigned int gpu, const char *uuid, unsigned int *gi, unsigned int *start) {
    if (strncmp(uuid, "MIG-", 4) != 0) {
        return false;
    }
    for (unsigned int g = 0; g < BOARD_MAX_GI_IDS; g++) {
        for (unsigned int s = 0; s < STATE_MAX_CIS; s++) {
            char slot[64];
            uuid_of(m, gpu, g, s, slot, sizeof slot);
            if (strcmp(slot, uuid) == 0) {
                *gi = g;
                *start = s;
                return true;
            }
        }
    }
    return false;
}

bool find_by_uuid(const machine *m, const char *uuid, struct device_place *place) {
    for (unsigned int gpu = 0; gpu < m->state->gpu_count; gpu++) {
        if (strcmp(uuid, m->state->gpus[gpu].uuid) == 0) {
            *place = (struct device_place){.gpu = gpu, .gi = NO_INSTANCE, .ci = NO_INSTANCE};
            return true;
        }
        if (strncmp(uuid, "MIG-", 4) != 0) {
            continue;
        }
        struct gpu_state state;
        gpu_read(m, gpu, &state);
        unsigned int gi, ci;
        for (unsigned int index = 0; mig_device_at(&state, index, NULL, gpu, &gi, &ci); index++) {
            char candidate[64];
            uuid_of(m, gpu, gi, state.gis[gi].cis[ci].start, candidate, sizeof candidate);
            if (strcmp(candidate, uuid) == 0) {
                *place = (struct device_place){.gpu = gpu, .is_mig = true, .gi = gi, .ci = ci};
                return true;
            }
        }
    }
    return false;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(isMigDevice != NULL);
    *isMigDevice = target.place.is_mig;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(count != NULL);
    *count = target.state.mig_current ? target.board->max_mig_devices : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(migDevice != NULL);
    if (target.board->placement_units == 0 ||
        (!target.state.mig_current && target.board->family->queries_need_mode)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    REQUIRE(index < target.board->max_mig_devices);
    unsigned int gi, ci;
    if (!mig_device_at(&target.state, index, target.view, target.place.gpu, &gi, &ci)) {
        return NVML_ERROR_NOT_FOUND;
    }
    *migDevice = mig_handle(target.place.gpu, gi, ci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device) {
    struct target target;
    ENTER_DEVICE(migDevice, &target);
    REQUIRE(device != NULL && target.place.is_mig);
    *device = device_handle(target.place.gpu);
    return NVML_SUCCESS;
}

/* What a GPU that could be cut answers about the instance that it is not, as seen of an H200. */
static nvmlReturn_t no_instance(const struct target *target) {
    return target->board->placement_units == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(id != NULL);
    if (!target.place.is_mig) {
        return no_instance(&target);
    }
    *id = target.place.gi;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(id != NULL);
    if (!target.place.is_mig) {
        return no_instance(&target);
    }
    *id = target.place.ci;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(attributes != NULL);
    if (!target.place.is_mig) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = target.ci_profile->multiprocessors,
        .sharedCopyEngineCount = target.profile->copy_engines,
        .sharedDecoderCount = target.profile->decoders,
        .sharedEncoderCount = target.profile->encoders,
        .sharedJpegCount = target.profile->jpegs,
        .sharedOfaCount = target.profile->ofas,
        .gpuInstanceSliceCount = target.profile->slices,
        .computeInstanceSliceCount = target.ci_profile->slices,
        .memorySizeMB = target.profile->memory_mib,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return nvmlDeviceGetAttributes_v2(device, attributes);
}
