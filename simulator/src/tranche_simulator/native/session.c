#define _GNU_SOURCE
#include "session.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const SYSTEM_STATE_PATH = "/run/tranche/simulator/state";

static pthread_mutex_t init_guard = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned int init_count;
static struct session *_Atomic current;

const char *trancheSimDefaultStatePath(void) {
    const char *path = getenv("TRANCHE_SIM_STATE");
    if (path != NULL && path[0] != '\0') {
        return path;
    }
    return access(SYSTEM_STATE_PATH, F_OK) == 0 ? SYSTEM_STATE_PATH : NULL;
}

static bool is_same_file(const machine *m, const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && status.st_ino == m->inode && status.st_dev == m->device;
}

/* The session of the last nvmlInit is replaced, not changed or unmapped: another thread may be inside a call. */
static nvmlReturn_t begin_session(void) {
    const char *path = trancheSimDefaultStatePath();
    if (path == NULL) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    struct session *last = atomic_load(&current);
    struct session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        return NVML_ERROR_MEMORY;
    }
    nvmlReturn_t result = NVML_SUCCESS;
    bool reuse = last != NULL && is_same_file(last->m, path);
    if (reuse) {
        session->m = last->m;
    } else {
        result = machine_open(path, &session->m);
    }
    if (result == NVML_SUCCESS) {
        result = view_from_environment(session->m, &session->view);
        if (result != NVML_SUCCESS && !reuse) {
            machine_close(session->m);
        }
    }
    if (result != NVML_SUCCESS) {
        free(session);
        return result;
    }
    atomic_store(&current, session);
    return NVML_SUCCESS;
}

static nvmlReturn_t initialise(const char *function) {
    pthread_mutex_lock(&init_guard);
    nvmlReturn_t result = NVML_SUCCESS;
    if (atomic_load(&init_count) == 0) {
        result = begin_session();
    }
    if (result == NVML_SUCCESS) {
        result = fault_check(atomic_load(&current)->m, function, TRANCHE_SIM_ANY_GPU);
    }
    if (result == NVML_SUCCESS) {
        atomic_fetch_add(&init_count, 1);
    }
    pthread_mutex_unlock(&init_guard);
    return result;
}

nvmlReturn_t nvmlInit(void) { return initialise(__func__); }

nvmlReturn_t nvmlInit_v2(void) { return initialise(__func__); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags; /* every flag relaxes what an initialisation without GPUs means; this one never fails for that */
    return initialise(__func__);
}

nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&init_guard);
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    if (atomic_load(&init_count) > 0) {
        atomic_fetch_sub(&init_count, 1);
        result = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&init_guard);
    return result;
}

nvmlReturn_t session_of_call(const struct session **session) {
    if (atomic_load(&init_count) == 0) {
        return NVML_ERROR_UNINITIALIZED;
    }
    *session = atomic_load(&current);
    return NVML_SUCCESS;
}

nvmlReturn_t enter(const char *function, const struct session **session) {
    nvmlReturn_t result = session_of_call(session);
    return result != NVML_SUCCESS ? result : fault_check((*session)->m, function, TRANCHE_SIM_ANY_GPU);
}

static nvmlReturn_t aim(const struct session *session, const char *function, const struct device_place *place,
                        struct target *target) {
    machine *m = session->m;
    if (place->gpu >= m->state->gpu_count || !session->view.visible[place->gpu]) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    memset(target, 0, sizeof *target);
    target->m = m;
    target->view = &session->view;
    target->board = m->boards[place->gpu];
    target->record = &m->state->gpus[place->gpu];
    target->place = *place;
    nvmlReturn_t fault = fault_check(m, function, place->gpu);
    if (fault != NVML_SUCCESS) {
        return fault;
    }
    if (atomic_load(&target->record->lost) != 0) {
        return NVML_ERROR_GPU_IS_LOST;
    }
    gpu_read(m, place->gpu, &target->state);
    return NVML_SUCCESS;
}

nvmlReturn_t enter_device(const char *function, nvmlDevice_t device, struct target *target) {
    const struct session *session;
    nvmlReturn_t result = session_of_call(&session);
    if (result != NVML_SUCCESS) {
        return result;
    }
    struct device_place place;
    if (!device_of_handle(device, &place)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    result = aim(session, function, &place, target);
    if (result != NVML_SUCCESS || !place.is_mig) {
        return result;
    }
    const struct gi_state *gi = &target->state.gis[place.gi];
    if (!gi->live || !gi->cis[place.ci].live ||
        !view_shows_mig(&session->view, place.gpu, place.gi, gi, place.ci)) {
        return NVML_ERROR_INVALID_ARGUMENT; /* the MIG device is gone */
    }
    target->gi = gi;
    target->profile = &target->board->gis[gi->profile];
    target->ci = &gi->cis[place.ci];
    target->ci_profile = &target->profile->cis[target->ci->profile];
    return NVML_SUCCESS;
}

nvmlReturn_t enter_gpu(const char *function, nvmlDevice_t device, struct target *target) {
    nvmlReturn_t result = enter_device(function, device, target);
    return result == NVML_SUCCESS && target->place.is_mig ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t enter_gpu_index(const char *function, unsigned int gpu, unsigned int gi, struct target *target) {
    const struct session *session;
    nvmlReturn_t result = session_of_call(&session);
    if (result != NVML_SUCCESS) {
        return result;
    }
    struct device_place place = {.gpu = gpu, .gi = gi, .ci = NO_INSTANCE};
    result = aim(session, function, &place, target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    return view_shows_gi(&session->view, gpu, gi) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t enter_gpu_instance(const char *function, nvmlGpuInstance_t instance, struct target *target,
                                unsigned int *id) {
    const struct session *session;
    unsigned int gpu;
    nvmlReturn_t result = session_of_call(&session);
    if (result != NVML_SUCCESS) {
        return result;
    }
    REQUIRE(gi_of_handle(instance, &gpu, id));
    return enter_gpu_index(function, gpu, *id, target);
}

nvmlReturn_t change_gpu(struct target *target, nvmlReturn_t (*change)(struct target *target, void *what), void *what) {
    unsigned int gpu = target->place.gpu;
    if (!caller_may_change(target->m) || target->view->only_mig[gpu]) {
        return NVML_ERROR_NO_PERMISSION;
    }
    int lock;
    nvmlReturn_t result = state_lock(target->m, LOCK_GPU + gpu, &lock);
    if (result != NVML_SUCCESS) {
        return result;
    }
    gpu_read(target->m, gpu, &target->state);
    result = change(target, what);
    state_unlock(lock);
    return result;
}

nvmlReturn_t give_text(char *buffer, unsigned int length, const char *text) {
    if (buffer == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    size_t size = strlen(text) + 1;
    if (size > length) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(buffer, text, size);
    return NVML_SUCCESS;
}
