#include "pools.h"
#include "streams.h"

static CUresult drain_and_trim(CUcontext context) {
    CUresult result = context_drain(context);
    if (context->device != NULL) {
        pools_trim(context->device);
    }
    return result;
}

CUDA_API CUresult cuCtxSynchronize(void) {
    ENTER_CONTEXT();
    return drain_and_trim(context_current());
}

CUDA_API CUresult cuCtxSynchronize_v2(CUcontext handle) {
    ENTER_DRIVER();
    CUcontext context = context_of_handle(handle);
    if (context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return driver.fault != CUDA_SUCCESS ? driver.fault : drain_and_trim(context);
}
