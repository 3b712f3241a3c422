/* What the `nvidia-smi mig` commands share: profiles and instances in the order in which they are listed. */
#ifndef TRANCHE_NVIDIA_SMI_MIG_H
#define TRANCHE_NVIDIA_SMI_MIG_H

#include "smi.h"

typedef nvmlGpuInstanceProfileInfo_v2_t MigGiProfile;
typedef nvmlComputeInstanceProfileInfo_v2_t MigCiProfile;

typedef struct {
    nvmlGpuInstance_t handle;
    nvmlGpuInstanceInfo_t info;
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE]; /* "MIG 1g.5gb" */
} MigGi;

typedef struct {
    nvmlComputeInstance_t handle;
    nvmlComputeInstanceInfo_t info;
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
} MigCi;

typedef struct {
    MigGi items[SMI_MAX_INSTANCES];
    unsigned count;
} MigGiList;

typedef struct {
    MigCi items[SMI_MAX_INSTANCES];
    unsigned count;
} MigCiList;

/* The arguments of a command, with the chosen GPUs. `gi_ids` and `ci_ids` are NULL for all. */
typedef struct {
    const MigOptions *options;
    SmiGpuList gpus;
    SmiList gi_text, ci_text;
    const SmiList *gi_ids, *ci_ids;
} MigRequest;

/* mig_options.c; an exit code, 0 is success, -1 is "help was asked for" */
int mig_parse(int argc, char **argv, MigOptions *options);

/* mig_inventory.c. Names in the results start with "MIG ". */
unsigned mig_gi_profiles(const SmiGpu *gpu, MigGiProfile profiles[NVML_GPU_INSTANCE_PROFILE_COUNT]);
unsigned mig_ci_profiles(nvmlGpuInstance_t gi, MigCiProfile profiles[NVML_COMPUTE_INSTANCE_PROFILE_COUNT]);
bool mig_default_ci_profile(nvmlGpuInstance_t gi, MigCiProfile *profile);
nvmlReturn_t mig_gis(const SmiGpu *gpu, const SmiList *ids, MigGiList *list);
nvmlReturn_t mig_cis(nvmlGpuInstance_t gi, const SmiList *ids, MigCiList *list);
bool mig_is_name(const char *text, const char *name);

/* the commands; each gives the exit code */
int mig_list_gi_profiles(const MigRequest *request);
int mig_list_gi_placements(const MigRequest *request);
int mig_list_gis(const MigRequest *request);
int mig_list_cis(const MigRequest *request);
int mig_list_ci_profiles(const MigRequest *request);
int mig_create_gis(const MigRequest *request);
int mig_create_cis(const MigRequest *request);
int mig_destroy_gis(const MigRequest *request);
int mig_destroy_cis(const MigRequest *request);

#endif
