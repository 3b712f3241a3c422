#include <string.h>

#include "allocations.h"

/* Attributes by the driver's numbers. */
enum {
    POINTER_CONTEXT = 1,
    POINTER_MEMORY_TYPE = 2,
    POINTER_DEVICE_POINTER = 3,
    POINTER_HOST_POINTER = 4,
    POINTER_SYNC_MEMOPS = 6,
    POINTER_BUFFER_ID = 7,
    POINTER_IS_MANAGED = 8,
    POINTER_DEVICE_ORDINAL = 9,
    POINTER_IS_LEGACY_IPC_CAPABLE = 10,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12,
    POINTER_MAPPED = 13,
};

static CUresult give(void *data, const void *value, size_t size) {
    memcpy(data, value, size);
    return CUDA_SUCCESS;
}

#define GIVE(type, value) give(data, &(type){value}, sizeof(type))

static CUresult attribute_of(const struct allocation *allocation, int attribute, CUdeviceptr address, void *data) {
    char *host = allocation->host + (address - allocation->address);
    bool on_device = is_of_device(allocation) || allocation->kind == ALLOCATION_MANAGED;
    switch (attribute) {
    case POINTER_CONTEXT:
        return GIVE(CUcontext, allocation->context);
    case POINTER_MEMORY_TYPE:
        return GIVE(unsigned int, on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case POINTER_DEVICE_POINTER:
        return GIVE(CUdeviceptr, address);
    case POINTER_HOST_POINTER:
        return is_of_device(allocation) ? CUDA_ERROR_INVALID_VALUE : GIVE(void *, host);
    case POINTER_BUFFER_ID:
        return GIVE(unsigned long long, allocation->id);
    case POINTER_IS_MANAGED:
        return GIVE(unsigned int, allocation->kind == ALLOCATION_MANAGED);
    case POINTER_DEVICE_ORDINAL:
        return GIVE(int, ordinal_of(allocation->context->device));
    case POINTER_RANGE_START:
        return GIVE(CUdeviceptr, allocation->address);
    case POINTER_RANGE_SIZE:
        return GIVE(size_t, allocation->size);
    case POINTER_SYNC_MEMOPS:
    case POINTER_IS_LEGACY_IPC_CAPABLE:
        return GIVE(unsigned int, 0);
    case POINTER_MAPPED:
        return GIVE(unsigned int, 1);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUDA_API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    ENTER_DRIVER();
    struct allocation *allocation = allocation_at(address);
    REQUIRE_VALUE(data != NULL && allocation != NULL);
    return attribute_of(allocation, attribute, address, data);
}

/* What an address has not is zero here, and no error. */
CUDA_API CUresult cuPointerGetAttributes(unsigned int count, const int *attributes, void **data, CUdeviceptr address) {
    ENTER_DRIVER();
    REQUIRE_VALUE(attributes != NULL && data != NULL);
    struct allocation *allocation = allocation_at(address);
    for (unsigned int i = 0; i < count; i++) {
        if (allocation == NULL || attribute_of(allocation, attributes[i], address, data[i]) != CUDA_SUCCESS) {
            bool wide = attributes[i] == POINTER_CONTEXT || attributes[i] == POINTER_DEVICE_POINTER ||
                        attributes[i] == POINTER_HOST_POINTER || attributes[i] == POINTER_RANGE_START ||
                        attributes[i] == POINTER_RANGE_SIZE;
            memset(data[i], 0, wide ? sizeof(void *) : sizeof(unsigned int));
        }
    }
    return CUDA_SUCCESS;
}
