/* cuGetProcAddress: programs of today ask it for every function by name and by the CUDA version that they were compiled for. */
#include <stdbool.h>
#include <string.h>

#include "entry_points.h"

#include "driver.h"
#include "driver_release.h"

/* The functions by the name that programs ask for, the CUDA version since which the name stands for it, and its symbol. */
#define ENTRY_POINTS(ENTRY)                                                     \
    ENTRY(cuInit, 2000, cuInit)                                                 \
    ENTRY(cuDriverGetVersion, 2020, cuDriverGetVersion)                         \
    ENTRY(cuGetErrorName, 6000, cuGetErrorName)                                 \
    ENTRY(cuGetErrorString, 6000, cuGetErrorString)                             \
    ENTRY(cuGetProcAddress, 11030, cuGetProcAddress)                            \
    ENTRY(cuGetProcAddress, 12000, cuGetProcAddress_v2)                         \
    ENTRY(cuDeviceGetCount, 2000, cuDeviceGetCount)                             \
    ENTRY(cuDeviceGet, 2000, cuDeviceGet)                                       \
    ENTRY(cuDeviceGetName, 2000, cuDeviceGetName)                               \
    ENTRY(cuDeviceGetUuid, 9020, cuDeviceGetUuid)                               \
    ENTRY(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2)                           \
    ENTRY(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)                          \
    ENTRY(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)                     \
    ENTRY(cuDeviceComputeCapability, 2000, cuDeviceComputeCapability)           \
    ENTRY(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId)                       \
    ENTRY(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId)                   \
    ENTRY(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer)                   \
    ENTRY(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)             \
    ENTRY(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)       \
    ENTRY(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2)           \
    ENTRY(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState)         \
    ENTRY(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2)     \
    ENTRY(cuCtxCreate, 3020, cuCtxCreate_v2)                                    \
    ENTRY(cuCtxCreate, 11040, cuCtxCreate_v3)                                   \
    ENTRY(cuCtxCreate, 12050, cuCtxCreate_v4)                                   \
    ENTRY(cuCtxDestroy, 4000, cuCtxDestroy_v2)                                  \
    ENTRY(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                               \
    ENTRY(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                               \
    ENTRY(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2)                          \
    ENTRY(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2)                            \
    ENTRY(cuCtxGetDevice, 2000, cuCtxGetDevice)                                 \
    ENTRY(cuCtxGetDevice, 13000, cuCtxGetDevice_v2)                             \
    ENTRY(cuCtxGetFlags, 7000, cuCtxGetFlags)                                   \
    ENTRY(cuCtxGetId, 12000, cuCtxGetId)                                        \
    ENTRY(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange)       \
    ENTRY(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion)                         \
    ENTRY(cuCtxSynchronize, 2000, cuCtxSynchronize)                             \
    ENTRY(cuCtxSynchronize, 13000, cuCtxSynchronize_v2)                         \
    ENTRY(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                  \
    ENTRY(cuMemAlloc, 3020, cuMemAlloc_v2)                                      \
    ENTRY(cuMemAllocPitch, 3020, cuMemAllocPitch_v2)                            \
    ENTRY(cuMemAllocManaged, 6000, cuMemAllocManaged)                           \
    ENTRY(cuMemFree, 3020, cuMemFree_v2)                                        \
    ENTRY(cuMemAllocHost, 3020, cuMemAllocHost_v2)                              \
    ENTRY(cuMemHostAlloc, 2020, cuMemHostAlloc)                                 \
    ENTRY(cuMemFreeHost, 2000, cuMemFreeHost)                                   \
    ENTRY(cuMemHostRegister, 6050, cuMemHostRegister_v2)                        \
    ENTRY(cuMemHostUnregister, 4000, cuMemHostUnregister)                       \
    ENTRY(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)        \
    ENTRY(cuMemHostGetFlags, 2030, cuMemHostGetFlags)                           \
    ENTRY(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2)                  \
    ENTRY(cuPointerGetAttribute, 4000, cuPointerGetAttribute)                   \
    ENTRY(cuPointerGetAttributes, 7000, cuPointerGetAttributes)                 \
    ENTRY(cuMemcpy, 4000, cuMemcpy)                                             \
    ENTRY(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2)                                  \
    ENTRY(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2)                                  \
    ENTRY(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2)                                  \
    ENTRY(cuMemcpyPeer, 4000, cuMemcpyPeer)                                     \
    ENTRY(cuMemsetD8, 3020, cuMemsetD8_v2)                                      \
    ENTRY(cuMemsetD16, 3020, cuMemsetD16_v2)                                    \
    ENTRY(cuMemsetD32, 3020, cuMemsetD32_v2)                                    \
    ENTRY(cuMemsetD2D8, 3020, cuMemsetD2D8_v2)                                  \
    ENTRY(cuMemsetD2D16, 3020, cuMemsetD2D16_v2)                                \
    ENTRY(cuMemsetD2D32, 3020, cuMemsetD2D32_v2)                                \
    ENTRY(cuStreamCreate, 2000, cuStreamCreate)                                 \
    ENTRY(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority)         \
    ENTRY(cuStreamDestroy, 4000, cuStreamDestroy_v2)                            \
    ENTRY(cuStreamSynchronize, 2000, cuStreamSynchronize)                       \
    ENTRY(cuStreamQuery, 2000, cuStreamQuery)                                   \
    ENTRY(cuStreamWaitEvent, 3020, cuStreamWaitEvent)                           \
    ENTRY(cuStreamGetFlags, 5050, cuStreamGetFlags)                             \
    ENTRY(cuStreamGetPriority, 5050, cuStreamGetPriority)                       \
    ENTRY(cuStreamGetId, 12000, cuStreamGetId)                                  \
    ENTRY(cuStreamGetCtx, 9020, cuStreamGetCtx)                                 \
    ENTRY(cuStreamGetDevice, 12080, cuStreamGetDevice)                          \
    ENTRY(cuStreamIsCapturing, 10000, cuStreamIsCapturing)                      \
    ENTRY(cuLaunchHostFunc, 10000, cuLaunchHostFunc)                            \
    ENTRY(cuEventCreate, 2000, cuEventCreate)                                   \
    ENTRY(cuEventDestroy, 4000, cuEventDestroy_v2)                              \
    ENTRY(cuEventRecord, 2000, cuEventRecord)                                   \
    ENTRY(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags)                \
    ENTRY(cuEventQuery, 2000, cuEventQuery)                                     \
    ENTRY(cuEventSynchronize, 2000, cuEventSynchronize)                         \
    ENTRY(cuEventElapsedTime, 2000, cuEventElapsedTime)                         \
    ENTRY(cuEventElapsedTime, 12080, cuEventElapsedTime_v2)                     \
    ENTRY(cuModuleLoadData, 2000, cuModuleLoadData)                             \
    ENTRY(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx)                         \
    ENTRY(cuModuleLoad, 2000, cuModuleLoad)                                     \
    ENTRY(cuModuleUnload, 2000, cuModuleUnload)                                 \
    ENTRY(cuModuleGetFunction, 2000, cuModuleGetFunction)                       \
    ENTRY(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount)            \
    ENTRY(cuModuleGetLoadingMode, 11070, cuModuleGetLoadingMode)                \
    ENTRY(cuFuncGetModule, 11000, cuFuncGetModule)                              \
    ENTRY(cuFuncGetName, 12030, cuFuncGetName)                                  \
    ENTRY(cuFuncGetParamInfo, 12040, cuFuncGetParamInfo)                        \
    ENTRY(cuFuncGetAttribute, 2020, cuFuncGetAttribute)                         \
    ENTRY(cuFuncSetAttribute, 9000, cuFuncSetAttribute)                         \
    ENTRY(cuFuncSetCacheConfig, 3000, cuFuncSetCacheConfig)                     \
    ENTRY(cuLaunchKernel, 4000, cuLaunchKernel)                                 \
    ENTRY(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel)           \
    ENTRY(cuLaunchKernelEx, 11060, cuLaunchKernelEx)                            \
    ENTRY(cuMemcpyAsync, 4000, cuMemcpyAsync)                                   \
    ENTRY(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2)                        \
    ENTRY(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2)                        \
    ENTRY(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2)                        \
    ENTRY(cuMemsetD8Async, 3020, cuMemsetD8Async)                               \
    ENTRY(cuMemsetD16Async, 3020, cuMemsetD16Async)                             \
    ENTRY(cuMemsetD32Async, 3020, cuMemsetD32Async)                             \
    ENTRY(cuMemAllocAsync, 11020, cuMemAllocAsync)                              \
    ENTRY(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync)              \
    ENTRY(cuMemFreeAsync, 11020, cuMemFreeAsync)                                \
    ENTRY(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool)          \
    ENTRY(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool)                        \
    ENTRY(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool)                        \
    ENTRY(cuMemPoolCreate, 11020, cuMemPoolCreate)                              \
    ENTRY(cuMemPoolDestroy, 11020, cuMemPoolDestroy)                            \
    ENTRY(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo)                              \
    ENTRY(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute)                  \
    ENTRY(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute)                  \
    ENTRY(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess)                        \
    ENTRY(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity)  \
    ENTRY(cuMemCreate, 10020, cuMemCreate)                                      \
    ENTRY(cuMemRelease, 10020, cuMemRelease)                                    \
    ENTRY(cuMemMap, 10020, cuMemMap)                                            \
    ENTRY(cuMemUnmap, 10020, cuMemUnmap)                                        \
    ENTRY(cuMemSetAccess, 10020, cuMemSetAccess)                                \
    ENTRY(cuMemGetAccess, 10020, cuMemGetAccess)                                \
    ENTRY(cuMemAddressReserve, 10020, cuMemAddressReserve)                      \
    ENTRY(cuMemAddressFree, 10020, cuMemAddressFree)                            \
    ENTRY(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle)      \
    ENTRY(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle)\
    ENTRY(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle)    \
    ENTRY(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle)\
    ENTRY(cuArrayCreate, 3020, cuArrayCreate_v2)                                \
    ENTRY(cuArray3DCreate, 3020, cuArray3DCreate_v2)                            \
    ENTRY(cuArrayGetDescriptor, 3020, cuArrayGetDescriptor_v2)                  \
    ENTRY(cuArray3DGetDescriptor, 3020, cuArray3DGetDescriptor_v2)              \
    ENTRY(cuArrayDestroy, 2000, cuArrayDestroy)                                 \
    ENTRY(cuMemcpyHtoA, 3020, cuMemcpyHtoA_v2)                                  \
    ENTRY(cuMemcpyAtoH, 3020, cuMemcpyAtoH_v2)                                  \
    ENTRY(cuMemcpyDtoA, 3020, cuMemcpyDtoA_v2)                                  \
    ENTRY(cuMemcpyAtoD, 3020, cuMemcpyAtoD_v2)                                  \
    ENTRY(cuMemcpy2D, 3020, cuMemcpy2D_v2)                                      \
    ENTRY(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2)                    \
    ENTRY(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2)                            \
    ENTRY(cuGraphCreate, 10000, cuGraphCreate)                                  \
    ENTRY(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2)                 \
    ENTRY(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode)                      \
    ENTRY(cuGraphGetNodes, 10000, cuGraphGetNodes)                              \
    ENTRY(cuGraphNodeGetType, 10000, cuGraphNodeGetType)                        \
    ENTRY(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags)      \
    ENTRY(cuGraphUpload, 11010, cuGraphUpload)                                  \
    ENTRY(cuGraphLaunch, 10000, cuGraphLaunch)                                  \
    ENTRY(cuGraphExecDestroy, 10000, cuGraphExecDestroy)                        \
    ENTRY(cuGraphDestroy, 10000, cuGraphDestroy)

#define DECLARE(name, since, symbol) CUDA_API void symbol(void);
ENTRY_POINTS(DECLARE)

typedef void (*entry_point)(void);

#define ROW(name, since, symbol) {#name, since, symbol},
static const struct {
    const char *name;
    int since;
    entry_point function;
} entries[] = {ENTRY_POINTS(ROW)};

CUresult unsupported_call(const char *function) {
    struct call call __attribute__((cleanup(call_end))) = call_begin(function);
    return call.result != CUDA_SUCCESS ? call.result : CUDA_ERROR_NOT_SUPPORTED;
}

/* Programs ask without a version. Since when a driver has such a function is not written down: it is found in every driver. */
static entry_point unsupported_named(const char *name) {
    size_t length = strlen(name);
    for (const struct unsupported_entry *each = unsupported_entries; each->name != NULL; each++) {
        if (strncmp(each->name, name, length) == 0 && (each->name[length] == '\0' || each->name[length] == '_')) {
            return (entry_point)each->function;
        }
    }
    return NULL;
}

/* The newest function of that name which a program of that CUDA version knows. */
CUresult entry_point_named(const char *name, void **function, int version, int *status) {
    int cuda = driver_cuda(driver.m);
    entry_point newest = NULL;
    int since = -1;
    bool simulated = false;
    bool known = false;
    for (unsigned int i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(entries[i].name, name) != 0) {
            continue;
        }
        simulated = true;
        if (entries[i].since > cuda) {
            continue;
        }
        known = true;
        if (entries[i].since <= version && entries[i].since > since) {
            newest = entries[i].function;
            since = entries[i].since;
        }
    }
    if (!simulated) {
        newest = unsupported_named(name);
    }
    memcpy(function, &newest, sizeof newest);
    *status = newest != NULL ? CU_GET_PROC_ADDRESS_FOUND
              : known        ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                             : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return newest != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
