#include "account.h"
#include "allocations.h"
#include "streams.h"

CUDA_API CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(available != NULL && total != NULL);
    uint64_t left, all;
    account_info(context_current()->device, &left, &all);
    *available = left;
    *total = all;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(address != NULL);
    return allocate_device(context_current(), size, address);
}

CUDA_API CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                     unsigned int element) {
    enum { PITCH_ALIGNMENT = 512 };
    ENTER_CONTEXT();
    REQUIRE_VALUE(address != NULL && pitch != NULL && (element == 4 || element == 8 || element == 16));
    size_t aligned = (width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT;
    size_t size;
    REQUIRE_VALUE(!__builtin_mul_overflow(aligned, height, &size));
    CUresult result = allocate_device(context_current(), size, address);
    *pitch = result == CUDA_SUCCESS ? aligned : *pitch;
    return result;
}

/* The host's until a device uses it, which a simulated one never does: it takes none of the device's memory. */
CUDA_API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(address != NULL && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST));
    void *host;
    CUresult result = allocate_host(context_current(), size, ALLOCATION_MANAGED, flags, &host);
    if (result == CUDA_SUCCESS) {
        *address = (CUdeviceptr)(uintptr_t)host;
    }
    return result;
}

CUDA_API CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER_CONTEXT();
    if (address == 0) {
        return CUDA_SUCCESS;
    }
    struct allocation *allocation = allocation_beginning(address);
    REQUIRE_VALUE(allocation != NULL && (allocation->kind == ALLOCATION_DEVICE || allocation->kind == ALLOCATION_POOLED ||
                                         allocation->kind == ALLOCATION_MANAGED));
    CUresult result = context_drain(allocation->context);
    if (result == CUDA_SUCCESS) {
        allocation_free(allocation);
    }
    return result;
}

CUDA_API CUresult cuMemAllocHost_v2(void **host, size_t size) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(host != NULL);
    return allocate_host(context_current(), size, ALLOCATION_HOST, CU_MEMHOSTALLOC_DEVICEMAP, host);
}

CUDA_API CUresult cuMemHostAlloc(void **host, size_t size, unsigned int flags) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(host != NULL);
    return allocate_host(context_current(), size, ALLOCATION_HOST, flags | CU_MEMHOSTALLOC_DEVICEMAP, host);
}

static struct allocation *host_allocation(const void *host, enum allocation_kind kind) {
    struct allocation *allocation = allocation_beginning((CUdeviceptr)(uintptr_t)host);
    return allocation != NULL && allocation->kind == kind ? allocation : NULL;
}

CUDA_API CUresult cuMemFreeHost(void *host) {
    ENTER_CONTEXT();
    struct allocation *allocation = host_allocation(host, ALLOCATION_HOST);
    REQUIRE_VALUE(allocation != NULL);
    allocation_free(allocation);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemHostRegister_v2(void *host, size_t size, unsigned int flags) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(host != NULL);
    if (allocation_at((CUdeviceptr)(uintptr_t)host) != NULL) {
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    return allocate_host(context_current(), size, ALLOCATION_REGISTERED, flags | CU_MEMHOSTALLOC_DEVICEMAP, &host);
}

CUDA_API CUresult cuMemHostUnregister(void *host) {
    ENTER_CONTEXT();
    struct allocation *allocation = host_allocation(host, ALLOCATION_REGISTERED);
    if (allocation == NULL) {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    allocation_free(allocation);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host, unsigned int flags) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(address != NULL && flags == 0 && allocation_at((CUdeviceptr)(uintptr_t)host) != NULL);
    *address = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemHostGetFlags(unsigned int *flags, void *host) {
    ENTER_CONTEXT();
    struct allocation *allocation = allocation_at((CUdeviceptr)(uintptr_t)host);
    REQUIRE_VALUE(flags != NULL && allocation != NULL && !is_of_device(allocation));
    *flags = allocation->flags;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    ENTER_CONTEXT();
    struct allocation *allocation = allocation_at(address);
    if (allocation == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != NULL) {
        *base = allocation->address;
    }
    if (size != NULL) {
        *size = allocation->size;
    }
    return CUDA_SUCCESS;
}
