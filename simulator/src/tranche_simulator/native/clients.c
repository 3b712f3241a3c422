#define _GNU_SOURCE
#include "clients.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compute.h"
#include "mig_devices.h"

enum { NO_LOCK = -1 };

/* The slots that this process holds, of whichever machines: each with the lock that keeps it alive. */
static pthread_mutex_t own_guard = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const struct machine_state *state; /* NULL: this entry is free */
    unsigned int slot;
    int lock;
} own[STATE_MAX_CLIENTS];

static bool slot_is_live(int reader, unsigned int slot, uint32_t kind) {
    return kind == CLIENT_PHANTOM || (kind == CLIENT_LIVE && state_is_locked(reader, LOCK_CLIENT + slot));
}

bool client_read(const machine *m, int reader, unsigned int slot, struct client_record *copy) {
    struct client_record *record = &m->state->clients[slot];
    for (;;) {
        uint32_t turn = atomic_load_explicit(&record->turn, memory_order_acquire);
        uint32_t kind = atomic_load_explicit(&record->kind, memory_order_acquire);
        if (kind == CLIENT_FREE) {
            return false;
        }
        memcpy(copy, record, sizeof *copy);
        bool live = slot_is_live(reader, slot, kind) && copy->boot == atomic_load(&m->state->boots);
        atomic_thread_fence(memory_order_acquire);
        if (turn == atomic_load_explicit(&record->turn, memory_order_relaxed) &&
            kind == atomic_load_explicit(&record->kind, memory_order_relaxed)) {
            return live;
        }
    }
}

unsigned int clients_alive(const machine *m, trancheSimClient_t *clients, unsigned int capacity) {
    uint32_t in_use = atomic_load_explicit(&m->state->clients_in_use, memory_order_acquire);
    int reader;
    if (in_use == 0 || state_lock_reader(m, &reader) != NVML_SUCCESS) {
        return 0;
    }
    unsigned int count = 0;
    for (unsigned int slot = 0; slot < in_use && slot < STATE_MAX_CLIENTS; slot++) {
        struct client_record record;
        if (!client_read(m, reader, slot, &record)) {
            continue;
        }
        if (count < capacity) {
            trancheSimClient_t *client = &clients[count];
            memset(client, 0, sizeof *client);
            client->pid = record.pid;
            client->gpu = record.gpu;
            client->gpuInstanceId = record.gpu_instance;
            client->computeInstanceId = record.compute_instance;
            client->phantom = atomic_load(&record.kind) == CLIENT_PHANTOM;
            client->memoryBytes = record.memory_bytes;
            client->utilizationPercent = client_is_computing(m, slot) ? 100 : record.utilization;
            client->computeNanoseconds = atomic_load(&record.computed);
            client->mpsServer = record.mps_server;
            memcpy(client->name, record.name, sizeof client->name);
        }
        count++;
    }
    close(reader);
    return count;
}

void usage_of(const machine *m, unsigned int gpu, unsigned int gi, unsigned int ci, struct usage *usage) {
    memset(usage, 0, sizeof *usage);
    if (atomic_load(&m->state->clients_in_use) == 0) {
        return;
    }
    trancheSimClient_t *clients = malloc(STATE_MAX_CLIENTS * sizeof *clients);
    if (clients == NULL) {
        return;
    }
    unsigned int count = clients_alive(m, clients, STATE_MAX_CLIENTS);
    for (unsigned int i = 0; i < count; i++) {
        const trancheSimClient_t *client = &clients[i];
        if (client->gpu == gpu && (gi == NO_INSTANCE || client->gpuInstanceId == gi) &&
            (ci == NO_INSTANCE || client->computeInstanceId == ci)) {
            usage->clients++;
            usage->memory_bytes += client->memoryBytes;
            usage->utilization += client->utilizationPercent;
        }
    }
    usage->utilization = usage->utilization < 100 ? usage->utilization : 100;
    free(clients);
}

unsigned int whole_gpu_clients(const machine *m, unsigned int gpu) {
    struct usage all;
    usage_of(m, gpu, NO_INSTANCE, NO_INSTANCE, &all);
    unsigned int in_instances = 0;
    for (unsigned int gi = 0; gi < BOARD_MAX_GI_IDS && all.clients > 0; gi++) {
        struct usage part;
        usage_of(m, gpu, gi, NO_INSTANCE, &part);
        in_instances += part.clients;
    }
    return all.clients - in_instances;
}

