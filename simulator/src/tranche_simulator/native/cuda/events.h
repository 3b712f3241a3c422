/* Events: a place in a stream, and when the GPU came there. */
#ifndef TRANCHE_CUDA_EVENTS_H
#define TRANCHE_CUDA_EVENTS_H

#include "streams.h"

struct CUevent_st {
    CUcontext context;
    unsigned int flags;
    bool recorded;
    bool stamped; /* reached, and `finished_at` is when */
    uint64_t finished_at;
    struct milestone milestone;
    CUevent next;
};

/* The event was reached at that time, in nanoseconds of CLOCK_MONOTONIC. */
void event_stamp(CUevent event, uint64_t finished_at);
void events_free(CUcontext context);

#endif
