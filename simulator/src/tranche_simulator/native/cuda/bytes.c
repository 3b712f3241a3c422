#define _GNU_SOURCE
#include "bytes.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *device_bytes(CUdeviceptr address, uint64_t size) {
    struct allocation *allocation = allocation_at(address);
    if (allocation == NULL || (!is_of_device(allocation) && allocation->kind != ALLOCATION_MANAGED)) {
        return NULL;
    }
    return bytes_at(address, size);
}

/* NULL for device memory, and for what ends before `size` bytes do. */
static char *host_bytes(CUdeviceptr address, uint64_t size) {
    struct allocation *allocation = allocation_at(address);
    if (allocation == NULL) {
        return (char *)(uintptr_t)address;
    }
    return is_of_device(allocation) ? NULL : bytes_at(address, size);
}

static char *any_bytes(CUdeviceptr address, uint64_t size) {
    return allocation_at(address) != NULL ? bytes_at(address, size) : (char *)(uintptr_t)address;
}

CUresult copy_bytes(CUdeviceptr to, CUdeviceptr from, uint64_t size, enum copy_kind kind) {
    if (size == 0) {
        return CUDA_SUCCESS;
    }
    REQUIRE_VALUE(to != 0 && from != 0);
    bool to_device = kind == COPY_HOST_TO_DEVICE || kind == COPY_DEVICE_TO_DEVICE;
    bool from_device = kind == COPY_DEVICE_TO_HOST || kind == COPY_DEVICE_TO_DEVICE;
    char *target = kind == COPY_ANY ? any_bytes(to, size) : to_device ? device_bytes(to, size) : host_bytes(to, size);
    char *source = kind == COPY_ANY  ? any_bytes(from, size)
                   : from_device     ? device_bytes(from, size)
                                     : host_bytes(from, size);
    REQUIRE_VALUE(target != NULL && source != NULL);
    memmove(target, source, size);
    return CUDA_SUCCESS;
}

/* Returns whole pages of zeros to the kernel, which recreates them when they are read. */
static void clear_bytes(char *bytes, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *first = (char *)(((uintptr_t)bytes + page - 1) / page * page);
    char *last = (char *)(((uintptr_t)bytes + size) / page * page);
    if (size < (1u << 20) || madvise(first, (size_t)(last - first), MADV_DONTNEED) != 0) {
        memset(bytes, 0, size);
        return;
    }
    memset(bytes, 0, (size_t)(first - bytes));
    memset(last, 0, (size_t)(bytes + size - last));
}

static void fill_row(char *row, uint32_t value, unsigned int element, size_t width) {
    if (value == 0) {
        clear_bytes(row, element * width);
    } else if (element == 1) {
        memset(row, (int)value, width);
    } else if (element == 2) {
        for (size_t i = 0; i < width; i++) {
            ((uint16_t *)(void *)row)[i] = (uint16_t)value;
        }
    } else {
        for (size_t i = 0; i < width; i++) {
            ((uint32_t *)(void *)row)[i] = value;
        }
    }
}

CUresult fill_bytes(CUdeviceptr address, size_t pitch, uint32_t value, unsigned int element, size_t width,
                    size_t height) {
    if (width == 0 || height == 0) {
        return CUDA_SUCCESS;
    }
    REQUIRE_VALUE(address % element == 0 && (height == 1 || pitch >= element * width));
    char *bytes = device_bytes(address, pitch * (height - 1) + element * width);
    REQUIRE_VALUE(bytes != NULL);
    for (size_t row = 0; row < height; row++) {
        fill_row(bytes + row * pitch, value, element, width);
    }
    return CUDA_SUCCESS;
}
