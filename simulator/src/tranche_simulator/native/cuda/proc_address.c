#include "entry_points.h"

/* The flags choose between kinds of default stream, for functions that take one. */

CUDA_API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    (void)flags;
    if (name == NULL || function == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int status;
    return entry_point_named(name, function, version, &status);
}

CUDA_API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)flags;
    if (name == NULL || function == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int found;
    CUresult result = entry_point_named(name, function, version, &found);
    if (status != NULL) {
        *status = found;
    }
    return result;
}
