#define _GNU_SOURCE
#include "physical_memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "account.h"
#include "pools.h"

static struct physical_memory *all;
static CUmemGenericAllocationHandle last_handle;

struct physical_memory *physical_of_handle(CUmemGenericAllocationHandle handle) {
    for (struct physical_memory *memory = all; memory != NULL; memory = memory->next) {
        if (memory->handle == handle && memory->handles > 0) {
            return memory;
        }
    }
    return NULL;
}

static void discard(struct physical_memory *memory) {
    for (struct physical_memory **place = &all; *place != NULL; place = &(*place)->next) {
        if (*place == memory) {
            *place = memory->next;
            break;
        }
    }
    if (memory->device != NULL) {
        account_give(memory->device, memory->size);
    }
    close(memory->file);
    free(memory);
}

static void drop_unused(struct physical_memory *memory) {
    if (memory->handles == 0 && memory->uses == 0) {
        discard(memory);
    }
}

void physical_unuse(struct physical_memory *memory) {
    memory->uses--;
    drop_unused(memory);
}

void physical_free(const struct cuda_device *device) {
    for (struct physical_memory *memory = all, *next; memory != NULL; memory = next) {
        next = memory->next;
        if (memory->device == device) {
            account_give(memory->device, memory->size);
            memory->device = NULL;
            memory->handles = 0;
            drop_unused(memory); /* what is mapped for another device goes with that mapping */
        }
    }
}

/* glibc has the call since 2.27 only. */
static int nameless_file(void) { return (int)syscall(SYS_memfd_create, "device memory", 1u /* close on exec */); }

static struct physical_memory *make(uint64_t size, int file, const CUmemAllocationProp *properties) {
    struct physical_memory *memory = file >= 0 ? calloc(1, sizeof *memory) : NULL;
    if (memory == NULL) {
        return NULL;
    }
    *memory = (struct physical_memory){.handle = ++last_handle, .size = size, .file = file, .handles = 1};
    memory->properties = *properties;
    memory->next = all;
    all = memory;
    return memory;
}

CUDA_API CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties, int option) {
    ENTER_DRIVER();
    REQUIRE_VALUE(bytes != NULL && properties != NULL && (option == 0 || option == 1));
    *bytes = CUDA_ALLOCATION_UNIT;
    return CUDA_SUCCESS;
}

/* The device that is to be charged; NULL for memory of the host. It needs no context. */
static CUresult device_of(const CUmemAllocationProp *properties, struct cuda_device **device) {
    *device = NULL;
    if (properties->location.type > CU_MEM_LOCATION_TYPE_DEVICE &&
        properties->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) {
        return CUDA_SUCCESS;
    }
    REQUIRE_VALUE(properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    *device = device_at(properties->location.id);
    return *device == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUDA_API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                              unsigned long long flags) {
    ENTER_DRIVER();
    REQUIRE_VALUE(handle != NULL && properties != NULL && flags == 0 && size > 0 && size % CUDA_ALLOCATION_UNIT == 0);
    REQUIRE_VALUE(properties->type == CU_MEM_ALLOCATION_TYPE_PINNED);
    struct cuda_device *device;
    CUresult result = driver.fault != CUDA_SUCCESS ? driver.fault : device_of(properties, &device);
    if (result == CUDA_SUCCESS && device != NULL) {
        result = account_take(device, size);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && pools_trim(device)) {
            result = account_take(device, size);
        }
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    int file = nameless_file();
    struct physical_memory *memory =
        file >= 0 && ftruncate(file, (off_t)size) == 0 ? make(size, file, properties) : NULL;
    if (memory == NULL) {
        if (file >= 0) {
            close(file);
        }
        if (device != NULL) {
            account_give(device, size);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->device = device;
    *handle = memory->handle;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER_DRIVER();
    struct physical_memory *memory = physical_of_handle(handle);
    REQUIRE_VALUE(memory != NULL);
    memory->handles--;
    drop_unused(memory);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                         CUmemGenericAllocationHandle handle) {
    ENTER_DRIVER();
    struct physical_memory *memory = physical_of_handle(handle);
    REQUIRE_VALUE(properties != NULL && memory != NULL);
    *properties = memory->properties;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                               unsigned long long flags) {
    ENTER_DRIVER();
    struct physical_memory *memory = physical_of_handle(handle);
    REQUIRE_VALUE(shareable != NULL && memory != NULL && flags == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                  memory->properties.requestedHandleTypes == type);
    int file = fcntl(memory->file, F_DUPFD_CLOEXEC, 0);
    if (file < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)shareable = file;
    return CUDA_SUCCESS;
}

/* The maker of the memory is charged for it. */
CUDA_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type) {
    ENTER_DRIVER();
    struct stat status;
    int given = (int)(intptr_t)shareable;
    REQUIRE_VALUE(handle != NULL && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && fstat(given, &status) == 0 &&
                  status.st_size > 0 && (uint64_t)status.st_size % CUDA_ALLOCATION_UNIT == 0);
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = type};
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    int file = fcntl(given, F_DUPFD_CLOEXEC, 0);
    struct physical_memory *memory = make((uint64_t)status.st_size, file, &properties);
    if (memory == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = memory->handle;
    return CUDA_SUCCESS;
}
