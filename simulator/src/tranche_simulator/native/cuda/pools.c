#include "pools.h"

#include <stdlib.h>

#include "account.h"
#include "allocations.h"
#include "streams.h"

/* What a pool takes from its device at a time. */
static const uint64_t POOL_UNIT = 32ull << 20;

/* Attributes by the driver's numbers. */
enum {
    RELEASE_THRESHOLD = 4,
    RESERVED_CURRENT = 5,
    RESERVED_HIGH = 6,
    USED_CURRENT = 7,
    USED_HIGH = 8,
    LAST_REUSE = 3,
};

struct CUmemPoolHandle_st {
    struct cuda_device *device;
    uint64_t largest; /* bytes; 0: no limit of its own */
    uint64_t threshold;
    uint64_t reserved, reserved_high;
    uint64_t used, used_high;
    CUmemoryPool next;
};

static CUmemoryPool all;
static CUmemoryPool defaults[CUDA_MAX_DEVICES], current[CUDA_MAX_DEVICES];

static uint64_t whole_units(uint64_t bytes) { return (bytes + POOL_UNIT - 1) / POOL_UNIT * POOL_UNIT; }

static uint64_t larger(uint64_t left, uint64_t right) { return left > right ? left : right; }

CUresult pool_take(CUmemoryPool pool, uint64_t size) {
    uint64_t wanted = whole_units(pool->used + size);
    if (pool->largest != 0 && pool->used + size > pool->largest) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (wanted > pool->reserved) {
        CUresult result = account_take(pool->device, wanted - pool->reserved);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && pools_trim(pool->device)) {
            result = account_take(pool->device, wanted - pool->reserved);
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
        pool->reserved = wanted;
    }
    pool->used += size;
    pool->used_high = larger(pool->used_high, pool->used);
    pool->reserved_high = larger(pool->reserved_high, pool->reserved);
    return CUDA_SUCCESS;
}

void pool_give(CUmemoryPool pool, uint64_t size) { pool->used -= size; }

static bool trim(CUmemoryPool pool, uint64_t kept) {
    uint64_t wanted = larger(whole_units(pool->used), whole_units(kept));
    if (wanted >= pool->reserved) {
        return false;
    }
    account_give(pool->device, pool->reserved - wanted);
    pool->reserved = wanted;
    return true;
}

bool pools_trim(struct cuda_device *device) {
    bool any = false;
    for (CUmemoryPool pool = all; pool != NULL; pool = pool->next) {
        any = (pool->device == device && trim(pool, pool->threshold)) || any;
    }
    return any;
}

void pools_free(const struct cuda_device *device) {
    for (CUmemoryPool pool = all; pool != NULL; pool = pool->next) {
        if (pool->device == device) {
            pool->used = pool->reserved = 0;
        }
    }
}

static CUmemoryPool make(struct cuda_device *device) {
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (pool != NULL) {
        pool->device = device;
        pool->next = all;
        all = pool;
    }
    return pool;
}

static CUmemoryPool pool_of_handle(CUmemoryPool handle) {
    for (CUmemoryPool pool = all; pool != NULL; pool = pool->next) {
        if (pool == handle) {
            return pool;
        }
    }
    return NULL;
}

static CUmemoryPool default_pool(struct cuda_device *device) {
    CUmemoryPool *pool = &defaults[ordinal_of(device)];
    *pool = *pool != NULL ? *pool : make(device);
    return *pool;
}

static CUmemoryPool current_pool(struct cuda_device *device) {
    CUmemoryPool chosen = current[ordinal_of(device)];
    return chosen != NULL ? chosen : default_pool(device);
}

#define REQUIRE_POOL(handle)                   \
    if (pool_of_handle(handle) == NULL) {      \
        return CUDA_ERROR_INVALID_VALUE;       \
    }

static CUresult give_pool(CUmemoryPool *given, CUdevice ordinal, CUmemoryPool (*find)(struct cuda_device *)) {
    struct cuda_device *device = device_at(ordinal);
    REQUIRE_VALUE(given != NULL);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *given = find(device);
    return *given != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice ordinal) {
    ENTER_DRIVER();
    return give_pool(pool, ordinal, default_pool);
}

