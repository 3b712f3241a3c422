/* nvidia-smi -L */
#include "smi.h"

#include <stdio.h>
#include <string.h>

/* The profile part of a MIG device's name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb" gives "MIG 1g.5gb". */
static const char *profile_part(const char *name) {
    const char *part = strstr(name, " MIG ");
    return part ? part + 1 : name;
}

static void list_mig_devices(const SmiGpu *gpu) {
    nvmlDevice_t devices[SMI_MAX_INSTANCES];
    unsigned count = smi_mig_devices(gpu, devices);
    for (unsigned index = 0; index < count; index++) {
        char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE], uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
        if (nvmlDeviceGetName(devices[index], name, sizeof name)) continue;
        if (nvmlDeviceGetUUID(devices[index], uuid, sizeof uuid)) continue;
        printf("  %-15s Device %2u: (UUID: %s)\n", profile_part(name), index, uuid);
    }
}

int smi_list_gpus(const char *ids) {
    SmiGpuList list;
    int code = smi_chosen_gpus(&list, ids);
    if (code) return code;
    for (unsigned i = 0; i < list.count; i++) {
        const SmiGpu *gpu = &list.gpus[i];
        printf("GPU %u: %s (UUID: %s)\n", gpu->index, gpu->name, gpu->uuid);
        list_mig_devices(gpu);
    }
    return 0;
}
