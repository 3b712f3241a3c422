/* What the parts of the simulated nvidia-smi share: the GPUs it sees, the options, the commands. */
#ifndef TRANCHE_NVIDIA_SMI_H
#define TRANCHE_NVIDIA_SMI_H

/* Every source includes this first: strtok_r, localtime_r and strcasecmp are POSIX, not C11. */
#define _POSIX_C_SOURCE 200809L

#include <stdbool.h>
#include <stddef.h>

#include "../nvml_abi.h"

enum {
    SMI_MAX_GPUS = 64,
    SMI_MAX_LIST = 64,        /* most entries of one comma-separated argument */
    SMI_MAX_INSTANCES = 32,   /* most GPU instances, or compute instances of one, that a board can hold */
    SMI_ARGUMENT_SIZE = 4096, /* longest argument that is split */
};

/* Exit codes that the manual page of nvidia-smi(1) gives; other failures exit with the NVML code. */
enum { SMI_EXIT_USAGE = 2, SMI_EXIT_NOT_FOUND = 6, SMI_EXIT_OTHER = 255 };

typedef struct {
    unsigned index;
    nvmlDevice_t handle;
    nvmlPciInfo_t pci;
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    bool mig_capable;
    unsigned mig_current;
    unsigned mig_pending;
} SmiGpu;

typedef struct {
    SmiGpu gpus[SMI_MAX_GPUS];
    unsigned count;
} SmiGpuList;

/* A comma-separated argument, split. `items` point into `text`. */
typedef struct {
    char text[SMI_ARGUMENT_SIZE];
    char *items[SMI_MAX_LIST];
    unsigned count;
} SmiList;

typedef struct {
    const char *gpu_ids; /* -i as typed, NULL for all */
    const char *query;
    const char *format;
    const char *mig_mode;
    const char *persistence, *compute_mode;
    const char *display; /* of -d, as typed; NULL for the whole report */
    bool list_gpus, reset, query_gpu, query_apps, report;
} SmiOptions;

typedef enum {
    MIG_NO_ACTION,
    MIG_LIST_GI_PROFILES,
    MIG_LIST_GI_PLACEMENTS,
    MIG_LIST_GIS,
    MIG_LIST_CI_PROFILES,
    MIG_LIST_CIS,
    MIG_CREATE_GIS,
    MIG_CREATE_CIS,
    MIG_DESTROY_GIS,
    MIG_DESTROY_CIS,
} MigAction;

typedef struct {
    MigAction action;
    const char *gpu_ids, *gi_ids, *ci_ids;
    const char *profiles; /* of -cgi and -cci as typed; NULL for the default compute instance */
    bool default_ci;      /* -C */
} MigOptions;

/* text.c */
bool smi_split(SmiList *list, const char *text);
bool smi_number(const char *text, unsigned *value);
bool smi_selects(const SmiList *ids, unsigned id);
unsigned long long smi_mib(unsigned long long bytes);
int smi_exit_code(nvmlReturn_t result);
int smi_bad_option(const char *option);
int smi_missing_value(const char *option);
int smi_bad_combination(void);
void smi_rule(unsigned width);
/* The value of the option `name` at argv[*at], behind "=" or as the next argument, which *at then is; NULL: another option. */
const char *smi_value(int argc, char **argv, int *at, const char *name);

/* gpus.c: both print what went wrong and give the exit code; 0 is success. */
int smi_all_gpus(SmiGpuList *list);
int smi_chosen_gpus(SmiGpuList *list, const char *ids);
unsigned smi_mig_devices(const SmiGpu *gpu, nvmlDevice_t devices[SMI_MAX_INSTANCES]);

/* processes.c */
typedef struct {
    nvmlProcessInfo_t info;
    const char *type; /* "C", or "M+C" for a client of an MPS server */
} SmiProcess;

nvmlReturn_t smi_processes(const SmiGpu *gpu, SmiProcess **processes, unsigned *count);
const char *smi_process_name(unsigned pid, char *name, unsigned size);

/* the commands; each gives the exit code */
int smi_help(void);
int smi_mig_help(void);
int smi_query_gpu_help(void);
int smi_version(void);
int smi_list_gpus(const char *ids);
int smi_main_table(const char *ids);
int smi_set_mig_mode(const char *mode, const char *ids);
int smi_reset_gpus(const char *ids);
int smi_set_persistence(const char *mode, const char *ids);
int smi_set_compute_mode(const char *mode, const char *ids);
int smi_compute_policy(int argc, char **argv);
int smi_memory_limits(int argc, char **argv);
int smi_topology(int argc, char **argv);
int smi_report(const SmiOptions *options);
int smi_query_gpus(const SmiOptions *options);
int smi_query_apps(const SmiOptions *options);
int smi_mig(int argc, char **argv);

/* parts of the main table */
void smi_mig_table(const SmiGpuList *list);
void smi_process_table(const SmiGpuList *list);

#endif
