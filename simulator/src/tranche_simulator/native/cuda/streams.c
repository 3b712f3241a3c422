#define _GNU_SOURCE
#include "streams.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "events.h"
#include "pools.h"

enum { NON_BLOCKING = 1, MAX_FAULTS = 16 };
static const uint64_t LONGEST_SLEEP = 5000000; /* nanoseconds: after that a process may have died and freed its time */
static const CUstream LEGACY = (CUstream)1, PER_THREAD = (CUstream)2;

static CUstream all;
static unsigned long long last_id;
static unsigned long long last_thread;
static _Thread_local unsigned long long thread_number;

static struct {
    struct milestone milestone;
    CUresult fault;
} faults[MAX_FAULTS];
static unsigned int fault_count;

static bool is_gone(const struct milestone *milestone) {
    if (milestone->lane == NO_LANE || milestone->item == UINT64_MAX) {
        return true;
    }
    const struct lane *lane = &driver.m->state->lanes[milestone->lane];
    return atomic_load(&lane->used) == 0 || atomic_load(&lane->turn) != milestone->turn;
}

static CUresult look(const struct milestone *milestone, struct lane_sight *sight) {
    *sight = (struct lane_sight){.done = true};
    if (is_gone(milestone)) {
        return CUDA_SUCCESS;
    }
    return lane_look(driver.m, milestone->lane, milestone->item, sight) == NVML_SUCCESS ? CUDA_SUCCESS
                                                                                       : CUDA_ERROR_UNKNOWN;
}

/* Faults of kernels that have ended. */
static CUresult strike(void) {
    for (unsigned int i = 0; i < fault_count && driver.fault == CUDA_SUCCESS; i++) {
        struct lane_sight sight;
        if (look(&faults[i].milestone, &sight) == CUDA_SUCCESS && sight.done) {
            driver_fault(faults[i].fault);
        }
    }
    return driver.fault;
}

CUresult fault_schedule(const struct milestone *milestone, CUresult fault) {
    if (fault_count < MAX_FAULTS) {
        faults[fault_count].milestone = *milestone;
        faults[fault_count++].fault = fault;
    }
    return CUDA_SUCCESS;
}

CUresult milestone_query(const struct milestone *milestone) {
    struct lane_sight sight;
    CUresult result = look(milestone, &sight);
    if (result == CUDA_SUCCESS) {
        result = strike();
    }
    return result == CUDA_SUCCESS && !sight.done ? CUDA_ERROR_NOT_READY : result;
}

