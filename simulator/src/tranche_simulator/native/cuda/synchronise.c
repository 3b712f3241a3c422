#include "streams.h"

CUDA_API CUresult cuCtxSynchronize(void) {
    ENTER_CONTEXT();
    return context_drain(context_current());
}

CUDA_API CUresult cuCtxSynchronize_v2(CUcontext handle) {
    ENTER_DRIVER();
    CUcontext context = context_of_handle(handle);
    if (context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return driver.fault != CUDA_SUCCESS ? driver.fault : context_drain(context);
}
