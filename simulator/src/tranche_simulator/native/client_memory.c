#include "clients.h"
#include "memory_limits.h"

uint64_t memory_left(const machine *m, unsigned int gpu, unsigned int gi) {
    const struct board *board = m->boards[gpu];
    struct usage used;
    usage_of(m, gpu, gi, NO_INSTANCE, &used); /* compute instances share their GPU instance's memory */
    uint64_t total = board->memory_mib - board->reserved_mib;
    if (gi != NO_INSTANCE) {
        struct gpu_state state;
        gpu_read(m, gpu, &state);
        total = state.gis[gi].live ? board->gis[state.gis[gi].profile].memory_mib : 0;
    }
    total <<= 20;
    return used.memory_bytes < total ? total - used.memory_bytes : 0;
}

bool memory_make_room(machine *m, unsigned int gpu, unsigned int gi, const struct group_chain *groups, uint64_t bytes) {
    bool limited = gi == NO_INSTANCE; /* limits of control groups are of whole GPUs */
    if (limited && !limits_allow(m, gpu, groups, bytes)) {
        return false;
    }
    while (bytes > memory_left(m, gpu, gi)) {
        if (!limited || !limits_evict(m, gpu, groups, bytes)) {
            return false;
        }
    }
    return true;
}

nvmlReturn_t client_resize(machine *m, unsigned int client, uint64_t memory_bytes) {
    struct client_record *record = &m->state->clients[client];
    uint64_t present = atomic_load(&record->memory_bytes);
    if (memory_bytes <= present) {
        atomic_store(&record->memory_bytes, memory_bytes);
        return NVML_SUCCESS;
    }
    int lock;
    nvmlReturn_t result = state_lock(m, LOCK_MEMORY + record->gpu, &lock);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (memory_make_room(m, record->gpu, record->gpu_instance, &m->state->client_groups[client],
                         memory_bytes - present)) {
        atomic_store(&record->memory_bytes, memory_bytes);
    } else {
        result = NVML_ERROR_MEMORY;
    }
    state_unlock(lock);
    return result;
}
