#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "identity.h"
#include "state.h"

static bool header_is_valid(const struct machine_state *state) {
    return memcmp(state->magic, STATE_MAGIC, sizeof state->magic) == 0 && state->layout == STATE_LAYOUT &&
           state->size == sizeof *state && state->gpu_count <= TRANCHE_SIM_MAX_GPUS;
}

static nvmlReturn_t map_state(machine *m, int descriptor) {
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        return NVML_ERROR_OPERATING_SYSTEM;
    }
    if (!S_ISREG(status.st_mode) || status.st_size != (off_t)sizeof(struct machine_state)) {
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    int protection = m->writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *mapped = mmap(NULL, sizeof(struct machine_state), protection, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) {
        return NVML_ERROR_OPERATING_SYSTEM;
    }
    m->state = mapped;
    m->device = status.st_dev;
    m->inode = status.st_ino;
    if (!header_is_valid(m->state)) {
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    for (unsigned int gpu = 0; gpu < m->state->gpu_count; gpu++) {
        m->boards[gpu] = board_find(m->state->gpus[gpu].board);
        if (m->boards[gpu] == NULL) {
            return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
        }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t machine_open(const char *path, machine **opened) {
    if (path == NULL || strlen(path) >= PATH_MAX) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    machine *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return NVML_ERROR_MEMORY;
    }
    if (realpath(path, m->path) == NULL) { /* the caller may change its working directory later */
        free(m);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    m->writable = true;
    int descriptor = open(m->path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0 && (errno == EACCES || errno == EROFS || errno == EPERM)) {
        m->writable = false;
        descriptor = open(m->path, O_RDONLY | O_CLOEXEC);
    }
    if (descriptor < 0) {
        free(m);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    nvmlReturn_t result = map_state(m, descriptor);
    close(descriptor);
    if (result != NVML_SUCCESS) {
        machine_close(m);
        return result;
    }
    *opened = m;
    return NVML_SUCCESS;
}

void machine_close(machine *m) {
    if (m->state != NULL) {
        munmap(m->state, sizeof *m->state);
    }
    free(m);
}

static nvmlReturn_t describe_gpu(struct machine_state *state, unsigned int gpu, const trancheSimGpuSpec_t *spec) {
    const struct board *board = board_find(spec->board);
    if (board == NULL || spec->swapped > 1) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct gpu_record *record = &state->gpus[gpu];
    snprintf(record->board, sizeof record->board, "%s", board->key);
    snprintf(record->name, sizeof record->name, "%s", spec->name[0] != '\0' ? spec->name : board->name);
    record->pci_device_id = spec->pciDeviceId != 0 ? spec->pciDeviceId : board->pci[0].device;
    record->pci_domain = spec->pciDomain;
    record->pci_bus = spec->pciBus;
    record->pci_device = spec->pciDevice;
    record->swapped = spec->swapped;
    record->numa_node = spec->numaNode;
    identify_gpu(state->seed, state->name, gpu, record->uuid, sizeof record->uuid, record->serial,
                 sizeof record->serial);
    record->copies[0].persistence = 1;
    record->copies[1].persistence = 1;
    return NVML_SUCCESS;
}

static nvmlReturn_t write_state(const char *path, const struct machine_state *state) {
    char draft[PATH_MAX];
    if (snprintf(draft, sizeof draft, "%s.%ld.draft", path, (long)getpid()) >= (int)sizeof draft) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    int descriptor = open(draft, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0) {
        return errno == EACCES || errno == EROFS ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_OPERATING_SYSTEM;
    }
    nvmlReturn_t result = NVML_SUCCESS;
    const char *bytes = (const char *)state;
    size_t written = 0;
    const size_t filled = offsetof(struct machine_state, lanes);
    while (written < filled) {
        ssize_t step = write(descriptor, bytes + written, filled - written);
        if (step < 0 && errno != EINTR) {
            result = NVML_ERROR_OPERATING_SYSTEM;
            break;
        }
        written += step > 0 ? (size_t)step : 0;
    }
    if (result == NVML_SUCCESS && ftruncate(descriptor, (off_t)sizeof *state) != 0) {
        result = NVML_ERROR_OPERATING_SYSTEM;
    }
    /* Every process must map it for writing: unprivileged ones count calls and attach as clients. */
    if (result == NVML_SUCCESS && fchmod(descriptor, 0666) != 0) {
        result = NVML_ERROR_OPERATING_SYSTEM;
    }
    close(descriptor);
    if (result == NVML_SUCCESS && link(draft, path) != 0) {
        result = errno == EEXIST ? NVML_ERROR_IN_USE : NVML_ERROR_OPERATING_SYSTEM;
    }
    unlink(draft);
    return result;
}

nvmlReturn_t trancheSimCreate(const char *path, const char *name, const trancheSimGpuSpec_t *gpus, unsigned int count,
                              double timeScale, unsigned long long seed) {
    if (path == NULL || name == NULL || gpus == NULL || count == 0 || count > TRANCHE_SIM_MAX_GPUS ||
        !(timeScale >= 0.0)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct machine_state *state = calloc(1, sizeof *state);
    if (state == NULL) {
        return NVML_ERROR_MEMORY;
    }
    memcpy(state->magic, STATE_MAGIC, sizeof state->magic);
    state->layout = STATE_LAYOUT;
    state->size = sizeof *state;
    snprintf(state->name, sizeof state->name, "%s", name);
    state->gpu_count = count;
    state->owner_uid = geteuid();
    state->seed = seed;
    uint64_t bits;
    memcpy(&bits, &timeScale, sizeof bits);
    atomic_store(&state->time_scale, bits);
    nvmlReturn_t result = NVML_SUCCESS;
    for (unsigned int gpu = 0; gpu < count && result == NVML_SUCCESS; gpu++) {
        result = describe_gpu(state, gpu, &gpus[gpu]);
    }
    if (result == NVML_SUCCESS) {
        result = write_state(path, state);
    }
    free(state);
    return result;
}

nvmlReturn_t trancheSimOpen(const char *path, trancheSimMachine_t *opened) {
    return opened == NULL ? NVML_ERROR_INVALID_ARGUMENT : machine_open(path, opened);
}

nvmlReturn_t trancheSimClose(trancheSimMachine_t m) {
    if (m == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    machine_close(m);
    return NVML_SUCCESS;
}