CUDA_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice ordinal) {
    ENTER_DRIVER();
    return give_pool(pool, ordinal, current_pool);
}

CUDA_API CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool) {
    ENTER_DRIVER();
    REQUIRE_POOL(pool);
    if (device_at(ordinal) == NULL || pool->device != device_at(ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    current[ordinal] = pool;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolCreate(CUmemoryPool *created, const CUmemPoolProps *properties) {
    ENTER_DRIVER();
    REQUIRE_VALUE(created != NULL && properties != NULL && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    struct cuda_device *device = device_at(properties->location.id);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    CUmemoryPool pool = make(device);
    if (pool == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->largest = properties->maxSize;
    *created = pool;
    return CUDA_SUCCESS;
}

/* What was taken out of it stays until it is freed; only then its memory goes. */
CUDA_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    ENTER_DRIVER();
    REQUIRE_POOL(pool);
    REQUIRE_VALUE(pool != defaults[ordinal_of(pool->device)]);
    if (current[ordinal_of(pool->device)] == pool) {
        current[ordinal_of(pool->device)] = NULL;
    }
    pool->threshold = 0;
    trim(pool, 0);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t kept) {
    ENTER_DRIVER();
    REQUIRE_POOL(pool);
    trim(pool, kept);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTER_DRIVER();
    REQUIRE_POOL(pool);
    REQUIRE_VALUE(value != NULL);
    if (attribute > 0 && attribute <= LAST_REUSE) {
        *(int *)value = 1;
        return CUDA_SUCCESS;
    }
    const uint64_t values[] = {
        [RELEASE_THRESHOLD] = pool->threshold, [RESERVED_CURRENT] = pool->reserved, [RESERVED_HIGH] = pool->reserved_high,
        [USED_CURRENT] = pool->used,           [USED_HIGH] = pool->used_high,
    };
    REQUIRE_VALUE(attribute >= RELEASE_THRESHOLD && attribute <= USED_HIGH);
    *(uint64_t *)value = values[attribute];
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTER_DRIVER();
    REQUIRE_POOL(pool);
    REQUIRE_VALUE(value != NULL && attribute > 0 && attribute <= USED_HIGH);
    if (attribute == RELEASE_THRESHOLD) {
        pool->threshold = *(uint64_t *)value;
    } else if (attribute == RESERVED_HIGH || attribute == USED_HIGH) {
        REQUIRE_VALUE(*(uint64_t *)value == 0);
        *(attribute == RESERVED_HIGH ? &pool->reserved_high : &pool->used_high) =
            attribute == RESERVED_HIGH ? pool->reserved : pool->used;
    } else {
        REQUIRE_VALUE(attribute <= LAST_REUSE);
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) {
    ENTER_DRIVER();
    REQUIRE_POOL(pool);
    REQUIRE_VALUE(access != NULL && count > 0);
    return CUDA_SUCCESS;
}

static CUresult allocate_from(CUmemoryPool pool, CUdeviceptr *address, size_t size, CUstream handle) {
    REQUIRE_VALUE(address != NULL && pool != NULL);
    return stream_of_handle(handle) == NULL ? CUDA_ERROR_INVALID_HANDLE
                                            : allocate_pooled(context_current(), size, pool, address);
}

CUDA_API CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) {
    ENTER_CONTEXT();
    return allocate_from(current_pool(context_current()->device), address, size, stream);
}

CUDA_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream) {
    ENTER_CONTEXT();
    REQUIRE_POOL(pool);
    return allocate_from(pool, address, size, stream);
}

CUDA_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    ENTER_CONTEXT();
    struct allocation *allocation = allocation_beginning(address);
    REQUIRE_VALUE(allocation != NULL &&
                  (allocation->kind == ALLOCATION_POOLED || allocation->kind == ALLOCATION_DEVICE));
    if (stream_of_handle(handle) == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    allocation_free(allocation);
    return CUDA_SUCCESS;
}
