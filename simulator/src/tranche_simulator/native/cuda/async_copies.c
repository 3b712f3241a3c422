#include "bytes.h"
#include "streams.h"

/* Bytes move in the call: kernels change none, and a program may read them only after it has waited. */

static CUdeviceptr address_of(const void *host) { return (CUdeviceptr)(uintptr_t)host; }

static CUresult copy_in_stream(CUdeviceptr to, CUdeviceptr from, size_t size, enum copy_kind kind, CUstream stream) {
    return stream_of_handle(stream) == NULL ? CUDA_ERROR_INVALID_HANDLE : copy_bytes(to, from, size, kind);
}

static CUresult fill_in_stream(CUdeviceptr address, size_t pitch, uint32_t value, unsigned int element, size_t width,
                               size_t height, CUstream stream) {
    return stream_of_handle(stream) == NULL ? CUDA_ERROR_INVALID_HANDLE
                                            : fill_bytes(address, pitch, value, element, width, height);
}

CUDA_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER_CONTEXT();
    return copy_in_stream(to, from, size, COPY_ANY, stream);
}

CUDA_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    ENTER_CONTEXT();
    return copy_in_stream(to, address_of(from), size, COPY_HOST_TO_DEVICE, stream);
}

CUDA_API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER_CONTEXT();
    return copy_in_stream(address_of(to), from, size, COPY_DEVICE_TO_HOST, stream);
}

CUDA_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER_CONTEXT();
    return copy_in_stream(to, from, size, COPY_DEVICE_TO_DEVICE, stream);
}

CUDA_API CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream) {
    ENTER_CONTEXT();
    return fill_in_stream(address, 0, value, 1, count, 1, stream);
}

CUDA_API CUresult cuMemsetD16Async(CUdeviceptr address, unsigned short value, size_t count, CUstream stream) {
    ENTER_CONTEXT();
    return fill_in_stream(address, 0, value, 2, count, 1, stream);
}

CUDA_API CUresult cuMemsetD32Async(CUdeviceptr address, unsigned int value, size_t count, CUstream stream) {
    ENTER_CONTEXT();
    return fill_in_stream(address, 0, value, 4, count, 1, stream);
}
