#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "account.h"
#include "allocations.h"
#include "physical_memory.h"

/* Addresses that a program has reserved, and what it maps there. */
struct reservation {
    CUdeviceptr address;
    uint64_t size;
    struct reservation *next;
};

static struct reservation *reservations;

static bool is_whole(uint64_t bytes) { return bytes > 0 && bytes % CUDA_ALLOCATION_UNIT == 0; }

static struct reservation *reservation_of(CUdeviceptr address, uint64_t size) {
    for (struct reservation *each = reservations; each != NULL; each = each->next) {
        if (address >= each->address && address - each->address < each->size &&
            size <= each->size - (address - each->address)) {
            return each;
        }
    }
    return NULL;
}

/* Pages without anything behind them, at a multiple of the unit. */
static char *reserve_pages(uint64_t size) {
    uint64_t wider = size + CUDA_ALLOCATION_UNIT;
    char *pages = mmap(NULL, wider, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        return NULL;
    }
    uint64_t before = (CUDA_ALLOCATION_UNIT - (uintptr_t)pages % CUDA_ALLOCATION_UNIT) % CUDA_ALLOCATION_UNIT;
    if (before > 0) {
        munmap(pages, before);
    }
    munmap(pages + before + size, CUDA_ALLOCATION_UNIT - before);
    return pages + before;
}

CUDA_API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                                      unsigned long long flags) {
    (void)wanted; /* a wish */
    ENTER_DRIVER();
    REQUIRE_VALUE(address != NULL && is_whole(size) && flags == 0 && (alignment & (alignment - 1)) == 0 &&
                  alignment <= CUDA_ALLOCATION_UNIT);
    struct reservation *reservation = calloc(1, sizeof *reservation);
    char *pages = reservation != NULL ? reserve_pages(size) : NULL;
    if (pages == NULL) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *reservation = (struct reservation){.address = device_address(pages), .size = size, .next = reservations};
    reservations = reservation;
    *address = reservation->address;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    ENTER_DRIVER();
    struct reservation *reservation = reservation_of(address, size);
    REQUIRE_VALUE(reservation != NULL && reservation->address == address && reservation->size == size);
    REQUIRE_VALUE(allocation_within(address, size, ALLOCATION_MAPPED) == NULL);
    for (struct reservation **place = &reservations; *place != NULL; place = &(*place)->next) {
        if (*place == reservation) {
            *place = reservation->next;
            break;
        }
    }
    munmap(device_backing(address), size);
    free(reservation);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                           unsigned long long flags) {
    ENTER_CONTEXT();
    struct physical_memory *memory = physical_of_handle(handle);
    REQUIRE_VALUE(memory != NULL && is_whole(size) && offset % CUDA_ALLOCATION_UNIT == 0 && flags == 0);
    REQUIRE_VALUE(offset <= memory->size && size <= memory->size - offset && reservation_of(address, size) != NULL);
    if (allocation_at(address) != NULL || allocation_within(address, size, ALLOCATION_MAPPED) != NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    char *pages = device_backing(address);
    void *mapped = mmap(pages, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->file, (off_t)offset);
    struct allocation *allocation = mapped != MAP_FAILED ? allocate_mapped(context_current(), size, pages) : NULL;
    if (allocation == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation->physical = memory;
    memory->uses++;
    return CUDA_SUCCESS;
}

/* All devices share the rights: what one may do, all may. */
CUDA_API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
    ENTER_DRIVER();
    REQUIRE_VALUE(access != NULL && count > 0 && is_whole(size));
    REQUIRE_VALUE(allocation_within(address, size, ALLOCATION_MAPPED) != NULL);
    for (uint64_t at = 0; at < size;) {
        struct allocation *allocation = allocation_beginning(address + at);
        REQUIRE_VALUE(allocation != NULL && allocation->kind == ALLOCATION_MAPPED);
        allocation->flags = (unsigned int)access[0].flags;
        at += allocation->size;
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    ENTER_DRIVER();
    struct allocation *allocation = allocation_at(address);
    REQUIRE_VALUE(flags != NULL && location != NULL && allocation != NULL);
    *flags = allocation->kind == ALLOCATION_MAPPED ? allocation->flags : CU_MEM_ACCESS_READ_WRITE;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    ENTER_DRIVER();
    REQUIRE_VALUE(is_whole(size) && reservation_of(address, size) != NULL);
    struct allocation *allocation = allocation_within(address, size, ALLOCATION_MAPPED);
    REQUIRE_VALUE(allocation != NULL && allocation->address == address);
    for (; allocation != NULL; allocation = allocation_within(address, size, ALLOCATION_MAPPED)) {
        REQUIRE_VALUE(allocation->address + allocation->size <= address + size);
        allocation_free(allocation);
    }
    mmap(device_backing(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    ENTER_DRIVER();
    struct allocation *allocation = allocation_at((CUdeviceptr)(uintptr_t)address);
    REQUIRE_VALUE(handle != NULL && allocation != NULL && allocation->kind == ALLOCATION_MAPPED);
    allocation->physical->handles++;
    *handle = allocation->physical->handle;
    return CUDA_SUCCESS;
}
