#include "memory_limits.h"

#include <string.h>
#include <unistd.h>

#include "clients.h"
#include "driver_release.h"

enum { FIRST_RELEASE = 615 };
static const uint64_t NO_LIMIT = NVML_DEVICE_MEMORY_LIMIT_MAX;

static bool by_kernel(const machine *m) { return atomic_load(&m->state->limits_backend) == LIMITS_DMEM; }

static struct memory_limit *limit_of(const machine *m, unsigned int gpu, uint64_t group) {
    uint32_t in_use = atomic_load_explicit(&m->state->limits_in_use, memory_order_acquire);
    for (uint32_t i = 0; group != 0 && i < in_use && i < STATE_MAX_LIMITS; i++) {
        struct memory_limit *limit = &m->state->limits[i];
        if (atomic_load_explicit(&limit->used, memory_order_acquire) != 0 && limit->gpu == gpu &&
            limit->chain.groups[0] == group) {
            return limit;
        }
    }
    return NULL;
}

static uint64_t soft_of(const struct memory_limit *limit) { return limit->values[atomic_load(&limit->current) & 1].soft; }

static uint64_t hard_of(const struct memory_limit *limit) { return limit->values[atomic_load(&limit->current) & 1].hard; }

/* The entry that counts for a group in the driver's own table. */
static struct memory_limit *governing(const machine *m, unsigned int gpu, const struct group_chain *groups) {
    struct memory_limit *limit = NULL;
    for (unsigned int depth = 0; depth < GROUP_MAX_DEPTH && limit == NULL; depth++) {
        limit = limit_of(m, gpu, groups->groups[depth]);
    }
    return limit;
}

static bool is_within(const struct group_chain *chain, uint64_t group) {
    for (unsigned int depth = 0; depth < GROUP_MAX_DEPTH; depth++) {
        if (chain->groups[depth] == group) {
            return true;
        }
    }
    return false;
}

/* Bytes that count for an entry. */
static uint64_t used_of(const machine *m, const struct memory_limit *limit) {
    uint32_t in_use = atomic_load_explicit(&m->state->clients_in_use, memory_order_acquire);
    uint64_t used = 0;
    int reader;
    if (state_lock_reader(m, &reader) != NVML_SUCCESS) {
        return 0;
    }
    for (unsigned int slot = 0; slot < in_use && slot < STATE_MAX_CLIENTS; slot++) {
        const struct group_chain *chain = &m->state->client_groups[slot];
        struct client_record record;
        if (client_read(m, reader, slot, &record) && record.gpu == limit->gpu && record.gpu_instance == NO_INSTANCE &&
            (by_kernel(m) ? is_within(chain, limit->chain.groups[0]) : governing(m, limit->gpu, chain) == limit)) {
            used += record.memory_bytes;
        }
    }
    close(reader);
    return used;
}

static bool stays_below(const machine *m, const struct memory_limit *limit, uint64_t bytes) {
    uint64_t hard = hard_of(limit);
    if (hard == NO_LIMIT) {
        return true;
    }
    uint64_t used = used_of(m, limit);
    return used <= hard && bytes <= hard - used;
}

bool limits_allow(const machine *m, unsigned int gpu, const struct group_chain *groups, uint64_t bytes) {
    if (atomic_load(&m->state->limits_backend) == LIMITS_LAX) {
        return true;
    }
    if (!by_kernel(m)) {
        const struct memory_limit *limit = governing(m, gpu, groups);
        return limit == NULL || stays_below(m, limit, bytes);
    }
    for (unsigned int depth = 0; depth < GROUP_MAX_DEPTH; depth++) {
        const struct memory_limit *limit = limit_of(m, gpu, groups->groups[depth]);
        if (limit != NULL && !stays_below(m, limit, bytes)) {
            return false;
        }
    }
    return true;
}

bool limits_view(const machine *m, unsigned int gpu, const struct group_chain *groups, uint64_t *hard, uint64_t *used) {
    const struct memory_limit *limit = limit_of(m, gpu, groups->groups[0]);
    if (limit == NULL || hard_of(limit) == NO_LIMIT) {
        return false;
    }
    *hard = hard_of(limit);
    *used = used_of(m, limit);
    return true;
}

static bool has_right(const machine *m, unsigned int gpu, const struct group_chain *groups, uint64_t bytes) {
    const struct memory_limit *limit = governing(m, gpu, groups);
    return limit != NULL && used_of(m, limit) + bytes <= soft_of(limit);
}

bool limits_evict(machine *m, unsigned int gpu, const struct group_chain *groups, uint64_t bytes) {
    uint32_t in_use = atomic_load_explicit(&m->state->clients_in_use, memory_order_acquire);
    unsigned int victim = STATE_MAX_CLIENTS;
    uint64_t most = 0;
    int reader;
    if (!has_right(m, gpu, groups, bytes) || state_lock_reader(m, &reader) != NVML_SUCCESS) {
        return false;
    }
    for (unsigned int slot = 0; slot < in_use && slot < STATE_MAX_CLIENTS; slot++) {
        struct client_record record;
        const struct memory_limit *limit = governing(m, gpu, &m->state->client_groups[slot]);
        if (limit == NULL || !client_read(m, reader, slot, &record) || record.gpu != gpu || record.mps_server == 0) {
            continue;
        }
        uint64_t used = used_of(m, limit), soft = soft_of(limit);
        if (used > soft && used - soft > most && record.memory_bytes > 0) {
            most = used - soft;
            victim = slot;
        }
    }
    close(reader);
    if (victim == STATE_MAX_CLIENTS) {
        return false;
    }
    atomic_store(&m->state->clients[victim].evicted, 1);
    atomic_store(&m->state->clients[victim].memory_bytes, 0);
    return true;
}

