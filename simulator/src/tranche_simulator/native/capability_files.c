#define _GNU_SOURCE
#include "capability_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Minor numbers of the device nodes under /dev/nvidia-caps: 1 and 2 are the machine's, then nine for each GPU-instance id of
 * each GPU: its own, and eight of compute instances. */
enum { FIRST_GI_MINOR = 3, MINORS_OF_A_GI = 1 + STATE_MAX_CIS };

static unsigned int gi_minor(unsigned int gpu, unsigned int gi) {
    return FIRST_GI_MINOR + (gpu * BOARD_MAX_GI_IDS + gi) * MINORS_OF_A_GI;
}

/* The folder beside the state file; -1 if it does not exist. */
static int open_folder(const machine *m) {
    char path[PATH_MAX + sizeof CAPABILITIES_FOLDER];
    const char *slash = strrchr(m->path, '/');
    snprintf(path, sizeof path, "%.*s/" CAPABILITIES_FOLDER, slash == NULL ? 0 : (int)(slash - m->path), m->path);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int open_below(int folder, const char *name) {
    mkdirat(folder, name, 0755);
    return openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Readers find the file complete. */
static void write_access(int folder, unsigned int minor) {
    char text[96];
    int length = snprintf(text, sizeof text, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
    int file = openat(folder, ".access", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444);
    if (file < 0) {
        return;
    }
    bool whole = write(file, text, (size_t)length) == length;
    close(file);
    if (!whole || renameat(folder, ".access", folder, "access") != 0) {
        unlinkat(folder, ".access", 0);
    }
}

static void remove_ci(int gi_folder, unsigned int ci) {
    char name[24];
    snprintf(name, sizeof name, "ci%u/access", ci);
    unlinkat(gi_folder, name, 0);
    snprintf(name, sizeof name, "ci%u", ci);
    unlinkat(gi_folder, name, AT_REMOVEDIR);
}

static void remove_gi(int mig, const char *name) {
    int folder = openat(mig, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        return;
    }
    for (unsigned int ci = 0; ci < STATE_MAX_CIS; ci++) {
        remove_ci(folder, ci);
    }
    unlinkat(folder, "access", 0);
    close(folder);
    unlinkat(mig, name, AT_REMOVEDIR);
}

static void write_gi(int mig, const char *name, const struct gi_state *gi, unsigned int minor) {
    int folder = open_below(mig, name);
    if (folder < 0) {
        return;
    }
    if (faccessat(folder, "access", F_OK, 0) != 0) {
        write_access(folder, minor);
    }
    for (unsigned int ci = 0; ci < STATE_MAX_CIS; ci++) {
        char ci_name[8];
        snprintf(ci_name, sizeof ci_name, "ci%u", ci);
        if (!gi->cis[ci].live) {
            remove_ci(folder, ci);
        } else if (faccessat(folder, ci_name, F_OK, 0) != 0) {
            int ci_folder = open_below(folder, ci_name);
            if (ci_folder >= 0) {
                write_access(ci_folder, minor + 1 + ci);
                close(ci_folder);
            }
        }
    }
    close(folder);
}

void capability_files_update(const machine *m, unsigned int gpu, const struct gpu_state *state) {
    if (m->boards[gpu]->placement_units == 0) {
        return;
    }
    int root = open_folder(m);
    if (root < 0) {
        return;
    }
    char name[24];
    snprintf(name, sizeof name, "gpu%u", gpu);
    int gpu_folder = open_below(root, name);
    int mig = gpu_folder < 0 ? -1 : open_below(gpu_folder, "mig");
    for (unsigned int gi = 0; mig >= 0 && gi < BOARD_MAX_GI_IDS; gi++) {
        snprintf(name, sizeof name, "gi%u", gi);
        if (state->gis[gi].live) {
            write_gi(mig, name, &state->gis[gi], gi_minor(gpu, gi));
        } else {
            remove_gi(mig, name);
        }
    }
    if (mig >= 0) {
        close(mig);
    }
    if (gpu_folder >= 0) {
        close(gpu_folder);
    }
    close(root);
}

nvmlReturn_t trancheSimUpdateCapabilityFiles(trancheSimMachine_t m) {
    if (m == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned int gpu = 0; gpu < m->state->gpu_count; gpu++) {
        int lock;
        nvmlReturn_t result = state_lock(m, LOCK_GPU + gpu, &lock);
        if (result != NVML_SUCCESS) {
            return result;
        }
        struct gpu_state state;
        gpu_read(m, gpu, &state);
        capability_files_update(m, gpu, &state);
        state_unlock(lock);
    }
    return NVML_SUCCESS;
}
