/* Memory that programs were given, and what stands behind its addresses.
 *
 * Memory of a device is memory of this process, which the kernel supplies as it is touched, so that copies are real and what is
 * never used costs nothing. Its addresses are those of that memory with one bit changed: a program that follows one on the host
 * crashes, as it should.
 */
#ifndef TRANCHE_CUDA_ALLOCATIONS_H
#define TRANCHE_CUDA_ALLOCATIONS_H

#include "contexts.h"

enum allocation_kind {
    ALLOCATION_DEVICE,
    ALLOCATION_POOLED,     /* of a device, out of a pool */
    ALLOCATION_MAPPED,     /* of a device, made apart from its address */
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
    CUmemoryPool pool;                /* of a pooled one */
    struct physical_memory *physical; /* of a mapped one */
};

/* Its bytes are those of a device alone. */
bool is_of_device(const struct allocation *allocation);
/* Between addresses of a device and what is behind them. */
CUdeviceptr device_address(const char *host);
char *device_backing(CUdeviceptr address);

/* Device memory, charged to the context's device. */
CUresult allocate_device(CUcontext context, uint64_t size, CUdeviceptr *address);
/* The same, charged to a pool. */
CUresult allocate_pooled(CUcontext context, uint64_t size, CUmemoryPool pool, CUdeviceptr *address);
/* An address that is backed already; `flags` are its rights, 0 for none yet. */
struct allocation *allocate_mapped(CUcontext context, uint64_t size, char *host);
/* Memory of the host that devices reach, or of both. */
CUresult allocate_host(CUcontext context, uint64_t size, enum allocation_kind kind, unsigned int flags, void **host);

/* The allocation that an address lies in, or NULL. */
struct allocation *allocation_at(CUdeviceptr address);
/* The first of a kind that begins in a range of addresses, or NULL. */
struct allocation *allocation_within(CUdeviceptr address, uint64_t size, enum allocation_kind kind);
/* The allocation that begins there, or NULL. */
struct allocation *allocation_beginning(CUdeviceptr address);
void allocation_free(struct allocation *allocation);
void allocations_free(CUcontext context);

/* Where the bytes of an address are, if `size` of them belong to one allocation; else NULL. */
char *bytes_at(CUdeviceptr address, uint64_t size);

#endif