static bool remember_own(const machine *m, unsigned int slot, int lock) {
    bool found = false;
    pthread_mutex_lock(&own_guard);
    for (unsigned int i = 0; i < STATE_MAX_CLIENTS && !found; i++) {
        if (own[i].state == NULL) {
            own[i].state = m->state;
            own[i].slot = slot;
            own[i].lock = lock;
            found = true;
        }
    }
    pthread_mutex_unlock(&own_guard);
    return found;
}

/* Hands the caller the lock of a slot that this process holds; NO_LOCK when it holds none. */
static int forget_own(const machine *m, unsigned int slot) {
    int lock = NO_LOCK;
    pthread_mutex_lock(&own_guard);
    for (unsigned int i = 0; i < STATE_MAX_CLIENTS && lock == NO_LOCK; i++) {
        if (own[i].state == m->state && own[i].slot == slot) {
            lock = own[i].lock;
            own[i].state = NULL;
        }
    }
    pthread_mutex_unlock(&own_guard);
    return lock;
}

/* What a client is to the device. */
struct burden {
    uint64_t memory_bytes;
    uint32_t utilization;
    struct mps_route route;
    struct group_chain groups;
};

static void fill(struct client_record *record, const machine *m, const struct device_place *place, uint32_t pid,
                 const char *name, const struct burden *burden) {
    record->boot = atomic_load(&m->state->boots);
    record->pid = pid;
    record->gpu = place->gpu;
    record->gpu_instance = place->gi;
    record->compute_instance = place->ci;
    atomic_store(&record->memory_bytes, burden->memory_bytes);
    record->utilization = burden->utilization;
    record->mps_server = burden->route.server;
    record->mps_client = burden->route.client;
    atomic_store(&record->computed, 0);
    atomic_store(&record->evicted, 0);
    m->state->client_groups[record - m->state->clients] = burden->groups;
    snprintf(record->name, sizeof record->name, "%s", name);
}

/* The caller holds LOCK_TABLES. A live slot's lock is returned in `lock` (NO_LOCK for a phantom). */
static nvmlReturn_t take_slot(machine *m, uint32_t kind, unsigned int *taken, int *lock) {
    int reader;
    nvmlReturn_t result = state_lock_reader(m, &reader);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (unsigned int slot = 0; slot < STATE_MAX_CLIENTS; slot++) {
        struct client_record *record = &m->state->clients[slot];
        uint32_t was = atomic_load(&record->kind);
        bool old_boot = record->boot != atomic_load(&m->state->boots);
        if (was == CLIENT_PHANTOM ? !old_boot : state_is_locked(reader, LOCK_CLIENT + slot)) {
            continue;
        }
        atomic_store(&record->kind, CLIENT_FREE);
        atomic_fetch_add(&record->turn, 1);
        *lock = NO_LOCK;
        if (kind == CLIENT_LIVE && state_try_lock(m, LOCK_CLIENT + slot, lock) != NVML_SUCCESS) {
            continue;
        }
        *taken = slot;
        result = NVML_SUCCESS;
        break;
    }
    close(reader);
    return result;
}

