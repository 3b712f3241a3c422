#include "arrays.h"

#include <stdlib.h>

#include "allocations.h"
#include "bytes.h"
#include "streams.h"

static CUarray all;

CUarray array_of_handle(CUarray handle) {
    for (CUarray array = all; array != NULL; array = array->next) {
        if (array == handle) {
            return array;
        }
    }
    return NULL;
}

/* Bytes of an element of a channel; 0: no such format here. */
static size_t format_size(int format) {
    switch (format) {
    case 0x01: /* unsigned and signed, of 8, 16 and 32 bits */
    case 0x08:
        return 1;
    case 0x02:
    case 0x09:
    case 0x10: /* half */
        return 2;
    case 0x03:
    case 0x0A:
    case 0x20: /* float */
        return 4;
    default:
        return 0;
    }
}

static size_t at_least_one(size_t number) { return number > 0 ? number : 1; }

static CUresult create(CUarray *created, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    size_t element = format_size(shape->Format) * shape->NumChannels, size;
    REQUIRE_VALUE(created != NULL && shape->Width > 0 && element > 0);
    REQUIRE_VALUE(shape->NumChannels == 1 || shape->NumChannels == 2 || shape->NumChannels == 4);
    size_t rows = at_least_one(shape->Height) * at_least_one(shape->Depth);
    REQUIRE_VALUE(!__builtin_mul_overflow(shape->Width * element, rows, &size));
    CUarray array = calloc(1, sizeof *array);
    if (array == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = allocate_device(context_current(), size, &array->memory);
    if (result != CUDA_SUCCESS) {
        free(array);
        return result;
    }
    array->context = context_current();
    array->shape = *shape;
    array->pitch = shape->Width * element;
    array->rows = rows;
    array->next = all;
    all = array;
    *created = array;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuArrayCreate_v2(CUarray *created, const CUDA_ARRAY_DESCRIPTOR *shape) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(shape != NULL);
    CUDA_ARRAY3D_DESCRIPTOR flat = {
        .Width = shape->Width, .Height = shape->Height, .Format = shape->Format, .NumChannels = shape->NumChannels};
    return create(created, &flat);
}

CUDA_API CUresult cuArray3DCreate_v2(CUarray *created, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(shape != NULL);
    return create(created, shape);
}

CUDA_API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *shape, CUarray handle) {
    ENTER_CONTEXT();
    CUarray array = array_of_handle(handle);
    if (array == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    REQUIRE_VALUE(shape != NULL);
    *shape = (CUDA_ARRAY_DESCRIPTOR){.Width = array->shape.Width,
                                     .Height = array->shape.Height,
                                     .Format = array->shape.Format,
                                     .NumChannels = array->shape.NumChannels};
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray handle) {
    ENTER_CONTEXT();
    CUarray array = array_of_handle(handle);
    if (array == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    REQUIRE_VALUE(shape != NULL);
    *shape = array->shape;
    return CUDA_SUCCESS;
}

static void destroy(CUarray array) {
    for (CUarray *place = &all; *place != NULL; place = &(*place)->next) {
        if (*place == array) {
            *place = array->next;
            break;
        }
    }
    allocation_free(allocation_beginning(array->memory));
    free(array);
}

CUDA_API CUresult cuArrayDestroy(CUarray handle) {
    ENTER_CONTEXT();
    CUarray array = array_of_handle(handle);
    if (array == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = context_drain(array->context);
    if (result == CUDA_SUCCESS) {
        destroy(array);
    }
    return result;
}

void arrays_free(CUcontext context) {
    for (CUarray array = all, next; array != NULL; array = next) {
        next = array->next;
        if (array->context == context) {
            destroy(array);
        }
    }
}

static CUresult copy_part(CUarray handle, size_t offset, CUdeviceptr other, size_t size, bool to_array,
                          enum copy_kind kind) {
    CUarray array = array_of_handle(handle);
    if (array == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = legacy_drain(array->context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return to_array ? copy_bytes(array->memory + offset, other, size, kind)
                    : copy_bytes(other, array->memory + offset, size, kind);
}

CUDA_API CUresult cuMemcpyHtoA_v2(CUarray array, size_t offset, const void *from, size_t size) {
    ENTER_CONTEXT();
    return copy_part(array, offset, (CUdeviceptr)(uintptr_t)from, size, true, COPY_HOST_TO_DEVICE);
}

CUDA_API CUresult cuMemcpyAtoH_v2(void *to, CUarray array, size_t offset, size_t size) {
    ENTER_CONTEXT();
    return copy_part(array, offset, (CUdeviceptr)(uintptr_t)to, size, false, COPY_DEVICE_TO_HOST);
}

CUDA_API CUresult cuMemcpyDtoA_v2(CUarray array, size_t offset, CUdeviceptr from, size_t size) {
    ENTER_CONTEXT();
    return copy_part(array, offset, from, size, true, COPY_DEVICE_TO_DEVICE);
}

CUDA_API CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray array, size_t offset, size_t size) {
    ENTER_CONTEXT();
    return copy_part(array, offset, to, size, false, COPY_DEVICE_TO_DEVICE);
}
