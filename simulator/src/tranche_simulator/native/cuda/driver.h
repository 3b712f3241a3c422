/* The CUDA driver as this process sees it: the machine, the devices that it may use, and the way into every function. */
#ifndef TRANCHE_CUDA_DRIVER_H
#define TRANCHE_CUDA_DRIVER_H

#include "cuda_abi.h"
#include "mps_client.h"
#include "session.h"

#define CUDA_MAX_DEVICES TRANCHE_SIM_MAX_GPUS
#define CUDA_ALLOCATION_UNIT (2ull << 20) /* bytes: device memory is taken from the device in pieces of this size */

/* A GPU or a MIG device, by its ordinal in this process. Fixed by cuInit, but for what the process holds. */
struct cuda_device {
    struct device_place place;
    const struct board *board;
    const struct gi_profile *profile; /* NULL unless a MIG device */
    unsigned int multiprocessors;     /* of the device, before MPS limits them */
    uint64_t memory;                  /* bytes that programs can use */
    char uuid[64];                    /* "GPU-..." or "MIG-..." */
    CUuuid id;
    char name[128];
    /* What this process holds there. */
    unsigned int contexts;
    unsigned int client;      /* slot in the machine's table while there are contexts */
    struct mps_seat seat;     /* likewise */
    uint64_t context_bytes;   /* of all its contexts */
    uint64_t small_bytes;     /* of allocations that share pieces of CUDA_ALLOCATION_UNIT */
    uint64_t large_bytes;     /* of all others, rounded up */
};

struct driver {
    bool initialised;
    machine *m;
    int pid;
    uint64_t boot; /* of the machine, when cuInit was called */
    struct mps_session *mps;
    unsigned int device_count;
    struct cuda_device devices[CUDA_MAX_DEVICES];
    CUresult fault; /* of a kind that ends all work of the process */
};

extern struct driver driver;

/* A call under way. Calls of one process exclude each other; waiting for the GPU releases the others. */
struct call {
    CUresult result;
    bool entered;
};

struct call call_begin(const char *function);
struct call call_begin_context(const char *function);
void call_end(struct call *call);

/* Let other threads in while this one waits, and the other way round. */
void call_pause(void);
void call_resume(void);

/* Initialised. */
#define ENTER_DRIVER()                                                                      \
    struct call call __attribute__((cleanup(call_end))) = call_begin(__func__);             \
    if (call.result != CUDA_SUCCESS) {                                                      \
        return call.result;                                                                 \
    }
/* Initialised, with a current context, and nothing has ended the process's work: `context` is its name in the function. */
#define ENTER_CONTEXT()                                                                     \
    struct call call __attribute__((cleanup(call_end))) = call_begin_context(__func__);     \
    if (call.result != CUDA_SUCCESS) {                                                      \
        return call.result;                                                                 \
    }
#define REQUIRE_VALUE(condition)             \
    do {                                     \
        if (!(condition)) {                  \
            return CUDA_ERROR_INVALID_VALUE; \
        }                                    \
    } while (0)

/* NULL: no such ordinal. */
struct cuda_device *device_at(CUdevice ordinal);
CUdevice ordinal_of(const struct cuda_device *device);
/* The device is on the machine, as it was at cuInit. */
bool device_is_there(const struct cuda_device *device);

/* From here on the process cannot use any device. */
void driver_fault(CUresult fault);
bool fault_is_fatal(CUresult code);
/* What has ended the process's work, or the current context's device has ended it; success otherwise. */
CUresult driver_health(void);

/* visible_devices.c: fills driver.devices from the environment; 0 devices is no error there. */
CUresult find_devices(void);
/* The sixteen bytes of "GPU-..." or "MIG-...". */
CUuuid uuid_bytes(const char *text);

#endif
