/* Memory that programs were given, and what stands behind its addresses.
 *
 * Memory of a device is memory of this process, which the kernel supplies as it is touched, so that copies are real and what is
 * never used costs nothing. Its addresses are those of that memory with one bit changed: a program that follows one on the host
 * comes to grief, as it should.
 */
#ifndef TRANCHE_CUDA_ALLOCATIONS_H
#define TRANCHE_CUDA_ALLOCATIONS_H

#include "contexts.h"

enum allocation_kind {
    ALLOCATION_DEVICE,
    ALLOCATION_MANAGED,    /* of both: its address is one of the host */
    ALLOCATION_HOST,       /* of the host, made by the driver */
    ALLOCATION_REGISTERED, /* of the host, made by the program */
};

struct allocation {
    CUdeviceptr address;
    uint64_t size; /* bytes asked for */
    char *host;    /* where its bytes are */
    enum allocation_kind kind;
    unsigned int flags;
    unsigned long long id;
    CUcontext context;
};

/* Device memory, charged to the context's device. */
CUresult allocate_device(CUcontext context, uint64_t size, CUdeviceptr *address);
/* Memory of the host that devices reach, or of both. */
CUresult allocate_host(CUcontext context, uint64_t size, enum allocation_kind kind, unsigned int flags, void **host);

/* The allocation that an address lies in, or NULL. */
struct allocation *allocation_at(CUdeviceptr address);
/* The allocation that begins there, or NULL. */
struct allocation *allocation_beginning(CUdeviceptr address);
void allocation_free(struct allocation *allocation);
void allocations_free(CUcontext context);

/* Where the bytes of an address are, if `size` of them belong to one allocation; else NULL. */
char *bytes_at(CUdeviceptr address, uint64_t size);

#endif
