#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "session.h"

static const uint64_t SUPPORTED_EVENTS = 0x1 | 0x2 | 0x4 | NVML_EVENT_TYPE_XID_CRITICAL_ERROR | 0x10;
static const double POLL_SECONDS = 0.02;

/* What a set has registered for one GPU, and how far it has read that GPU's events. */
struct subscription {
    uint64_t types;
    uint64_t next;
};

struct nvmlEventSet_st {
    pthread_mutex_t guard;
    machine *m;
    struct subscription gpus[TRANCHE_SIM_MAX_GPUS];
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(set != NULL);
    struct nvmlEventSet_st *created = calloc(1, sizeof *created);
    if (created == NULL) {
        return NVML_ERROR_MEMORY;
    }
    pthread_mutex_init(&created->guard, NULL);
    created->m = session->m;
    *set = created;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(set != NULL);
    pthread_mutex_destroy(&set->guard);
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(types != NULL);
    *types = SUPPORTED_EVENTS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(set != NULL);
    if ((types & ~SUPPORTED_EVENTS) != 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    REQUIRE(set->m == target.m);
    pthread_mutex_lock(&set->guard);
    struct subscription *subscription = &set->gpus[target.place.gpu];
    if (subscription->types == 0) {
        subscription->next = atomic_load_explicit(&target.record->event_count, memory_order_acquire);
    }
    subscription->types |= types;
    pthread_mutex_unlock(&set->guard);
    return NVML_SUCCESS;
}

static bool next_of_gpu(struct gpu_record *record, struct subscription *subscription, struct event_record *event) {
    for (;;) {
        uint64_t count = atomic_load_explicit(&record->event_count, memory_order_acquire);
        if (count - subscription->next >= STATE_EVENT_RING) {
            /* Slower than the ring: the oldest are lost, and the place written next is not safe to read. */
            subscription->next = count - STATE_EVENT_RING + 1;
        }
        if (subscription->next == count) {
            return false;
        }
        *event = record->events[subscription->next % STATE_EVENT_RING];
        atomic_thread_fence(memory_order_acquire);
        uint64_t now = atomic_load_explicit(&record->event_count, memory_order_relaxed);
        if (now - subscription->next >= STATE_EVENT_RING) {
            continue; /* it may have been overwritten while it was copied */
        }
        subscription->next++;
        if ((event->type & subscription->types) != 0) {
            return true;
        }
    }
}

static bool take_event(struct nvmlEventSet_st *set, nvmlEventData_t *data) {
    bool found = false;
    pthread_mutex_lock(&set->guard);
    for (unsigned int gpu = 0; gpu < set->m->state->gpu_count && !found; gpu++) {
        struct event_record event;
        if (set->gpus[gpu].types != 0 && next_of_gpu(&set->m->state->gpus[gpu], &set->gpus[gpu], &event)) {
            *data = (nvmlEventData_t){
                .device = device_handle(gpu),
                .eventType = event.type,
                .eventData = event.data,
                .gpuInstanceId = event.gpu_instance,
                .computeInstanceId = event.compute_instance,
            };
            found = true;
        }
    }
    pthread_mutex_unlock(&set->guard);
    return found;
}

static bool lost_gpu_registered(struct nvmlEventSet_st *set) {
    for (unsigned int gpu = 0; gpu < set->m->state->gpu_count; gpu++) {
        if (set->gpus[gpu].types != 0 && atomic_load(&set->m->state->gpus[gpu].lost) != 0) {
            return true;
        }
    }
    return false;
}

static double monotonic_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static nvmlReturn_t wait_for_event(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    REQUIRE(set != NULL && data != NULL);
    double deadline = monotonic_seconds() + timeout_ms / 1000.0;
    for (;;) {
        if (take_event(set, data)) {
            return NVML_SUCCESS;
        }
        if (lost_gpu_registered(set)) {
            return NVML_ERROR_GPU_IS_LOST;
        }
        double left = deadline - monotonic_seconds();
        if (left <= 0.0) {
            return NVML_ERROR_TIMEOUT;
        }
        sleep_seconds(left < POLL_SECONDS ? left : POLL_SECONDS);
    }
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutMs) {
    const struct session *session;
    ENTER(&session);
    return wait_for_event(set, data, timeoutMs);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutMs) {
    const struct session *session;
    ENTER(&session);
    return wait_for_event(set, data, timeoutMs);
}

nvmlReturn_t trancheSimInjectXid(trancheSimMachine_t m, unsigned int gpu, unsigned int gpuInstanceId,
                                 unsigned int computeInstanceId, unsigned long long xid) {
    if (m == NULL || gpu >= m->state->gpu_count) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    int lock;
    nvmlReturn_t result = state_lock(m, LOCK_TABLES, &lock);
    if (result != NVML_SUCCESS) {
        return result;
    }
    struct gpu_record *record = &m->state->gpus[gpu];
    uint64_t count = atomic_load(&record->event_count);
    record->events[count % STATE_EVENT_RING] = (struct event_record){
        .type = NVML_EVENT_TYPE_XID_CRITICAL_ERROR,
        .data = xid,
        .gpu_instance = gpuInstanceId,
        .compute_instance = computeInstanceId,
    };
    atomic_store_explicit(&record->event_count, count + 1, memory_order_release);
    state_unlock(lock);
    return NVML_SUCCESS;
}
