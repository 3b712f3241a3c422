#include "launches.h"

#include <string.h>

enum { MAX_THREADS = 1024 };

/* The value of an integer argument, from pointers to the arguments or from all of them in one buffer; 0 without one. */
static int64_t argument(CUfunction function, unsigned int index, void **parameters, void **extra) {
    if (index >= function->parameters) {
        return 0;
    }
    const char *bytes = parameters != NULL ? parameters[index] : NULL;
    for (unsigned int i = 0; bytes == NULL && extra != NULL && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            bytes = (const char *)extra[i + 1] + function->layout[index].offset;
        }
    }
    int64_t value = 0;
    int32_t narrow = 0;
    if (bytes != NULL && function->layout[index].size == sizeof value) {
        memcpy(&value, bytes, sizeof value);
    } else if (bytes != NULL && function->layout[index].size == sizeof narrow) {
        memcpy(&narrow, bytes, sizeof narrow);
        value = narrow;
    }
    return value > 0 ? value : 0;
}

CUresult launch_prepare(CUfunction handle, const unsigned int grid[3], const unsigned int block[3], void **parameters,
                        void **extra, struct launch *launch) {
    CUfunction function = function_of_handle(handle);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    REQUIRE_VALUE(grid[0] > 0 && grid[1] > 0 && grid[2] > 0 && block[0] > 0 && block[1] > 0 && block[2] > 0);
    REQUIRE_VALUE((uint64_t)block[0] * block[1] * block[2] <= MAX_THREADS);
    REQUIRE_VALUE(parameters == NULL || extra == NULL);
    *launch = (struct launch){.function = function};
    memcpy(launch->grid, grid, sizeof launch->grid);
    memcpy(launch->block, block, sizeof launch->block);
    double times = function->times == NO_PARAMETER
                       ? 1.0
                       : (double)argument(function, (unsigned int)function->times, parameters, extra);
    double nanoseconds = function->nanoseconds * times;
    launch->nanoseconds = nanoseconds < 1e15 ? (uint64_t)nanoseconds : (uint64_t)1e15;
    return CUDA_SUCCESS;
}

CUresult launch_put(const struct launch *launch, CUstream stream) {
    const struct cuda_device *device = stream->context->device;
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    struct lane_item item = {
        .work = launch->nanoseconds,
        .width = blocks < device->board->multiprocessors ? (uint32_t)blocks : device->board->multiprocessors,
        .after_lane = NO_LANE,
    };
    CUresult fault = launch->function->fault;
    CUresult result = stream_put(stream, &item, NULL);
    if (result == CUDA_SUCCESS && fault != CUDA_SUCCESS) {
        result = fault_schedule(&stream->last, fault);
    }
    return result;
}

static CUresult launch_now(CUfunction function, const unsigned int grid[3], const unsigned int block[3], CUstream handle,
                           void **parameters, void **extra) {
    CUstream stream = stream_of_handle(handle);
    if (stream == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct launch launch;
    CUresult result = launch_prepare(function, grid, block, parameters, extra, &launch);
    return result == CUDA_SUCCESS ? launch_put(&launch, stream) : result;
}

CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                                 unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
                                 void **parameters, void **extra) {
    (void)shared;
    ENTER_CONTEXT();
    return launch_now(function, (unsigned int[]){gx, gy, gz}, (unsigned int[]){bx, by, bz}, stream, parameters, extra);
}

CUDA_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                                            unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                                            CUstream stream, void **parameters) {
    (void)shared;
    ENTER_CONTEXT();
    return launch_now(function, (unsigned int[]){gx, gy, gz}, (unsigned int[]){bx, by, bz}, stream, parameters, NULL);
}

CUDA_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(config != NULL);
    const unsigned int grid[] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const unsigned int block[] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    return launch_now(function, grid, block, config->hStream, parameters, extra);
}
