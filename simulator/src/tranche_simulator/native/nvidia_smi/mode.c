/* nvidia-smi -mig and --gpu-reset */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "../tranche_sim.h"

static bool parse_mode(const char *text, unsigned *mode) {
    if (strcmp(text, "0") == 0 || strcasecmp(text, "disabled") == 0) *mode = NVML_DEVICE_MIG_DISABLE;
    else if (strcmp(text, "1") == 0 || strcasecmp(text, "enabled") == 0) *mode = NVML_DEVICE_MIG_ENABLE;
    else return false;
    return true;
}

static void warn_pending(const SmiGpu *gpu, unsigned mode, nvmlReturn_t why) {
    const char *bus_id = gpu->pci.busId;
    printf("Warning: MIG mode is in pending %s state for GPU %s:%s\n", mode ? "enable" : "disable", bus_id,
           nvmlErrorString(why));
    if (why == NVML_ERROR_IN_USE)
        printf("%s is currently being used by one or more other processes (e.g. CUDA application or a monitoring "
               "application such as another instance of nvidia-smi). Please first kill all processes using the device "
               "and retry the command or reboot the system to make MIG mode effective.\n",
               bus_id);
    else
        printf("Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU %s\n", bus_id);
}

static int set_mode_of(const SmiGpu *gpu, unsigned mode) {
    nvmlReturn_t activation = NVML_SUCCESS;
    nvmlReturn_t result = nvmlDeviceSetMigMode(gpu->handle, mode, &activation);
    if (result) {
        printf("Unable to %s MIG Mode for GPU %s: %s\n", mode ? "enable" : "disable", gpu->pci.busId,
               nvmlErrorString(result));
        bool skipped = result == NVML_ERROR_NOT_SUPPORTED;
        printf(skipped ? "Treating as warning and moving on.\n" : "Terminating early due to previous errors.\n");
        return skipped ? 0 : smi_exit_code(result);
    }
    if (activation) warn_pending(gpu, mode, activation);
    else printf("%s MIG Mode for GPU %s\n", mode ? "Enabled" : "Disabled", gpu->pci.busId);
    return 0;
}

int smi_set_mig_mode(const char *text, const char *ids) {
    unsigned mode;
    if (!parse_mode(text, &mode)) return smi_bad_combination();
    SmiGpuList list;
    int code = smi_chosen_gpus(&list, ids);
    for (unsigned i = 0; !code && i < list.count; i++) code = set_mode_of(&list.gpus[i], mode);
    if (!code) printf("All done.\n");
    return code;
}

typedef struct {
    nvmlReturn_t results[SMI_MAX_GPUS];
    unsigned failed, in_use;
} ResetOutcome;

static void print_failed_resets(const SmiGpuList *list, const ResetOutcome *outcome) {
    printf("\nThe following GPUs could not be reset:\n");
    for (unsigned i = 0; i < list->count; i++)
        if (outcome->results[i])
            printf("  GPU %s: %s\n", list->gpus[i].pci.busId, nvmlErrorString(outcome->results[i]));
    if (!outcome->in_use) return;
    bool one = outcome->in_use == 1;
    printf("\n%u %s currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, "
           "graphics application such as an X server, or a monitoring application such as another instance of "
           "nvidia-smi). Please first kill all processes using %s and all compute applications running in the "
           "system.\n",
           outcome->in_use, one ? "device is" : "devices are", one ? "this device" : "these devices");
}

int smi_reset_gpus(const char *ids) {
    SmiGpuList list;
    int code = smi_chosen_gpus(&list, ids);
    if (code) return code;
    ResetOutcome outcome = {.failed = 0};
    for (unsigned i = 0; i < list.count; i++) {
        outcome.results[i] = trancheSimResetDevice(list.gpus[i].handle);
        outcome.failed += outcome.results[i] != NVML_SUCCESS;
        outcome.in_use += outcome.results[i] == NVML_ERROR_IN_USE;
        if (!outcome.results[i]) printf("GPU %s was successfully reset.\n", list.gpus[i].pci.busId);
    }
    if (!outcome.failed) {
        printf("All done.\n");
        return 0;
    }
    print_failed_resets(&list, &outcome);
    return SMI_EXIT_OTHER;
}
