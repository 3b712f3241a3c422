#define _GNU_SOURCE
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "identity.h"
#include "mig_devices.h"
#include "session.h"

static void show_gpu(struct view *view, unsigned int gpu) {
    view->visible[gpu] = true;
    view->only_mig[gpu] = false;
}

static void show_mig(struct view *view, unsigned int gpu, unsigned int gi, unsigned int start) {
    if (view->visible[gpu] && !view->only_mig[gpu]) {
        return; /* the whole GPU is visible already */
    }
    view->visible[gpu] = true;
    view->only_mig[gpu] = true;
    view->mig[gpu][gi] |= (uint8_t)(1u << start);
}

static bool parse_number(const char **text, unsigned int *number) {
    if (**text < '0' || **text > '9') {
        return false;
    }
    char *end;
    unsigned long value = strtoul(*text, &end, 10);
    *text = end;
    *number = value > 0xFFFFu ? 0xFFFFu : (unsigned int)value;
    return true;
}

/* "i" or "i:j": GPU by index, or its j-th MIG device. */
static void show_by_index(const machine *m, struct view *view, const char *entry) {
    unsigned int gpu;
    if (!parse_number(&entry, &gpu) || gpu >= m->state->gpu_count) {
        return;
    }
    if (*entry == '\0') {
        show_gpu(view, gpu);
        return;
    }
    unsigned int index;
    if (*entry++ != ':' || !parse_number(&entry, &index) || *entry != '\0') {
        return;
    }
    struct gpu_state state;
    gpu_read(m, gpu, &state);
    unsigned int gi, ci;
    if (mig_device_at(&state, index, NULL, gpu, &gi, &ci)) {
        show_mig(view, gpu, gi, state.gis[gi].cis[ci].start);
    }
}

/* A MIG UUID is a fixed function of its slot, so it is recognised also before the instance exists. */
static void show_by_uuid(const machine *m, struct view *view, const char *entry) {
    for (unsigned int gpu = 0; gpu < m->state->gpu_count; gpu++) {
        if (strcmp(entry, m->state->gpus[gpu].uuid) == 0) {
            show_gpu(view, gpu);
            return;
        }
        unsigned int gi, start;
        if (mig_slot_of_uuid(m, gpu, entry, &gi, &start)) {
            show_mig(view, gpu, gi, start);
            return;
        }
    }
}

static void show_entry(const machine *m, struct view *view, const char *entry) {
    if (entry[0] >= '0' && entry[0] <= '9') {
        show_by_index(m, view, entry);
    } else {
        show_by_uuid(m, view, entry);
    }
}

/* A folder with one file for each device, named as the device: how devices are given to a container by mounts. */
static void show_by_folder(const machine *m, struct view *view, const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return;
    }
    for (struct dirent *file = readdir(folder); file != NULL; file = readdir(folder)) {
        show_entry(m, view, file->d_name);
    }
    closedir(folder);
}

nvmlReturn_t view_from_environment(const machine *m, struct view *view) {
    memset(view, 0, sizeof *view);
    const char *value = getenv("NVIDIA_VISIBLE_DEVICES");
    if (value == NULL || strcmp(value, "all") == 0) {
        for (unsigned int gpu = 0; gpu < m->state->gpu_count; gpu++) {
            show_gpu(view, gpu);
        }
    } else if (value[0] == '\0' || strcmp(value, "void") == 0) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    } else if (value[0] == '/') {
        show_by_folder(m, view, value);
    } else if (strcmp(value, "none") != 0) {
        char *entries = strdup(value);
        if (entries == NULL) {
            return NVML_ERROR_MEMORY;
        }
        char *rest = NULL;
        for (char *entry = strtok_r(entries, ",", &rest); entry != NULL; entry = strtok_r(NULL, ",", &rest)) {
            show_entry(m, view, entry);
        }
        free(entries);
    }
    for (unsigned int gpu = 0; gpu < m->state->gpu_count; gpu++) {
        if (view->visible[gpu]) {
            view->gpus[view->count++] = gpu;
        }
    }
    return NVML_SUCCESS;
}

bool view_shows_gi(const struct view *view, unsigned int gpu, unsigned int gi) {
    return !view->only_mig[gpu] || (gi < BOARD_MAX_GI_IDS && view->mig[gpu][gi] != 0);
}

bool view_shows_mig(const struct view *view, unsigned int gpu, unsigned int gi, const struct gi_state *state,
                    unsigned int ci) {
    return !view->only_mig[gpu] || (view->mig[gpu][gi] >> state->cis[ci].start & 1u) != 0;
}
