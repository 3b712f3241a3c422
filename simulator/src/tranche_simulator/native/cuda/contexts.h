/* Contexts, and which of them a thread works in. A destroyed context's handle stays known as one that was destroyed. */
#ifndef TRANCHE_CUDA_CONTEXTS_H
#define TRANCHE_CUDA_CONTEXTS_H

#include "driver.h"

struct CUctx_st {
    struct cuda_device *device; /* NULL: destroyed */
    bool primary;
    unsigned int retained; /* of a primary context: how many times */
    unsigned int flags;
    unsigned long long id;
    uint64_t bytes; /* device memory that the context itself takes */
    CUcontext next;
};

/* The calling thread's; NULL without one. */
CUcontext context_current(void);
/* NULL: no such handle, or destroyed. */
CUcontext context_of_handle(CUcontext handle);
/* A primary context that is in use, or NULL. */
CUcontext primary_context(const struct cuda_device *device);

CUresult context_create(struct cuda_device *device, unsigned int flags, CUcontext *context);
void context_destroy(CUcontext context);
/* Returns the device's primary context, started if it is not in use; its handle never changes. */
CUresult primary_retain(struct cuda_device *device, CUcontext *context);

#endif
