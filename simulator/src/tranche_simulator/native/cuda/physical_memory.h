/* Device memory without an address: a file without a name, which can be mapped at several, and handed to another process. */
#ifndef TRANCHE_CUDA_PHYSICAL_MEMORY_H
#define TRANCHE_CUDA_PHYSICAL_MEMORY_H

#include "contexts.h"

struct physical_memory {
    CUmemGenericAllocationHandle handle;
    struct cuda_device *device; /* that is charged for it; NULL: none is */
    uint64_t size;
    int file;
    unsigned int handles; /* that the program has not released */
    unsigned int uses;    /* mappings */
    CUmemAllocationProp properties;
    struct physical_memory *next;
};

struct physical_memory *physical_of_handle(CUmemGenericAllocationHandle handle);
/* A mapping is gone; the memory goes with the last mapping and handle. */
void physical_unuse(struct physical_memory *memory);
/* The device's last context has ended. */
void physical_free(const struct cuda_device *device);

#endif
