/* NVML as this process sees it: initialised or not, on which machine, which GPUs are visible; and the way into every
 * NVML function: initialised -> handle -> injected faults -> GPU not lost. */
#ifndef TRANCHE_SESSION_H
#define TRANCHE_SESSION_H

#include "handles.h"

/* What a process may see, from NVIDIA_VISIBLE_DEVICES. */
struct view {
    unsigned int count;
    unsigned int gpus[TRANCHE_SIM_MAX_GPUS];                   /* visible index -> index on the machine */
    bool visible[TRANCHE_SIM_MAX_GPUS];                        /* by index on the machine */
    bool only_mig[TRANCHE_SIM_MAX_GPUS];                       /* only these MIG devices of the GPU are visible: */
    uint8_t mig[TRANCHE_SIM_MAX_GPUS][BOARD_MAX_GI_IDS];       /* bits: first compute slice */
};

/* DRIVER_NOT_LOADED for "void" and the empty value: a container without a driver. */
nvmlReturn_t view_from_environment(const machine *m, struct view *view);
bool view_shows_mig(const struct view *view, unsigned int gpu, unsigned int gi, const struct gi_state *state,
                    unsigned int ci);
bool view_shows_gi(const struct view *view, unsigned int gpu, unsigned int gi);

struct session {
    machine *m;
    struct view view;
};

/* The device a call is about, with a consistent copy of its GPU's state. */
struct target {
    machine *m;
    const struct view *view;
    const struct board *board;
    struct gpu_record *record;
    struct device_place place;
    struct gpu_state state;
    const struct gi_state *gi;         /* NULL unless a MIG device */
    const struct gi_profile *profile;  /* of gi */
    const struct ci_state *ci;
    const struct ci_profile *ci_profile;
};

/* Only checks initialisation: for calls that learn their GPU later. */
nvmlReturn_t session_of_call(const struct session **session);
nvmlReturn_t enter(const char *function, const struct session **session);
nvmlReturn_t enter_device(const char *function, nvmlDevice_t device, struct target *target);
/* Like enter_device, but a MIG device is NOT_SUPPORTED. */
nvmlReturn_t enter_gpu(const char *function, nvmlDevice_t device, struct target *target);
/* The GPU of an instance, and the instance's id; the instance is visible, and may be gone. */
nvmlReturn_t enter_gpu_instance(const char *function, nvmlGpuInstance_t instance, struct target *target,
                                unsigned int *id);
/* The same for a GPU and an id that were found otherwise. */
nvmlReturn_t enter_gpu_index(const char *function, unsigned int gpu, unsigned int gi, struct target *target);
/* Carries out a change, if this process may change the GPU and sees more of it than MIG devices: with the GPU's lock held, and
 * its state read anew. `what` is the change's own. */
nvmlReturn_t change_gpu(struct target *target, nvmlReturn_t (*change)(struct target *target, void *what), void *what);

/* faults.c: sleeps an injected latency, returns an injected error. */
nvmlReturn_t fault_check(machine *m, const char *function, unsigned int gpu);

/* system.c: what every function answers that the driver has and the simulator has not. */
nvmlReturn_t unsupported(const char *function);

#define ENTER(session)                                        \
    do {                                                      \
        nvmlReturn_t entered = enter(__func__, (session));    \
        if (entered != NVML_SUCCESS) {                        \
            return entered;                                   \
        }                                                     \
    } while (0)
#define ENTER_DEVICE(device, target)                                  \
    do {                                                              \
        nvmlReturn_t entered = enter_device(__func__, device, target); \
        if (entered != NVML_SUCCESS) {                                \
            return entered;                                           \
        }                                                             \
    } while (0)
#define ENTER_GPU(device, target)                                  \
    do {                                                           \
        nvmlReturn_t entered = enter_gpu(__func__, device, target); \
        if (entered != NVML_SUCCESS) {                             \
            return entered;                                        \
        }                                                          \
    } while (0)
#define ENTER_GPU_INSTANCE(instance, target, id)                                  \
    do {                                                                          \
        nvmlReturn_t entered = enter_gpu_instance(__func__, instance, target, id); \
        if (entered != NVML_SUCCESS) {                                            \
            return entered;                                                       \
        }                                                                         \
    } while (0)
#define REQUIRE(condition)                      \
    do {                                        \
        if (!(condition)) {                     \
            return NVML_ERROR_INVALID_ARGUMENT; \
        }                                       \
    } while (0)

/* Copies text into a caller's buffer of `length` bytes; INSUFFICIENT_SIZE when it does not fit. */
nvmlReturn_t give_text(char *buffer, unsigned int length, const char *text);

#endif
