#include "contexts.h"

CUDA_API CUresult cuCtxSynchronize(void) {
    ENTER_CONTEXT();
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSynchronize_v2(CUcontext handle) {
    ENTER_DRIVER();
    if (context_of_handle(handle) == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return driver.fault;
}
