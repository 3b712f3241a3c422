#include "events.h"

#include <stdlib.h>

#include "pools.h"

enum { DISABLE_TIMING = 2 };

static CUevent all;

void event_stamp(CUevent event, uint64_t finished_at) {
    event->stamped = true;
    event->finished_at = finished_at;
}

static CUevent event_of_handle(CUevent handle) {
    for (CUevent event = all; event != NULL; event = event->next) {
        if (event == handle) {
            return event;
        }
    }
    return NULL;
}

#define REQUIRE_EVENT(handle)                       \
    if (event_of_handle(handle) == NULL) {          \
        return CUDA_ERROR_INVALID_HANDLE;           \
    }

/* Its time, if it was reached. */
static CUresult reached(CUevent event) {
    if (!event->recorded || event->stamped) {
        return CUDA_SUCCESS;
    }
    CUresult result = milestone_query(&event->milestone);
    if (result == CUDA_SUCCESS) {
        struct lane_sight sight = {0};
        if (lane_look(driver.m, event->milestone.lane, event->milestone.item, &sight) == NVML_SUCCESS && sight.done) {
            stream_forget_event(event);
            event_stamp(event, sight.finished_at);
        }
    }
    return result;
}

CUDA_API CUresult cuEventCreate(CUevent *created, unsigned int flags) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(created != NULL);
    CUevent event = calloc(1, sizeof *event);
    if (event == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->context = context_current();
    event->flags = flags;
    event->next = all;
    all = event;
    *created = event;
    return CUDA_SUCCESS;
}

static void unlink_event(CUevent event) {
    stream_forget_event(event);
    for (CUevent *place = &all; *place != NULL; place = &(*place)->next) {
        if (*place == event) {
            *place = event->next;
            break;
        }
    }
    free(event);
}

CUDA_API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER_CONTEXT();
    REQUIRE_EVENT(event);
    unlink_event(event);
    return CUDA_SUCCESS;
}

void events_free(CUcontext context) {
    for (CUevent event = all, next; event != NULL; event = next) {
        next = event->next;
        if (event->context == context) {
            unlink_event(event);
        }
    }
}

static CUresult record(CUevent event, CUstream handle) {
    CUstream stream = stream_of_handle(handle);
    if (stream == NULL || stream->context->device != event->context->device) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    stream_forget_event(event);
    CUresult result = stream_mark(stream, NULL, event);
    if (result == CUDA_SUCCESS) {
        event->recorded = true;
        event->stamped = false;
        event->milestone = stream->last;
    }
    return result;
}

CUDA_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER_CONTEXT();
    REQUIRE_EVENT(event);
    return record(event, stream);
}

CUDA_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    (void)flags;
    ENTER_CONTEXT();
    REQUIRE_EVENT(event);
    return record(event, stream);
}

CUDA_API CUresult cuEventQuery(CUevent event) {
    ENTER_CONTEXT();
    REQUIRE_EVENT(event);
    return reached(event);
}

CUDA_API CUresult cuEventSynchronize(CUevent event) {
    ENTER_CONTEXT();
    REQUIRE_EVENT(event);
    struct milestone milestone = event->milestone;
    CUresult result = event->recorded && !event->stamped ? milestone_wait(&milestone) : CUDA_SUCCESS;
    REQUIRE_EVENT(event);
    pools_trim(context_current()->device);
    return result == CUDA_SUCCESS ? reached(event) : result;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end) {
    REQUIRE_VALUE(milliseconds != NULL);
    REQUIRE_EVENT(start);
    REQUIRE_EVENT(end);
    if (!start->recorded || !end->recorded || ((start->flags | end->flags) & DISABLE_TIMING) != 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = reached(start);
    if (result == CUDA_SUCCESS) {
        result = reached(end);
    }
    if (result == CUDA_SUCCESS) {
        *milliseconds = (float)((double)(int64_t)(end->finished_at - start->finished_at) / 1e6);
    }
    return result;
}

CUDA_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    ENTER_CONTEXT();
    return elapsed(milliseconds, start, end);
}

CUDA_API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    ENTER_CONTEXT();
    return elapsed(milliseconds, start, end);
}