static nvmlReturn_t add_client(machine *m, uint32_t kind, const struct device_place *place, uint32_t pid,
                               const char *name, const struct burden *burden, unsigned int *taken) {
    int tables;
    nvmlReturn_t result = state_lock(m, LOCK_TABLES, &tables);
    if (result != NVML_SUCCESS) {
        return result;
    }
    unsigned int slot;
    int lock;
    result = take_slot(m, kind, &slot, &lock);
    if (result == NVML_SUCCESS && kind == CLIENT_LIVE && !remember_own(m, slot, lock)) {
        state_unlock(lock);
        result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    if (result == NVML_SUCCESS) {
        fill(&m->state->clients[slot], m, place, pid, name, burden);
        if (atomic_load(&m->state->clients_in_use) <= slot) {
            atomic_store(&m->state->clients_in_use, slot + 1);
        }
        atomic_store_explicit(&m->state->clients[slot].kind, kind, memory_order_release);
        if (taken != NULL) {
            *taken = slot;
        }
    }
    state_unlock(tables);
    return result;
}

static const char *own_name(char *name, size_t size) {
    snprintf(name, size, "%s", program_invocation_short_name);
    return name;
}

/* The caller holds the GPU's lock. */
static nvmlReturn_t attach_to(machine *m, const struct device_place *place, const struct burden *burden,
                              unsigned int *client) {
    int memory;
    nvmlReturn_t result = state_lock(m, LOCK_MEMORY + place->gpu, &memory);
    if (result != NVML_SUCCESS) {
        return result;
    }
    char name[64];
    result = memory_make_room(m, place->gpu, place->gi, &burden->groups, burden->memory_bytes)
                 ? add_client(m, CLIENT_LIVE, place, (uint32_t)getpid(), own_name(name, sizeof name), burden, client)
                 : NVML_ERROR_MEMORY;
    state_unlock(memory);
    return result;
}

nvmlReturn_t client_attach(machine *m, const char *uuid, uint64_t memory_bytes, uint32_t utilization,
                           struct mps_route route, unsigned int *client) {
    struct device_place place;
    if (!find_by_uuid(m, uuid, &place)) {
        return NVML_ERROR_NOT_FOUND;
    }
    int lock;
    nvmlReturn_t result = state_lock(m, LOCK_GPU + place.gpu, &lock);
    if (result != NVML_SUCCESS) {
        return result;
    }
    struct gpu_state state;
    gpu_read(m, place.gpu, &state);
    struct burden burden = {.memory_bytes = memory_bytes, .utilization = utilization, .route = route};
    group_of_process(&burden.groups);
    if (!find_by_uuid(m, uuid, &place)) {
        result = NVML_ERROR_NOT_FOUND; /* destroyed while this call waited for the GPU */
    } else if (atomic_load(&m->state->gpus[place.gpu].lost) != 0) {
        result = NVML_ERROR_GPU_IS_LOST;
    } else if (!place.is_mig && state.mig_current != NVML_DEVICE_MIG_DISABLE) {
        result = NVML_ERROR_INVALID_STATE;
    } else {
        result = attach_to(m, &place, &burden, client);
    }
    state_unlock(lock);
    return result;
}

nvmlReturn_t trancheSimAttach(trancheSimMachine_t m, const char *uuid, unsigned long long memoryBytes,
                              unsigned int utilizationPercent, unsigned int *client) {
    if (m == NULL || uuid == NULL || client == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return client_attach(m, uuid, memoryBytes, utilizationPercent, (struct mps_route){0}, client);
}

nvmlReturn_t trancheSimDetach(trancheSimMachine_t m, unsigned int client) {
    if (m == NULL || client >= STATE_MAX_CLIENTS) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    int lock = forget_own(m, client);
    if (lock == NO_LOCK) {
        return NVML_ERROR_NOT_FOUND;
    }
    state_unlock(lock); /* without its lock the slot counts as free */
    return NVML_SUCCESS;
}

unsigned int clients_through(const machine *m, struct mps_route route, unsigned int *slots, unsigned int room) {
    unsigned int count = 0;
    uint32_t in_use = atomic_load(&m->state->clients_in_use);
    for (uint32_t slot = 0; slot < in_use && slot < STATE_MAX_CLIENTS && count < room; slot++) {
        const struct client_record *record = &m->state->clients[slot];
        if (atomic_load(&record->kind) == CLIENT_LIVE && record->mps_server == route.server &&
            record->mps_client == route.client) {
            slots[count++] = slot;
        }
    }
    return count;
}

void clients_end(machine *m, struct mps_route route) {
    int tables;
    if (state_lock(m, LOCK_TABLES, &tables) != NVML_SUCCESS) {
        return;
    }
    unsigned int slots[STATE_MAX_CLIENTS];
    for (unsigned int left = clients_through(m, route, slots, STATE_MAX_CLIENTS); left > 0; left--) {
        /* No other process gets the slot before this one releases its lock. */
        atomic_store(&m->state->clients[slots[left - 1]].kind, CLIENT_FREE);
    }
    state_unlock(tables);
}

nvmlReturn_t trancheSimInjectBusy(trancheSimMachine_t m, const char *uuid, unsigned int pid, const char *name,
                                  unsigned long long memoryBytes) {
    struct device_place place;
    if (m == NULL || uuid == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!find_by_uuid(m, uuid, &place)) {
        return NVML_ERROR_NOT_FOUND;
    }
    int lock;
    nvmlReturn_t result = state_lock(m, LOCK_GPU + place.gpu, &lock);
    if (result != NVML_SUCCESS) {
        return result;
    }
    struct burden burden = {.memory_bytes = memoryBytes, .utilization = 100};
    result = find_by_uuid(m, uuid, &place)
                 ? add_client(m, CLIENT_PHANTOM, &place, pid, name != NULL ? name : "phantom", &burden, NULL)
                 : NVML_ERROR_NOT_FOUND;
    state_unlock(lock);
    return result;
}

nvmlReturn_t trancheSimListClients(trancheSimMachine_t m, trancheSimClient_t *clients, unsigned int *count) {
    if (m == NULL || count == NULL || (clients == NULL && *count > 0)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned int gpu = 0; gpu < m->state->gpu_count; gpu++) {
        compute_settle(m, gpu);
    }
    unsigned int capacity = *count;
    *count = clients_alive(m, clients, capacity);
    return *count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