CUresult milestone_wait(const struct milestone *milestone) {
    for (;;) {
        struct lane_sight sight;
        CUresult result = look(milestone, &sight);
        if (result == CUDA_SUCCESS) {
            result = strike();
        }
        if (result != CUDA_SUCCESS || sight.done) {
            return result;
        }
        uint64_t pause = sight.wait < LONGEST_SLEEP ? sight.wait : LONGEST_SLEEP;
        call_pause();
        sleep_seconds((double)pause / 1e9);
        call_resume();
        result = driver_health();
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
}

/* Events take their time from items that the lane is about to forget. */
static void collect_event(CUstream stream, uint64_t item) {
    CUevent *event = &stream->events[item % STATE_LANE_DEPTH];
    if (*event != NULL) {
        struct lane_sight sight;
        if (look(&(*event)->milestone, &sight) == CUDA_SUCCESS && sight.done) {
            event_stamp(*event, sight.finished_at);
        }
        *event = NULL;
    }
}

void stream_forget_event(CUevent event) {
    for (CUstream stream = all; stream != NULL; stream = stream->next) {
        for (unsigned int i = 0; i < STATE_LANE_DEPTH; i++) {
            stream->events[i] = stream->events[i] == event ? NULL : stream->events[i];
        }
    }
}

static bool is_idle(const struct milestone *last) { return is_gone(last) || !lane_is_busy(driver.m, last->lane); }

/* Ends streams that were destroyed and have nothing left to do. */
static void reap(void) {
    for (CUstream *place = &all; *place != NULL;) {
        CUstream stream = *place;
        struct lane_sight sight;
        if (!stream->destroyed || look(&stream->last, &sight) != CUDA_SUCCESS || !sight.done) {
            place = &stream->next;
            continue;
        }
        for (unsigned int i = 0; i < STATE_LANE_DEPTH; i++) {
            collect_event(stream, i);
        }
        if (!is_gone(&stream->last)) {
            lane_close(driver.m, stream->last.lane);
        }
        *place = stream->next;
        free(stream);
    }
}

static CUstream make(CUcontext context, unsigned int flags) {
    CUstream stream = calloc(1, sizeof *stream);
    if (stream != NULL) {
        reap();
        stream->context = context;
        stream->flags = flags;
        stream->id = ++last_id;
        stream->last.lane = NO_LANE;
        stream->next = all;
        all = stream;
    }
    return stream;
}

/* A default stream: the context's, or with a thread's number that thread's. */
static CUstream default_stream(CUcontext context, unsigned long long thread, bool wanted) {
    for (CUstream stream = all; stream != NULL; stream = stream->next) {
        if (stream->context == context && !stream->destroyed && stream->flags == UINT32_MAX && stream->owner == thread) {
            return stream;
        }
    }
    CUstream stream = wanted ? make(context, UINT32_MAX) : NULL;
    if (stream != NULL) {
        stream->owner = thread;
    }
    return stream;
}

static CUstream legacy_stream(CUcontext context, bool wanted) { return default_stream(context, 0, wanted); }

static bool is_legacy(const struct CUstream_st *stream) { return stream->flags == UINT32_MAX && stream->owner == 0; }

/* Waits for the legacy default stream, and is waited for by it. */
static bool is_blocking(const struct CUstream_st *stream) {
    return stream->flags == UINT32_MAX || (stream->flags & NON_BLOCKING) == 0;
}

CUstream stream_of_handle(CUstream handle) {
    CUcontext context = context_current();
    if (handle == NULL || handle == LEGACY) {
        return legacy_stream(context, true);
    }
    if (handle == PER_THREAD) {
        thread_number = thread_number == 0 ? ++last_thread : thread_number;
        return default_stream(context, thread_number, true);
    }
    for (CUstream stream = all; stream != NULL; stream = stream->next) {
        if (stream == handle && !stream->destroyed) {
            return stream;
        }
    }
    return NULL;
}

static CUresult open_lane(CUstream stream) {
    if (stream->last.lane != NO_LANE) {
        return CUDA_SUCCESS;
    }
    const struct cuda_device *device = stream->context->device;
    uint64_t own = (uint64_t)(uint32_t)driver.pid << 24 | (stream->context->id & 0xFFFFFFu);
    struct lane_owner owner = {
        .client = device->client,
        .place = device->place,
        .group = device->seat.server != 0 ? 1ull << 63 | device->seat.server : own,
        .ceiling = device->seat.multiprocessors,
    };
    if (lane_open(driver.m, &owner, &stream->last.lane) != NVML_SUCCESS) {
        stream->last.lane = NO_LANE;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->last.turn = atomic_load(&driver.m->state->lanes[stream->last.lane].turn);
    stream->last.item = UINT64_MAX; /* none yet */
    return CUDA_SUCCESS;
}

static CUresult put_alone(CUstream stream, const struct lane_item *item, CUevent event) {
    CUresult result = open_lane(stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t next = stream->last.item + 1; /* of the first, 0 */
    if (next >= STATE_LANE_DEPTH) {
        struct milestone oldest = {.lane = stream->last.lane, .turn = stream->last.turn, .item = next - STATE_LANE_DEPTH};
        result = milestone_wait(&oldest);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        collect_event(stream, oldest.item);
    }
    uint64_t number;
    if (lane_put(driver.m, stream->last.lane, item, &number) != NVML_SUCCESS) {
        return CUDA_ERROR_UNKNOWN;
    }
    stream->last.item = number;
    stream->events[number % STATE_LANE_DEPTH] = event;
    return CUDA_SUCCESS;
}

static CUresult mark_alone(CUstream stream, const struct milestone *after, CUevent event) {
    struct lane_item mark = {.width = 1, .after_lane = after != NULL ? after->lane : NO_LANE};
    if (after != NULL) {
        mark.after_turn = after->turn;
        mark.after_item = after->item;
    }
    return put_alone(stream, &mark, event);
}

/* The legacy default stream and the blocking ones come one after the other, in the order of the calls. */
static CUresult keep_legacy_order(CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    if (!is_legacy(stream)) {
        CUstream legacy = is_blocking(stream) ? legacy_stream(stream->context, false) : NULL;
        return legacy != NULL && !is_idle(&legacy->last) ? mark_alone(stream, &legacy->last, NULL) : CUDA_SUCCESS;
    }
    struct milestone before[STATE_MAX_LANES]; /* a copy: streams may come and go while a full one is waited for */
    unsigned int count = 0;
    for (CUstream other = all; other != NULL && count < STATE_MAX_LANES; other = other->next) {
        if (other != stream && other->context == stream->context && is_blocking(other) && !is_idle(&other->last)) {
            before[count++] = other->last;
        }
    }
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = mark_alone(stream, &before[i], NULL);
    }
    return result;
}

CUresult stream_put(CUstream stream, const struct lane_item *item, CUevent event) {
    CUresult result = keep_legacy_order(stream);
    return result == CUDA_SUCCESS ? put_alone(stream, item, event) : result;
}

CUresult stream_mark(CUstream stream, const struct milestone *after, CUevent event) {
    CUresult result = keep_legacy_order(stream);
    return result == CUDA_SUCCESS ? mark_alone(stream, after, event) : result;
}

static CUstream busy_stream(CUcontext context, bool blocking_only) {
    for (CUstream stream = all; stream != NULL; stream = stream->next) {
        if (stream->context == context && (is_blocking(stream) || !blocking_only) && !is_idle(&stream->last)) {
            return stream;
        }
    }
    return NULL;
}

static CUresult drain(CUcontext context, bool blocking_only) {
    CUresult result = strike();
    for (CUstream busy; result == CUDA_SUCCESS && (busy = busy_stream(context, blocking_only)) != NULL;) {
        struct milestone last = busy->last;
        result = milestone_wait(&last);
    }
    return result;
}

CUresult context_drain(CUcontext context) { return drain(context, false); }

CUresult legacy_drain(CUcontext context) { return drain(context, true); }

void streams_free(CUcontext context) {
    for (CUstream *place = &all; *place != NULL;) {
        CUstream stream = *place;
        if (stream->context != context) {
            place = &stream->next;
            continue;
        }
        if (!is_gone(&stream->last)) {
            lane_close(driver.m, stream->last.lane);
        }
        *place = stream->next;
        free(stream);
    }
}

static CUresult create(CUstream *created, unsigned int flags, int priority) {
    REQUIRE_VALUE(created != NULL && (flags & ~(unsigned int)NON_BLOCKING) == 0);
    CUstream stream = make(context_current(), flags);
    if (stream == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->priority = priority;
    *created = stream;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamCreate(CUstream *created, unsigned int flags) {
    ENTER_CONTEXT();
    return create(created, flags, 0);
}

CUDA_API CUresult cuStreamCreateWithPriority(CUstream *created, unsigned int flags, int priority) {
    ENTER_CONTEXT();
    return create(created, flags, priority);
}

#define REQUIRE_STREAM(handle, stream)               \
    CUstream stream = stream_of_handle(handle);      \
    if (stream == NULL) {                            \
        return CUDA_ERROR_INVALID_HANDLE;            \
    }

CUDA_API CUresult cuStreamDestroy_v2(CUstream handle) {
    ENTER_CONTEXT();
    REQUIRE_STREAM(handle, stream);
    if (stream->flags == UINT32_MAX) {
        return CUDA_ERROR_INVALID_HANDLE; /* a default stream */
    }
    stream->destroyed = true;
    reap();
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamSynchronize(CUstream handle) {
    ENTER_CONTEXT();
    REQUIRE_STREAM(handle, stream);
    struct milestone last = stream->last;
    CUresult result = is_legacy(stream) ? legacy_drain(stream->context) : milestone_wait(&last);
    pools_trim(context_current()->device);
    return result;
}

CUDA_API CUresult cuStreamQuery(CUstream handle) {
    ENTER_CONTEXT();
    REQUIRE_STREAM(handle, stream);
    return milestone_query(&stream->last);
}

CUDA_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
    (void)flags;
    ENTER_CONTEXT();
    REQUIRE_STREAM(handle, stream);
    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    bool reached = !event->recorded || event->stamped || is_gone(&event->milestone);
    return reached ? CUDA_SUCCESS : stream_mark(stream, &event->milestone, NULL);
}

/* A function that tells one thing of a stream. */
#define STREAM_GETTER(function, type, value)                                                                         \
    CUDA_API CUresult function(CUstream handle, type *told) {                                                        \
        ENTER_CONTEXT();                                                                                             \
        REQUIRE_STREAM(handle, stream);                                                                              \
        REQUIRE_VALUE(told != NULL);                                                                                 \
        *told = (value);                                                                                             \
        return CUDA_SUCCESS;                                                                                         \
    }

STREAM_GETTER(cuStreamGetFlags, unsigned int, stream->flags == UINT32_MAX ? 0 : stream->flags)
STREAM_GETTER(cuStreamGetPriority, int, stream->priority)
STREAM_GETTER(cuStreamGetId, unsigned long long, stream->id)
STREAM_GETTER(cuStreamGetCtx, CUcontext, stream->context)
STREAM_GETTER(cuStreamGetDevice, CUdevice, ordinal_of(stream->context->device))
STREAM_GETTER(cuStreamIsCapturing, int, 0) /* streams are never captured */

/* The program's function runs in this call, after what is before it in the stream. */
CUDA_API CUresult cuLaunchHostFunc(CUstream handle, void (*function)(void *), void *data) {
    CUresult result = cuStreamSynchronize(handle);
    if (result == CUDA_SUCCESS) {
        function(data);
    }
    return result;
}
