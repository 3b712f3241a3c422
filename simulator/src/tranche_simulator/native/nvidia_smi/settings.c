/* nvidia-smi -pm, -c and compute-policy */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "../tranche_sim.h"

NVML_API nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode);
NVML_API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode);

static const char *const COMPUTE_MODES[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
static const char *const TIMESLICES[] = {"Default", "Short", "Medium", "Long"};

enum { POLICY_WIDTH = 46 };

static bool parse_word(const char *text, const char *const *words, unsigned count, unsigned *value) {
    if (smi_number(text, value)) return *value < count;
    for (*value = 0; *value < count; (*value)++)
        if (strcasecmp(text, words[*value]) == 0) return true;
    return false;
}

/* What the GPU cannot do is a warning, and the next GPU's turn. */
static int refused(const char *what, const SmiGpu *gpu, nvmlReturn_t result) {
    printf("Unable to set %s for GPU %s: %s\n", what, gpu->pci.busId, nvmlErrorString(result));
    bool skipped = result == NVML_ERROR_NOT_SUPPORTED;
    printf(skipped ? "Treating as warning and moving on.\n" : "Terminating early due to previous errors.\n");
    return skipped ? 0 : smi_exit_code(result);
}

static int set_persistence_of(const SmiGpu *gpu, unsigned mode) {
    nvmlEnableState_t before = NVML_FEATURE_DISABLED;
    nvmlDeviceGetPersistenceMode(gpu->handle, &before);
    nvmlReturn_t result = nvmlDeviceSetPersistenceMode(gpu->handle, mode ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED);
    if (result) return refused("persistence mode", gpu, result);
    if ((before == NVML_FEATURE_ENABLED) == (mode != 0))
        printf("Persistence mode is already %s for GPU %s.\n", mode ? "Enabled" : "Disabled", gpu->pci.busId);
    else printf("%s persistence mode for GPU %s.\n", mode ? "Enabled" : "Disabled", gpu->pci.busId);
    return 0;
}

static int set_compute_mode_of(const SmiGpu *gpu, unsigned mode) {
    unsigned before = mode + 1;
    nvmlDeviceGetComputeMode(gpu->handle, &before);
    nvmlReturn_t result = nvmlDeviceSetComputeMode(gpu->handle, mode);
    if (result) return refused("compute mode", gpu, result);
    if (before == mode) printf("Compute mode is already set to %s for GPU %s.\n", COMPUTE_MODES[mode], gpu->pci.busId);
    else printf("Set compute mode to %s for GPU %s.\n", COMPUTE_MODES[mode], gpu->pci.busId);
    return 0;
}

static int set_timeslice_of(const SmiGpu *gpu, unsigned timeslice) {
    nvmlReturn_t result = trancheSimSetTimeslice(gpu->handle, timeslice);
    if (result) return refused("timeslice", gpu, result);
    printf("Set timeslice to %s for GPU %s.\n", TIMESLICES[timeslice], gpu->pci.busId);
    return 0;
}

static int on_each(const char *ids, int (*set)(const SmiGpu *gpu, unsigned value), unsigned value) {
    SmiGpuList list;
    int code = smi_chosen_gpus(&list, ids);
    for (unsigned i = 0; !code && i < list.count; i++) code = set(&list.gpus[i], value);
    if (!code) printf("All done.\n");
    return code;
}

int smi_set_persistence(const char *text, const char *ids) {
    static const char *const words[] = {"DISABLED", "ENABLED"};
    unsigned mode;
    if (!parse_word(text, words, 2, &mode)) return smi_bad_combination();
    return on_each(ids, set_persistence_of, mode);
}

int smi_set_compute_mode(const char *text, const char *ids) {
    unsigned mode;
    if (!parse_word(text, COMPUTE_MODES, sizeof COMPUTE_MODES / sizeof *COMPUTE_MODES, &mode))
        return smi_bad_combination();
    /* EXCLUSIVE_THREAD was taken away; drivers take it for EXCLUSIVE_PROCESS. */
    return on_each(ids, set_compute_mode_of, mode == 1 ? NVML_COMPUTEMODE_EXCLUSIVE_PROCESS : mode);
}

static int list_policies(const char *ids) {
    SmiGpuList list;
    int code = smi_chosen_gpus(&list, ids);
    if (code) return code;
    smi_rule(POLICY_WIDTH);
    puts("| GPU compute policies:                        |");
    puts("| GPU     Name                 Value           |");
    puts("|==============================================|");
    for (unsigned i = 0; i < list.count; i++) {
        unsigned timeslice = 0;
        trancheSimGetTimeslice(list.gpus[i].handle, &timeslice);
        printf("|%4u     %-21s%-16s|\n", list.gpus[i].index, "Timeslice", TIMESLICES[timeslice]);
        smi_rule(POLICY_WIDTH);
    }
    return 0;
}

int smi_compute_policy(int argc, char **argv) {
    const char *ids = NULL, *timeslice = NULL;
    bool listed = false;
    for (int at = 0; at < argc; at++) {
        const char *value;
        if (strcmp(argv[at], "-l") == 0 || strcmp(argv[at], "--list") == 0) listed = true;
        else if ((value = smi_value(argc, argv, &at, "--id")) || (value = smi_value(argc, argv, &at, "-i"))) ids = value;
        else if ((value = smi_value(argc, argv, &at, "--set-timeslice"))) timeslice = value;
        else return smi_bad_option(argv[at]);
    }
    unsigned value;
    if (listed == (timeslice != NULL)) return smi_bad_combination();
    if (listed) return list_policies(ids);
    if (!parse_word(timeslice, TIMESLICES, sizeof TIMESLICES / sizeof *TIMESLICES, &value)) return smi_bad_combination();
    return on_each(ids, set_timeslice_of, value);
}
