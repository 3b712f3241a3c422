#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients.h"
#include "identity.h"
#include "mig_devices.h"
#include "mps/mps_log.h"
#include "mps/mps_version.h"
#include "mps_server/server.h"

/* What the server's own context takes: read on a V100 and in a slice of an H100. */
enum { SERVER_MIB = 30, HOPPER_SERVER_MIB = 60, HOPPER = 9 };
/* Contexts of clients on one GPU: Volta and later, up to CUDA 13.0 and from 13.1 on; before Volta. */
enum { CONTEXTS = 48, CONTEXTS_13_1 = 60, CONTEXTS_BEFORE_VOLTA = 16, VOLTA = 7 };

static unsigned int most_contexts(const struct board *board) {
    if (board->cc_major < VOLTA) {
        return CONTEXTS_BEFORE_VOLTA;
    }
    return driver_cuda(server.m) >= 13010 ? CONTEXTS_13_1 : CONTEXTS;
}

static struct served_device describe(const struct device_place *place) {
    const struct board *board = server.m->boards[place->gpu];
    const struct gpu_record *record = &server.m->state->gpus[place->gpu];
    struct served_device device = {.place = *place, .most_contexts = most_contexts(board)};
    snprintf(device.uuid, sizeof device.uuid, "%s", record->uuid);
    snprintf(device.name, sizeof device.name, "%s", record->name);
    snprintf(device.bus_id, sizeof device.bus_id, "%04x:%02x.%02x.00", record->pci_domain, record->pci_bus,
             record->pci_device);
    if (place->is_mig) {
        struct gpu_state state;
        gpu_read(server.m, place->gpu, &state);
        const struct gi_state *gi = &state.gis[place->gi];
        const struct ci_profile *profile = &board->gis[gi->profile].cis[gi->cis[place->ci].profile];
        identify_mig(record->uuid, place->gi, gi->cis[place->ci].start, device.uuid, sizeof device.uuid);
        /* A guess: in proportion to the compute slices. */
        device.most_contexts = device.most_contexts * profile->slices / board->compute_slices;
        snprintf(device.name, sizeof device.name, "%.60s MIG %.30s", record->name, board->gis[gi->profile].name);
    }
    return device;
}

static bool in_mig_mode(unsigned int gpu) {
    struct gpu_state state;
    gpu_read(server.m, gpu, &state);
    return state.mig_current == NVML_DEVICE_MIG_ENABLE;
}

/* The GPU itself, or its first visible MIG device. */
static bool place_of_gpu(const struct view *view, unsigned int gpu, struct device_place *place) {
    *place = (struct device_place){.gpu = gpu, .gi = NO_INSTANCE, .ci = NO_INSTANCE};
    if (!in_mig_mode(gpu)) {
        return !view->only_mig[gpu];
    }
    struct gpu_state state;
    gpu_read(server.m, gpu, &state);
    place->is_mig = true;
    return mig_device_at(&state, 0, view, gpu, &place->gi, &place->ci);
}

/* What an entry of CUDA_VISIBLE_DEVICES names: an index, or the beginning of one UUID and no other. */
static bool place_of_entry(const struct view *view, const char *entry, struct device_place *place) {
    char *end;
    unsigned long index = strtoul(entry, &end, 10);
    if (end != entry) {
        return *end == '\0' && index < view->count && place_of_gpu(view, view->gpus[index], place);
    }
    unsigned int matches = 0;
    for (unsigned int i = 0; i < view->count && strlen(entry) > 4; i++) {
        unsigned int gpu = view->gpus[i];
        struct device_place found;
        if (strncmp(server.m->state->gpus[gpu].uuid, entry, strlen(entry)) == 0 && place_of_gpu(view, gpu, &found)) {
            *place = found;
            matches++;
        }
        struct gpu_state state;
        gpu_read(server.m, gpu, &state);
        found = (struct device_place){.gpu = gpu, .is_mig = true};
        for (unsigned int j = 0; in_mig_mode(gpu) && mig_device_at(&state, j, view, gpu, &found.gi, &found.ci); j++) {
            if (strncmp(describe(&found).uuid, entry, strlen(entry)) == 0) {
                *place = found;
                matches++;
            }
        }
    }
    return matches == 1;
}

