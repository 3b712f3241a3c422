#include "contexts.h"

#include <stdlib.h>

#include "account.h"
#include "physical_memory.h"
#include "pools.h"
#include "resources.h"

enum { STACK_DEPTH = 128 };

static CUcontext all;
static unsigned long long last_id;
static unsigned int primary_flags[CUDA_MAX_DEVICES];
static CUcontext primaries[CUDA_MAX_DEVICES];

static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local unsigned int depth;

CUcontext context_current(void) { return depth > 0 ? stack[depth - 1] : NULL; }

static bool is_known(CUcontext handle) {
    for (CUcontext context = all; context != NULL; context = context->next) {
        if (context == handle) {
            return true;
        }
    }
    return false;
}

CUcontext context_of_handle(CUcontext handle) {
    return is_known(handle) && handle->device != NULL ? handle : NULL;
}

CUcontext primary_context(const struct cuda_device *device) {
    CUcontext primary = primaries[ordinal_of(device)];
    return primary != NULL && primary->device != NULL ? primary : NULL;
}

/* Puts a context to use: the process becomes a client of the device with its first one. */
static CUresult start(CUcontext context, struct cuda_device *device, unsigned int flags) {
    CUresult result = account_open(device, &context->bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    context->device = device;
    context->flags = flags;
    context->id = ++last_id;
    return CUDA_SUCCESS;
}

static CUresult allocate(struct cuda_device *device, unsigned int flags, CUcontext *made) {
    CUcontext context = calloc(1, sizeof *context);
    if (context == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = start(context, device, flags);
    if (result != CUDA_SUCCESS) {
        free(context);
        return result;
    }
    context->next = all;
    all = context;
    *made = context;
    return CUDA_SUCCESS;
}

CUresult context_create(struct cuda_device *device, unsigned int flags, CUcontext *context) {
    if (depth == STACK_DEPTH) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = allocate(device, flags, context);
    if (result == CUDA_SUCCESS) {
        stack[depth++] = *context;
    }
    return result;
}

void context_destroy(CUcontext context) {
    resources_free(context);
    if (context->device->contexts == 1) {
        physical_free(context->device);
        pools_free(context->device);
    }
    account_close(context->device, context->bytes);
    context->device = NULL;
    context->retained = 0;
}

CUresult primary_retain(struct cuda_device *device, CUcontext *context) {
    unsigned int ordinal = (unsigned int)ordinal_of(device);
    CUcontext *primary = &primaries[ordinal];
    CUresult result = CUDA_SUCCESS;
    if (*primary == NULL) {
        result = allocate(device, primary_flags[ordinal], primary);
    } else if ((*primary)->device == NULL) {
        result = start(*primary, device, primary_flags[ordinal]);
    }
    if (result == CUDA_SUCCESS) {
        (*primary)->primary = true;
        (*primary)->retained++;
        *context = *primary;
    }
    return result;
}

#define REQUIRE_DEVICE(ordinal, device)                    \
    struct cuda_device *device = device_at(ordinal);       \
    if (device == NULL) {                                  \
        return CUDA_ERROR_INVALID_DEVICE;                  \
    }

CUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(context != NULL);
    REQUIRE_DEVICE(ordinal, device);
    return driver.fault != CUDA_SUCCESS ? driver.fault : primary_retain(device, context);
}

CUDA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    ENTER_DRIVER();
    REQUIRE_DEVICE(ordinal, device);
    CUcontext primary = primary_context(device);
    if (primary == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--primary->retained == 0) {
        context_destroy(primary);
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    ENTER_DRIVER();
    REQUIRE_DEVICE(ordinal, device);
    CUcontext primary = primary_context(device);
    if (primary != NULL) {
        context_destroy(primary);
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active) {
    ENTER_DRIVER();
    REQUIRE_DEVICE(ordinal, device);
    REQUIRE_VALUE(flags != NULL && active != NULL);
    *flags = primary_flags[ordinal];
    *active = primary_context(device) != NULL;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags) {
    ENTER_DRIVER();
    REQUIRE_DEVICE(ordinal, device);
    primary_flags[ordinal] = flags;
    if (primary_context(device) != NULL) {
        primary_context(device)->flags = flags;
    }
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *context, unsigned int flags, CUdevice ordinal) {
    REQUIRE_VALUE(context != NULL);
    REQUIRE_DEVICE(ordinal, device);
    return driver.fault != CUDA_SUCCESS ? driver.fault : context_create(device, flags, context);
}

CUDA_API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal) {
    ENTER_DRIVER();
    return create(context, flags, ordinal);
}

/* Affinities would leave a context some of the multiprocessors; that is not simulated. */
CUDA_API CUresult cuCtxCreate_v3(CUcontext *context, const void *affinities, int count, unsigned int flags,
                                 CUdevice ordinal) {
    (void)affinities;
    ENTER_DRIVER();
    return count != 0 ? CUDA_ERROR_NOT_SUPPORTED : create(context, flags, ordinal);
}

CUDA_API CUresult cuCtxCreate_v4(CUcontext *context, const void *parameters, unsigned int flags, CUdevice ordinal) {
    (void)parameters;
    ENTER_DRIVER();
    return create(context, flags, ordinal);
}

CUDA_API CUresult cuCtxDestroy_v2(CUcontext handle) {
    ENTER_DRIVER();
    CUcontext context = context_of_handle(handle);
    if (context == NULL || context->primary) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    context_destroy(context);
    depth -= context_current() == context ? 1 : 0; /* on other stacks it stays, as one that was destroyed */
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetCurrent(CUcontext *context) {
    ENTER_DRIVER();
    REQUIRE_VALUE(context != NULL);
    *context = context_current();
    return CUDA_SUCCESS;
}

/* Takes the place of the one on top of the thread's stack. */
CUDA_API CUresult cuCtxSetCurrent(CUcontext handle) {
    ENTER_DRIVER();
    if (handle != NULL && context_of_handle(handle) == NULL) {
        return is_known(handle) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
    }
    depth -= depth > 0 ? 1 : 0;
    if (handle != NULL) {
        stack[depth++] = handle;
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxPushCurrent_v2(CUcontext handle) {
    ENTER_DRIVER();
    if (context_of_handle(handle) == NULL || depth == STACK_DEPTH) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    stack[depth++] = handle;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER_DRIVER();
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth--;
    if (context != NULL) {
        *context = stack[depth];
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetDevice(CUdevice *ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(ordinal != NULL);
    CUcontext context = context_current();
    if (context == NULL || context->device == NULL) {
        return context == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *ordinal = ordinal_of(context->device);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetDevice_v2(CUdevice *ordinal, CUcontext handle) {
    ENTER_DRIVER();
    REQUIRE_VALUE(ordinal != NULL);
    CUcontext context = context_of_handle(handle != NULL ? handle : context_current());
    if (context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *ordinal = ordinal_of(context->device);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetFlags(unsigned int *flags) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(flags != NULL);
    *flags = context_current()->flags;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetId(CUcontext handle, unsigned long long *id) {
    ENTER_DRIVER();
    REQUIRE_VALUE(id != NULL);
    CUcontext context = context_of_handle(handle != NULL ? handle : context_current());
    if (context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *id = context->id;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
    ENTER_DRIVER();
    REQUIRE_VALUE(version != NULL);
    CUcontext context = context_of_handle(handle != NULL ? handle : context_current());
    if (context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *version = 3020;
    return CUDA_SUCCESS;
}

/* No priority makes a difference. */
CUDA_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER_CONTEXT();
    if (least != NULL) {
        *least = 0;
    }
    if (greatest != NULL) {
        *greatest = -5;
    }
    return CUDA_SUCCESS;
}
