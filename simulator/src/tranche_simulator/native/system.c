#include <stdio.h>

#include "driver_release.h"
#include "session.h"

const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_ALREADY_INITIALIZED:
        return "Already Initialized";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_INSUFFICIENT_POWER:
        return "Insufficient External Power";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
        return "Timeout";
    case NVML_ERROR_IRQ_ISSUE:
        return "Interrupt Request Issue";
    case NVML_ERROR_LIBRARY_NOT_FOUND:
        return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
        return "Function Not Found";
    case NVML_ERROR_CORRUPTED_INFOROM:
        return "Corrupted infoROM";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED:
        return "GPU requires restart";
    case NVML_ERROR_OPERATING_SYSTEM:
        return "The operating system has blocked the request.";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE:
        return "In use by another client";
    case NVML_ERROR_MEMORY:
        return "Insufficient Memory";
    case NVML_ERROR_NO_DATA:
        return "No data";
    case NVML_ERROR_VGPU_ECC_NOT_SUPPORTED:
        return "vGPU ECC Not Supported";
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
        return "Insufficient Resources";
    case NVML_ERROR_FREQ_NOT_SUPPORTED:
        return "Frequency Not Supported";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument Version Mismatch";
    case NVML_ERROR_DEPRECATED:
        return "Deprecated";
    case NVML_ERROR_NOT_READY:
        return "Not Ready";
    case NVML_ERROR_GPU_NOT_FOUND:
        return "GPU Not Found";
    case NVML_ERROR_INVALID_STATE:
        return "Invalid State";
    case NVML_ERROR_RESET_TYPE_NOT_SUPPORTED:
        return "Reset Type Not Supported";
    case NVML_ERROR_UNKNOWN:
        break;
    }
    return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    const struct session *session;
    ENTER(&session);
    char text[DRIVER_VERSION_SIZE];
    driver_version(session->m, text);
    return give_text(version, length, text);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    const struct session *session;
    ENTER(&session);
    char driver[DRIVER_VERSION_SIZE], text[DRIVER_VERSION_SIZE + 8];
    driver_version(session->m, driver);
    snprintf(text, sizeof text, "%d.%s", driver_cuda(session->m) / 1000, driver);
    return give_text(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(version != NULL);
    *version = driver_cuda(session->m);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(version != NULL);
    *version = driver_cuda(session->m);
    return NVML_SUCCESS;
}

nvmlReturn_t unsupported(const char *function) {
    const struct session *session;
    nvmlReturn_t entered = enter(function, &session);
    return entered != NVML_SUCCESS ? entered : NVML_ERROR_NOT_SUPPORTED;
}

/* The driver sees no unit (S-class enclosure) and excludes no device. */
NVML_API nvmlReturn_t nvmlUnitGetCount(unsigned int *count) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}
