/* Control of a simulated machine: what no driver offers, because it is the outside world of the driver.
 *
 * The same library exports these beside the NVML functions. None of them needs nvmlInit. They take the machine by an
 * opened handle, GPUs by their index on the machine (NVIDIA_VISIBLE_DEVICES does not limit them).
 * Every function returns an nvmlReturn_t value.
 */
#ifndef TRANCHE_SIM_H
#define TRANCHE_SIM_H

#include "nvml_abi.h"

#define TRANCHE_SIM_MAX_GPUS 32u
#define TRANCHE_SIM_ANY_GPU 0xFFFFFFFFu
#define TRANCHE_SIM_NO_INSTANCE 0xFFFFFFFFu
#define TRANCHE_SIM_NAME_SIZE 96

typedef struct trancheSimMachine_st *trancheSimMachine_t;

/* One GPU of a machine to create. `board` is a key of the board tables ("A100-40GB", "T4"). */
typedef struct {
    char board[48];
    char name[TRANCHE_SIM_NAME_SIZE]; /* product name; empty: the board's first product */
    unsigned int pciDeviceId;         /* 0: the board's first */
    unsigned int swapped;             /* 1: the die is the other way round (GI ids differ) */
    unsigned int numaNode;
    unsigned int pciDomain;
    unsigned int pciBus;
    unsigned int pciDevice;
} trancheSimGpuSpec_t;

typedef struct {
    char name[TRANCHE_SIM_NAME_SIZE];
    unsigned int gpuCount;
    unsigned int ownerUid;
    double timeScale;
    unsigned long long seed;
    unsigned long long boots;     /* how many times it was rebooted */
    unsigned long long changedAt; /* nanoseconds of CLOCK_MONOTONIC when a GPU was last changed; 0: never */
    char driver[32]; /* its version */
} trancheSimDescription_t;