/* What every call about limits needs: a driver that has them, and a GPU that is not in parts. */
static nvmlReturn_t check_support(const struct target *target) {
    if (driver_release(target->m) < FIRST_RELEASE) {
        return NVML_ERROR_FUNCTION_NOT_FOUND; /* such a driver's library does not have the symbol */
    }
    bool off = atomic_load(&target->m->state->limits_backend) == LIMITS_OFF;
    return off || target->place.is_mig || target->state.mig_current ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static nvmlReturn_t find_group(const char *folder, struct group_chain *chain) {
    REQUIRE(folder != NULL && folder[0] == '/');
    if (access(folder, F_OK) != 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    return group_of_folder(folder, chain) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* The caller holds LOCK_TABLES. */
static struct memory_limit *new_limit(machine *m, unsigned int gpu, const struct group_chain *chain) {
    for (uint32_t i = 0; i < STATE_MAX_LIMITS; i++) {
        struct memory_limit *limit = &m->state->limits[i];
        if (atomic_load(&limit->used) == 0) {
            limit->gpu = gpu;
            limit->chain = *chain;
            limit->values[0].soft = limit->values[1].soft = 0;
            limit->values[0].hard = limit->values[1].hard = NO_LIMIT;
            if (atomic_load(&m->state->limits_in_use) <= i) {
                atomic_store(&m->state->limits_in_use, i + 1);
            }
            atomic_store_explicit(&limit->used, 1, memory_order_release);
            return limit;
        }
    }
    return NULL;
}

static nvmlReturn_t write_limit(machine *m, unsigned int gpu, const struct group_chain *chain, uint64_t soft,
                                uint64_t hard) {
    struct memory_limit *limit = limit_of(m, gpu, chain->groups[0]);
    if (soft == 0 && hard == NO_LIMIT) {
        if (limit != NULL) {
            atomic_store(&limit->used, 0);
        }
        return NVML_SUCCESS;
    }
    limit = limit != NULL ? limit : new_limit(m, gpu, chain);
    if (limit == NULL) {
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    uint32_t next = atomic_load(&limit->current) + 1;
    limit->values[next & 1].soft = soft;
    limit->values[next & 1].hard = hard;
    atomic_store(&limit->current, next);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
    struct target target;
    ENTER_DEVICE(device, &target);
    count_change(target.m, CHANGE_SET_MEMORY_LIMITS);
    REQUIRE(limits != NULL && limits->softLimit <= limits->hardLimit);
    nvmlReturn_t result = check_support(&target);
    if (result == NVML_SUCCESS && !caller_may_change(target.m)) {
        result = NVML_ERROR_NO_PERMISSION;
    }
    struct group_chain chain;
    if (result == NVML_SUCCESS) {
        result = find_group(limits->nameSpace, &chain);
    }
    int tables;
    if (result != NVML_SUCCESS || (result = state_lock(target.m, LOCK_TABLES, &tables)) != NVML_SUCCESS) {
        return result;
    }
    result = write_limit(target.m, target.place.gpu, &chain, limits->softLimit, limits->hardLimit);
    state_unlock(tables);
    return result;
}

/* The kernel adds what a group is guaranteed to all groups above it, and does not take it back when the group is removed. */
static uint64_t guaranteed_below(const machine *m, unsigned int gpu, uint64_t group) {
    uint32_t in_use = atomic_load_explicit(&m->state->limits_in_use, memory_order_acquire);
    uint64_t soft = 0;
    for (uint32_t i = 0; i < in_use && i < STATE_MAX_LIMITS; i++) {
        const struct memory_limit *limit = &m->state->limits[i];
        if (atomic_load(&limit->used) != 0 && limit->gpu == gpu && is_within(&limit->chain, group)) {
            soft += soft_of(limit);
        }
    }
    return soft;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(limits != NULL);
    struct group_chain chain;
    nvmlReturn_t result = check_support(&target);
    if (result == NVML_SUCCESS) {
        result = find_group(limits->nameSpace, &chain);
    }
    if (result != NVML_SUCCESS) {
        return result;
    }
    const struct memory_limit *limit = limit_of(target.m, target.place.gpu, chain.groups[0]);
    if (limit == NULL && !by_kernel(target.m)) {
        return NVML_ERROR_NOT_FOUND;
    }
    struct memory_limit none = {.gpu = target.place.gpu, .chain = chain, .values = {{0, NO_LIMIT}, {0, NO_LIMIT}}};
    limit = limit != NULL ? limit : &none;
    limits->softLimit = by_kernel(target.m) ? guaranteed_below(target.m, target.place.gpu, chain.groups[0]) : soft_of(limit);
    limits->hardLimit = hard_of(limit);
    limits->currentUsed = used_of(target.m, limit);
    return NVML_SUCCESS;
}
