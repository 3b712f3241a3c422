#define _GNU_SOURCE
#include "allocations.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "account.h"
#include "physical_memory.h"
#include "pools.h"

static const CUdeviceptr DEVICE_BIT = 1ull << 46; /* of an address; the one that tells device memory from the host's */
enum { ALIGNMENT = 512, OWN_PAGES_FROM = 1 << 16 };

/* Sorted by address. */
static struct allocation **allocations;
static size_t count, room;
static unsigned long long last_id;

bool is_of_device(const struct allocation *allocation) { return allocation->kind <= ALLOCATION_MAPPED; }

CUdeviceptr device_address(const char *host) { return (CUdeviceptr)(uintptr_t)host ^ DEVICE_BIT; }

char *device_backing(CUdeviceptr address) { return (char *)(uintptr_t)(address ^ DEVICE_BIT); }

/* Index of the first allocation that begins beyond the address. */
static size_t index_beyond(CUdeviceptr address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (allocations[middle]->address <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct allocation *allocation_at(CUdeviceptr address) {
    size_t beyond = index_beyond(address);
    if (beyond == 0) {
        return NULL;
    }
    struct allocation *allocation = allocations[beyond - 1];
    return address - allocation->address < allocation->size ? allocation : NULL;
}

struct allocation *allocation_beginning(CUdeviceptr address) {
    struct allocation *allocation = allocation_at(address);
    return allocation != NULL && allocation->address == address ? allocation : NULL;
}

char *bytes_at(CUdeviceptr address, uint64_t size) {
    struct allocation *allocation = allocation_at(address);
    if (allocation == NULL || size > allocation->size - (address - allocation->address) ||
        (allocation->kind == ALLOCATION_MAPPED && allocation->flags == 0)) {
        return NULL;
    }
    return allocation->host + (address - allocation->address);
}

static bool insert(struct allocation *allocation) {
    if (count == room) {
        size_t larger = room == 0 ? 64 : room * 2;
        struct allocation **moved = realloc(allocations, larger * sizeof *moved);
        if (moved == NULL) {
            return false;
        }
        allocations = moved;
        room = larger;
    }
    size_t place = index_beyond(allocation->address);
    memmove(&allocations[place + 1], &allocations[place], (count - place) * sizeof *allocations);
    allocations[place] = allocation;
    count++;
    return true;
}

static bool has_own_pages(uint64_t size) { return size >= OWN_PAGES_FROM; }

static char *host_memory(uint64_t size) {
    if (!has_own_pages(size)) {
        return aligned_alloc(ALIGNMENT, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    }
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static void free_host_memory(char *host, uint64_t size) {
    if (has_own_pages(size)) {
        munmap(host, size);
    } else {
        free(host);
    }
}

static struct allocation *make(CUcontext context, uint64_t size, enum allocation_kind kind, char *host) {
    struct allocation *allocation = calloc(1, sizeof *allocation);
    if (allocation == NULL) {
        return NULL;
    }
    *allocation = (struct allocation){
        .address = kind <= ALLOCATION_MAPPED ? device_address(host) : (CUdeviceptr)(uintptr_t)host,
        .size = size,
        .host = host,
        .kind = kind,
        .id = ++last_id,
        .context = context,
    };
    if (!insert(allocation)) {
        free(allocation);
        return NULL;
    }
    return allocation;
}

static struct allocation *make_backed(CUcontext context, uint64_t size, enum allocation_kind kind) {
    char *host = host_memory(size);
    struct allocation *allocation = host != NULL ? make(context, size, kind, host) : NULL;
    if (allocation == NULL && host != NULL) {
        free_host_memory(host, size);
    }
    return allocation;
}

CUresult allocate_device(CUcontext context, uint64_t size, CUdeviceptr *address) {
    REQUIRE_VALUE(size > 0);
    CUresult result = account_take(context->device, size);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && pools_trim(context->device)) {
        result = account_take(context->device, size); /* pools give back what they only keep */
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct allocation *allocation = make_backed(context, size, ALLOCATION_DEVICE);
    if (allocation == NULL) {
        account_give(context->device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = allocation->address;
    return CUDA_SUCCESS;
}

CUresult allocate_pooled(CUcontext context, uint64_t size, CUmemoryPool pool, CUdeviceptr *address) {
    REQUIRE_VALUE(size > 0);
    CUresult result = pool_take(pool, size);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct allocation *allocation = make_backed(context, size, ALLOCATION_POOLED);
    if (allocation == NULL) {
        pool_give(pool, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation->pool = pool;
    *address = allocation->address;
    return CUDA_SUCCESS;
}

struct allocation *allocate_mapped(CUcontext context, uint64_t size, char *host) {
    return make(context, size, ALLOCATION_MAPPED, host);
}

struct allocation *allocation_within(CUdeviceptr address, uint64_t size, enum allocation_kind kind) {
    for (size_t i = address == 0 ? 0 : index_beyond(address - 1); i < count; i++) {
        if (allocations[i]->address - address >= size) {
            break;
        }
        if (allocations[i]->kind == kind) {
            return allocations[i];
        }
    }
    return NULL;
}

CUresult allocate_host(CUcontext context, uint64_t size, enum allocation_kind kind, unsigned int flags, void **host) {
    REQUIRE_VALUE(size > 0);
    char *bytes = kind == ALLOCATION_REGISTERED ? *host : host_memory(size);
    struct allocation *allocation = bytes != NULL ? make(context, size, kind, bytes) : NULL;
    if (allocation == NULL) {
        if (bytes != NULL && kind != ALLOCATION_REGISTERED) {
            free_host_memory(bytes, size);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation->flags = flags;
    *host = bytes;
    return CUDA_SUCCESS;
}

static void release(struct allocation *allocation) {
    if (allocation->kind != ALLOCATION_REGISTERED && allocation->kind != ALLOCATION_MAPPED) {
        free_host_memory(allocation->host, allocation->size);
    }
    if (allocation->kind == ALLOCATION_DEVICE) {
        account_give(allocation->context->device, allocation->size);
    } else if (allocation->kind == ALLOCATION_POOLED) {
        pool_give(allocation->pool, allocation->size);
    } else if (allocation->kind == ALLOCATION_MAPPED && allocation->physical != NULL) {
        physical_unuse(allocation->physical);
    }
    free(allocation);
}

void allocation_free(struct allocation *allocation) {
    size_t place = index_beyond(allocation->address) - 1;
    memmove(&allocations[place], &allocations[place + 1], (count - place - 1) * sizeof *allocations);
    count--;
    release(allocation);
}

void allocations_free(CUcontext context) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (allocations[i]->context == context) {
            release(allocations[i]);
        } else {
            allocations[kept++] = allocations[i];
        }
    }
    count = kept;
}