/* One MIG device alone, or GPUs: a process of CUDA uses no more. */
static void add(const struct device_place *place) {
    if (server.device_count == MPS_MAX_DEVICES || (server.device_count > 0 && server.devices[0].place.is_mig)) {
        return;
    }
    if (place->is_mig) {
        server.device_count = 0;
    }
    server.devices[server.device_count++] = describe(place);
}

static void choose(const struct view *view) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    struct device_place place;
    for (unsigned int i = 0; visible == NULL && i < view->count; i++) {
        if (place_of_gpu(view, view->gpus[i], &place)) {
            add(&place);
        }
    }
    char *entries = visible != NULL ? strdup(visible) : NULL;
    char *rest = entries;
    /* What stands behind an entry that names nothing is not visible. */
    for (char *entry; (entry = strsep(&rest, ",")) != NULL && place_of_entry(view, entry, &place);) {
        add(&place);
    }
    free(entries);
}

/* The compute mode is of the whole GPU: the server is the one process that an exclusive one admits. */
static bool mode_admits(const struct device_place *place) {
    struct gpu_state state;
    struct usage usage;
    gpu_read(server.m, place->gpu, &state);
    usage_of(server.m, place->gpu, NO_INSTANCE, NO_INSTANCE, &usage);
    return state.compute_mode == NVML_COMPUTEMODE_DEFAULT ||
           (state.compute_mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS && usage.clients == 0);
}

static bool open_context(unsigned int index) {
    const struct served_device *device = &server.devices[index];
    bool hopper = server.m->boards[device->place.gpu]->cc_major >= HOPPER;
    uint64_t bytes = (uint64_t)(hopper ? HOPPER_SERVER_MIB : SERVER_MIB) << 20;
    unsigned int slot;
    mps_log("Volta MPS: Creating server context on device %u", index);
    nvmlReturn_t result = mode_admits(&device->place) ? trancheSimAttach(server.m, device->uuid, bytes, 0, &slot)
                                                      : NVML_ERROR_IN_USE;
    if (result != NVML_SUCCESS) {
        mps_log("Failed to create the server context on device %u: %s", index, nvmlErrorString(result));
    }
    return result == NVML_SUCCESS;
}

bool devices_open(void) {
    struct view view;
    if (view_from_environment(server.m, &view) == NVML_SUCCESS) {
        choose(&view);
    }
    if (server.device_count == 0) {
        mps_log("no CUDA-capable device is detected");
        return false;
    }
    simulate_mps_start(server.m, server.device_count);
    for (unsigned int i = 0; i < server.device_count; i++) {
        if (!open_context(i)) {
            return false;
        }
    }
    return true;
}

/* The last limit that was set for the device, by whichever name. A MIG device is known by its ordinal alone. */
uint64_t device_limit(const struct mps_settings *settings, unsigned int device) {
    char ordinal[16];
    const char *uuid = server.devices[device].uuid;
    uint64_t bytes = 0;
    snprintf(ordinal, sizeof ordinal, "%u", device);
    for (uint32_t i = 0; i < settings->count; i++) {
        const struct mps_limit *limit = &settings->limits[i];
        bool by_uuid = mps_heeds_uuids(server.m) && strncmp(limit->device, "GPU-", 4) == 0 && strlen(limit->device) > 4 &&
                       strncmp(uuid, limit->device, strlen(limit->device)) == 0;
        if (by_uuid || strcmp(limit->device, ordinal) == 0 || strcmp(limit->device, MPS_EVERY_DEVICE) == 0) {
            bytes = limit->bytes;
        }
    }
    return bytes;
}