typedef struct {
    char board[48];
    char name[TRANCHE_SIM_NAME_SIZE];
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    char busId[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
    unsigned int pciDeviceId;
    unsigned int pciSubsystemId;
    unsigned int pciClass;
    unsigned int swapped;
    unsigned int numaNode;
    unsigned int migSupported;
    unsigned int migCurrent;
    unsigned int migPending;
    unsigned int gpuInstances;
    unsigned int computeInstances;
    unsigned int clients;
    unsigned int lost;
    unsigned int stuckMode;
    unsigned long long memoryBytes; /* of the whole GPU */
    unsigned int unverified; /* 1: some numbers of the board are derived from its family, no source shows them */
    unsigned long long generation; /* rises with every committed change of this GPU */
} trancheSimGpuDescription_t;

typedef struct {
    unsigned int pid;
    unsigned int gpu;
    unsigned int gpuInstanceId;     /* TRANCHE_SIM_NO_INSTANCE: a client of the whole GPU */
    unsigned int computeInstanceId;
    unsigned int phantom;           /* made by trancheSimInjectBusy, no process behind it */
    unsigned int utilizationPercent;
    unsigned int mpsServer; /* pid of the MPS server through which it reaches the GPU; 0: none */
    unsigned long long memoryBytes;
    unsigned long long computeNanoseconds; /* of a whole GPU, that its kernels have had */
    char name[64];
} trancheSimClient_t;

/* The file appears complete (rename), or not at all. INVALID_ARGUMENT: unknown board or no GPU. IN_USE: it exists. */
NVML_API nvmlReturn_t trancheSimCreate(const char *path, const char *name, const trancheSimGpuSpec_t *gpus,
                                       unsigned int count, double timeScale, unsigned long long seed);
/* DRIVER_NOT_LOADED: no such file. LIB_RM_VERSION_MISMATCH: not a state file, or of another layout version. */
NVML_API nvmlReturn_t trancheSimOpen(const char *path, trancheSimMachine_t *machine);
/* No client of this process may still be attached through the handle, and no call may be under way. */
NVML_API nvmlReturn_t trancheSimClose(trancheSimMachine_t machine);
/* The machine that nvmlInit would open in this process; NULL path result when there is none. */
NVML_API const char *trancheSimDefaultStatePath(void);

NVML_API nvmlReturn_t trancheSimDescribe(trancheSimMachine_t machine, trancheSimDescription_t *description);
NVML_API nvmlReturn_t trancheSimDescribeGpu(trancheSimMachine_t machine, unsigned int gpu,
                                            trancheSimGpuDescription_t *description);
NVML_API nvmlReturn_t trancheSimListClients(trancheSimMachine_t machine, trancheSimClient_t *clients,
                                            unsigned int *count);
NVML_API nvmlReturn_t trancheSimSetTimeScale(trancheSimMachine_t machine, double timeScale);
/* Another driver: "615.71.09". For an unused machine: running processes keep what they know. INVALID_ARGUMENT: no version. */
NVML_API nvmlReturn_t trancheSimSetDriver(trancheSimMachine_t machine, const char *version);
/* Device memory that each CUDA context takes from now on; 0: by the number of multiprocessors that it may use. */
NVML_API nvmlReturn_t trancheSimSetContextMemory(trancheSimMachine_t machine, unsigned long long bytes);

/* Instances and clients are gone; pending MIG mode applied; MIG mode kept on Ampere only. Atomic for all GPUs. */
NVML_API nvmlReturn_t trancheSimReboot(trancheSimMachine_t machine);
/* Puts the folder `capabilities` beside the state file right, if there is one; later changes keep it so. */
NVML_API nvmlReturn_t trancheSimUpdateCapabilityFiles(trancheSimMachine_t machine);
/* How the driver keeps memory limits: 0 in its own table (misc), 1 by the kernel's dmem controller, 2 not at all. */
NVML_API nvmlReturn_t trancheSimSetLimitsBackend(trancheSimMachine_t machine, unsigned int backend);
/* What `nvidia-smi --gpu-reset` asks of the driver. Needs permission; IN_USE while the GPU has clients. */
NVML_API nvmlReturn_t trancheSimResetGpu(trancheSimMachine_t machine, unsigned int gpu);
/* The same for a device handle of an initialised NVML (INVALID_ARGUMENT for a MIG device). */
NVML_API nvmlReturn_t trancheSimResetDevice(nvmlDevice_t device);

/* What `nvidia-smi compute-policy` reads and sets: 0 default, 1 short, 2 medium, 3 long. */
#define TRANCHE_SIM_LONG_TIMESLICE 3u
NVML_API nvmlReturn_t trancheSimGetTimeslice(nvmlDevice_t device, unsigned int *timeslice);
NVML_API nvmlReturn_t trancheSimSetTimeslice(nvmlDevice_t device, unsigned int timeslice);

/* The next `calls` calls of `function` (on `gpu`, or any) return `code`. */
NVML_API nvmlReturn_t trancheSimInjectError(trancheSimMachine_t machine, const char *function, unsigned int code,
                                            unsigned int calls, unsigned int gpu);
/* Name of the index-th thing that can be made to fail and is no function of NVML's or CUDA's, NULL past the last. */
NVML_API const char *trancheSimSpecialFault(unsigned int index);
/* Every call of `function` (on `gpu`, or any) takes `seconds` longer, until cleared. Not scaled. */
NVML_API nvmlReturn_t trancheSimInjectLatency(trancheSimMachine_t machine, const char *function, double seconds,
                                              unsigned int gpu);
NVML_API nvmlReturn_t trancheSimInjectXid(trancheSimMachine_t machine, unsigned int gpu, unsigned int gpuInstanceId,
                                          unsigned int computeInstanceId, unsigned long long xid);
NVML_API nvmlReturn_t trancheSimInjectLost(trancheSimMachine_t machine, unsigned int gpu, unsigned int lost);
NVML_API nvmlReturn_t trancheSimInjectStuckMode(trancheSimMachine_t machine, unsigned int gpu, unsigned int stuck);
/* A client without a process, on a GPU or MIG UUID. Stays until cleared. */
NVML_API nvmlReturn_t trancheSimInjectBusy(trancheSimMachine_t machine, const char *uuid, unsigned int pid,
                                           const char *name, unsigned long long memoryBytes);
/* Undoes every injection above (not XIDs already delivered); phantom clients go too. */
NVML_API nvmlReturn_t trancheSimClearInjections(trancheSimMachine_t machine);

/* This process becomes a client of a GPU or MIG UUID until detach or its death. MEMORY: not that much is free.
 * INVALID_STATE: a whole GPU in MIG mode takes no work. NOT_FOUND: no such UUID. */
NVML_API nvmlReturn_t trancheSimAttach(trancheSimMachine_t machine, const char *uuid, unsigned long long memoryBytes,
                                       unsigned int utilizationPercent, unsigned int *client);
NVML_API nvmlReturn_t trancheSimDetach(trancheSimMachine_t machine, unsigned int client);

/* Calls that ask for a change, counted when they enter (also those that fail), for all processes together. */
NVML_API nvmlReturn_t trancheSimChangeCalls(trancheSimMachine_t machine, const char *function,
                                            unsigned long long *count);
/* Name of the index-th counted function, NULL past the last. */
NVML_API const char *trancheSimChangeFunction(unsigned int index);

#endif
