/* Bytes behind addresses, copied and set for real. */
#ifndef TRANCHE_CUDA_BYTES_H
#define TRANCHE_CUDA_BYTES_H

#include "allocations.h"

/* Which sides of a copy are addresses of devices; an address of neither kind is the program's own memory. */
enum copy_kind { COPY_HOST_TO_DEVICE, COPY_DEVICE_TO_HOST, COPY_DEVICE_TO_DEVICE, COPY_ANY };

CUresult copy_bytes(CUdeviceptr to, CUdeviceptr from, uint64_t size, enum copy_kind kind);

/* Rows of `width` elements of 1, 2 or 4 bytes, `pitch` bytes apart. */
CUresult fill_bytes(CUdeviceptr address, size_t pitch, uint32_t value, unsigned int element, size_t width, size_t height);

#endif
