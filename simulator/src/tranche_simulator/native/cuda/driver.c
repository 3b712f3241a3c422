#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <unistd.h>

#include "contexts.h"
#include "driver_release.h"

struct driver driver;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static bool forked; /* in a child whose parent had initialised CUDA */

static void before_fork(void) { pthread_mutex_lock(&guard); }

static void after_fork(void) { pthread_mutex_unlock(&guard); }

/* The GPU knows the parent; the child can use nothing of it, nor start over. */
static void in_child(void) {
    forked = driver.initialised;
    pthread_mutex_unlock(&guard);
}

static void register_fork_handlers(void) { pthread_atfork(before_fork, after_fork, in_child); }

void call_pause(void) { pthread_mutex_unlock(&guard); }

void call_resume(void) { pthread_mutex_lock(&guard); }

void call_end(struct call *call) {
    if (call->entered) {
        pthread_mutex_unlock(&guard);
    }
}

bool fault_is_fatal(CUresult code) {
    return code == CUDA_ERROR_ECC_UNCORRECTABLE || code == CUDA_ERROR_CONTAINED || code == CUDA_ERROR_ILLEGAL_ADDRESS ||
           code == CUDA_ERROR_LAUNCH_TIMEOUT || code == CUDA_ERROR_ASSERT ||
           (code >= CUDA_ERROR_HARDWARE_STACK_ERROR && code <= CUDA_ERROR_LAUNCH_FAILED) ||
           code == CUDA_ERROR_TENSOR_MEMORY_LEAK || code == CUDA_ERROR_MPS_RPC_FAILURE ||
           code == CUDA_ERROR_MPS_CLIENT_TERMINATED || code == CUDA_ERROR_UNKNOWN;
}

void driver_fault(CUresult fault) {
    if (driver.fault == CUDA_SUCCESS) {
        driver.fault = fault;
        mps_report_fault(driver.mps, fault);
    }
}

/* Without looking for injected faults, which is done once for each call. */
static struct call begin(void) {
    pthread_mutex_lock(&guard);
    bool usable = driver.initialised && !forked;
    return (struct call){.result = usable ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED, .entered = true};
}

struct call call_begin(const char *function) {
    struct call call = begin();
    if (call.result == CUDA_SUCCESS) {
        call.result = (CUresult)fault_check(driver.m, function, TRANCHE_SIM_ANY_GPU);
    }
    return call;
}

/* What has happened to the process's work, or to the device under it, since the last call. */
static CUresult health(const struct cuda_device *device) {
    if (driver.fault == CUDA_SUCCESS) {
        CUresult fault = mps_health(driver.mps);
        if (fault == CUDA_SUCCESS && !device_is_there(device)) {
            fault = CUDA_ERROR_UNKNOWN;
        }
        if (fault == CUDA_SUCCESS && atomic_load(&driver.m->state->clients[device->client].evicted) != 0) {
            fault = CUDA_ERROR_MPS_CLIENT_TERMINATED; /* its memory went to a process entitled to it */
        }
        if (fault != CUDA_SUCCESS) {
            driver.fault = fault; /* not of this process's doing */
        }
    }
    return driver.fault;
}

CUresult driver_health(void) {
    CUcontext context = context_current();
    return context == NULL || context->device == NULL ? CUDA_ERROR_CONTEXT_IS_DESTROYED : health(context->device);
}

struct call call_begin_context(const char *function) {
    struct call call = begin();
    if (call.result != CUDA_SUCCESS) {
        return call;
    }
    CUcontext context = context_current();
    if (context == NULL || context->device == NULL) {
        call.result = context == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
        return call;
    }
    CUresult injected = (CUresult)fault_check(driver.m, function, context->device->place.gpu);
    if (fault_is_fatal(injected)) {
        driver_fault(injected);
    }
    CUresult ended = health(context->device);
    call.result = ended != CUDA_SUCCESS ? ended : injected;
    return call;
}

struct cuda_device *device_at(CUdevice ordinal) {
    return ordinal >= 0 && (unsigned int)ordinal < driver.device_count ? &driver.devices[ordinal] : NULL;
}

CUdevice ordinal_of(const struct cuda_device *device) { return (CUdevice)(device - driver.devices); }

bool device_is_there(const struct cuda_device *device) {
    return atomic_load(&driver.m->state->boots) == driver.boot &&
           atomic_load(&driver.m->state->gpus[device->place.gpu].lost) == 0;
}

static CUresult open_machine(void) {
    const char *path = trancheSimDefaultStatePath();
    if (path == NULL || machine_open(path, &driver.m) != NVML_SUCCESS) {
        driver.m = NULL;
        return CUDA_ERROR_NO_DEVICE;
    }
    driver.boot = atomic_load(&driver.m->state->boots);
    return CUDA_SUCCESS;
}

static CUresult initialise(void) {
    CUresult result = open_machine();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = (CUresult)fault_check(driver.m, "cuInit", TRANCHE_SIM_ANY_GPU);
    if (result == CUDA_SUCCESS) {
        result = mps_join(driver.m, &driver.mps);
    }
    if (result == CUDA_SUCCESS) {
        result = find_devices();
    }
    if (result == CUDA_SUCCESS && driver.device_count == 0) {
        result = CUDA_ERROR_NO_DEVICE;
    }
    if (result != CUDA_SUCCESS) {
        machine_close(driver.m);
        driver.m = NULL;
        driver.device_count = 0;
        return result;
    }
    driver.pid = (int)getpid();
    driver.initialised = true;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuInit(unsigned int flags) {
    pthread_once(&fork_once, register_fork_handlers);
    pthread_mutex_lock(&guard);
    CUresult result = CUDA_SUCCESS;
    if (flags != 0) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (forked) {
        result = CUDA_ERROR_NOT_INITIALIZED;
    } else if (!driver.initialised) {
        result = initialise();
    }
    pthread_mutex_unlock(&guard);
    return result;
}

CUDA_API CUresult cuDriverGetVersion(int *version) {
    REQUIRE_VALUE(version != NULL);
    *version = driver_cuda(driver.m);
    return CUDA_SUCCESS;
}
