#include "bytes.h"
#include "streams.h"

static CUdeviceptr address_of(const void *host) { return (CUdeviceptr)(uintptr_t)host; }

/* A copy that the program waits for comes after what it gave the context to do before. */
static CUresult copy_after(CUdeviceptr to, CUdeviceptr from, size_t size, enum copy_kind kind) {
    CUresult result = legacy_drain(context_current());
    return result == CUDA_SUCCESS ? copy_bytes(to, from, size, kind) : result;
}

CUDA_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
    ENTER_CONTEXT();
    return copy_after(to, from, size, COPY_ANY);
}

CUDA_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    ENTER_CONTEXT();
    return copy_after(to, address_of(from), size, COPY_HOST_TO_DEVICE);
}

CUDA_API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    ENTER_CONTEXT();
    return copy_after(address_of(to), from, size, COPY_DEVICE_TO_HOST);
}

CUDA_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
    ENTER_CONTEXT();
    return copy_after(to, from, size, COPY_DEVICE_TO_DEVICE);
}

/* The contexts are where the addresses say. */
CUDA_API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                               size_t size) {
    (void)to_context;
    (void)from_context;
    ENTER_CONTEXT();
    return copy_after(to, from, size, COPY_DEVICE_TO_DEVICE);
}

CUDA_API CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count) {
    ENTER_CONTEXT();
    return fill_bytes(address, 0, value, 1, count, 1);
}

CUDA_API CUresult cuMemsetD16_v2(CUdeviceptr address, unsigned short value, size_t count) {
    ENTER_CONTEXT();
    return fill_bytes(address, 0, value, 2, count, 1);
}

CUDA_API CUresult cuMemsetD32_v2(CUdeviceptr address, unsigned int value, size_t count) {
    ENTER_CONTEXT();
    return fill_bytes(address, 0, value, 4, count, 1);
}

CUDA_API CUresult cuMemsetD2D8_v2(CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height) {
    ENTER_CONTEXT();
    return fill_bytes(address, pitch, value, 1, width, height);
}

CUDA_API CUresult cuMemsetD2D16_v2(CUdeviceptr address, size_t pitch, unsigned short value, size_t width,
                                   size_t height) {
    ENTER_CONTEXT();
    return fill_bytes(address, pitch, value, 2, width, height);
}

CUDA_API CUresult cuMemsetD2D32_v2(CUdeviceptr address, size_t pitch, unsigned int value, size_t width, size_t height) {
    ENTER_CONTEXT();
    return fill_bytes(address, pitch, value, 4, width, height);
}
