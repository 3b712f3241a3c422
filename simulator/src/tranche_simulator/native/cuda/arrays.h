/* Arrays: device memory for textures, by rows of elements. */
#ifndef TRANCHE_CUDA_ARRAYS_H
#define TRANCHE_CUDA_ARRAYS_H

#include "contexts.h"

struct CUarray_st {
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    size_t pitch; /* bytes of a row */
    size_t rows;
    CUdeviceptr memory;
    CUarray next;
};

CUarray array_of_handle(CUarray handle);
void arrays_free(CUcontext context);

#endif
