/* Streams: work of a context in order. What a stream has to do lies in a lane of the machine's, where the modelled GPU finds it. */
#ifndef TRANCHE_CUDA_STREAMS_H
#define TRANCHE_CUDA_STREAMS_H

#include "compute.h"
#include "contexts.h"

typedef struct CUevent_st *CUevent;

/* A piece of work of a lane, or nothing that would have to be waited for. */
struct milestone {
    unsigned int lane; /* NO_LANE: nothing */
    uint32_t turn;
    uint64_t item;
};

struct CUstream_st {
    CUcontext context;
    unsigned int flags;
    int priority;
    unsigned long long id;
    bool destroyed;           /* by the program: it ends when its work is done */
    unsigned long long owner; /* the thread whose default stream it is; 0: none */
    struct milestone last;    /* its newest work */
    CUevent events[STATE_LANE_DEPTH]; /* those recorded by the lane's latest items */
    CUstream next;
};

/* Of the current context: handles 0 and 1 are the legacy default stream, 2 is that of the thread. NULL: no such stream. */
CUstream stream_of_handle(CUstream handle);

/* Gives a stream something to do, behind what it waits for. Waits while the stream is full. `event` fires when it is done. */
CUresult stream_put(CUstream stream, const struct lane_item *item, CUevent event);
/* Gives a stream a mark to reach, behind another piece of work too. */
CUresult stream_mark(CUstream stream, const struct milestone *after, CUevent event);

/* NOT_READY: not yet. A milestone whose lane is gone was reached. */
CUresult milestone_query(const struct milestone *milestone);
CUresult milestone_wait(const struct milestone *milestone);

/* The event no longer belongs to any stream's work. */
void stream_forget_event(CUevent event);

/* Everything that the context was given to do. */
CUresult context_drain(CUcontext context);
/* What a synchronous call of the legacy default stream comes after. */
CUresult legacy_drain(CUcontext context);
void streams_free(CUcontext context);

/* A kernel of the process ends in a fault when its milestone is reached. */
CUresult fault_schedule(const struct milestone *milestone, CUresult fault);

#endif
