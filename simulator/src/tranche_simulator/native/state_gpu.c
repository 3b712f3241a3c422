#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "capability_files.h"

/* What a boot leaves of a GPU: no instance, and the MIG mode only where its family keeps it. */
static void boot(const machine *m, unsigned int gpu, struct gpu_state *state) {
    if (m->boards[gpu]->family->mode_survives_boot) {
        gpu_apply_pending_mode(m, gpu, state);
    } else {
        state->mig_current = NVML_DEVICE_MIG_DISABLE;
        state->mig_pending = NVML_DEVICE_MIG_DISABLE;
    }
    memset(state->gis, 0, sizeof state->gis);
    state->compute_mode = NVML_COMPUTEMODE_DEFAULT;
    state->timeslice = 0;
}

void gpu_apply_pending_mode(const machine *m, unsigned int gpu, struct gpu_state *state) {
    if (atomic_load(&m->state->gpus[gpu].stuck_mode) == 0) {
        state->mig_current = state->mig_pending;
    }
}

void gpu_read(const machine *m, unsigned int gpu, struct gpu_state *copy) {
    struct gpu_record *record = &m->state->gpus[gpu];
    uint64_t before;
    uint64_t after = atomic_load_explicit(&record->generation, memory_order_acquire);
    do {
        before = after;
        memcpy(copy, &record->copies[before & 1u], sizeof *copy);
        atomic_thread_fence(memory_order_acquire);
        after = atomic_load_explicit(&record->generation, memory_order_relaxed);
        /* The copy read is rewritten only once the generation has moved on. */
    } while (after != before);
    uint64_t boots = atomic_load(&m->state->boots);
    if (copy->boot != boots) {
        boot(m, gpu, copy);
        copy->boot = boots;
    }
}

uint64_t monotonic_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void gpu_commit(machine *m, unsigned int gpu, const struct gpu_state *next) {
    struct gpu_record *record = &m->state->gpus[gpu];
    uint64_t generation = atomic_load_explicit(&record->generation, memory_order_relaxed);
    memcpy(&record->copies[(generation + 1) & 1u], next, sizeof *next);
    atomic_store_explicit(&record->generation, generation + 1, memory_order_release);
    atomic_store(&m->state->changed_at, monotonic_nanoseconds());
    capability_files_update(m, gpu, next);
}
