#include "arrays.h"
#include "bytes.h"
#include "streams.h"

/* One side of a copy of rows. */
struct side {
    CUdeviceptr first;
    size_t pitch;
};

static CUresult side_of(unsigned int type, const void *host, CUdeviceptr device, CUarray handle, size_t x, size_t y,
                        size_t pitch, size_t width, struct side *side) {
    CUarray array;
    switch (type) {
    case CU_MEMORYTYPE_HOST:
        side->first = (CUdeviceptr)(uintptr_t)host;
        break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        side->first = device;
        break;
    case CU_MEMORYTYPE_ARRAY:
        array = array_of_handle(handle);
        if (array == NULL) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        REQUIRE_VALUE(x + width <= array->pitch);
        side->first = array->memory;
        pitch = array->pitch;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    side->pitch = pitch != 0 ? pitch : width;
    REQUIRE_VALUE(side->pitch >= width);
    side->first += y * side->pitch + x;
    return CUDA_SUCCESS;
}

static CUresult copy_rows(const CUDA_MEMCPY2D *copy) {
    REQUIRE_VALUE(copy != NULL);
    struct side from, to;
    CUresult result = side_of(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray, copy->srcXInBytes,
                              copy->srcY, copy->srcPitch, copy->WidthInBytes, &from);
    if (result == CUDA_SUCCESS) {
        result = side_of(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray, copy->dstXInBytes,
                         copy->dstY, copy->dstPitch, copy->WidthInBytes, &to);
    }
    for (size_t row = 0; row < copy->Height && result == CUDA_SUCCESS; row++) {
        result = copy_bytes(to.first + row * to.pitch, from.first + row * from.pitch, copy->WidthInBytes, COPY_ANY);
    }
    return result;
}

CUDA_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy) {
    ENTER_CONTEXT();
    CUresult result = legacy_drain(context_current());
    return result == CUDA_SUCCESS ? copy_rows(copy) : result;
}

CUDA_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy) {
    ENTER_CONTEXT();
    CUresult result = legacy_drain(context_current());
    return result == CUDA_SUCCESS ? copy_rows(copy) : result;
}

CUDA_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) {
    ENTER_CONTEXT();
    return stream_of_handle(stream) == NULL ? CUDA_ERROR_INVALID_HANDLE : copy_rows(copy);
}
