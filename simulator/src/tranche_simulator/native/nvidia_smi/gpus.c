/* The GPUs that this process sees, and the choice among them by -i. */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static nvmlReturn_t read_gpu(unsigned index, SmiGpu *gpu) {
    memset(gpu, 0, sizeof *gpu);
    gpu->index = index;
    nvmlReturn_t result = nvmlDeviceGetHandleByIndex_v2(index, &gpu->handle);
    if (!result) result = nvmlDeviceGetPciInfo_v3(gpu->handle, &gpu->pci);
    if (!result) result = nvmlDeviceGetName(gpu->handle, gpu->name, sizeof gpu->name);
    if (!result) result = nvmlDeviceGetUUID(gpu->handle, gpu->uuid, sizeof gpu->uuid);
    if (result) return result;
    gpu->mig_capable = nvmlDeviceGetMigMode(gpu->handle, &gpu->mig_current, &gpu->mig_pending) == NVML_SUCCESS;
    return NVML_SUCCESS;
}

static bool is_named(const SmiGpu *gpu, const char *id);

static bool is_among(const SmiGpu *gpu, const SmiList *wanted) {
    for (unsigned w = 0; w < wanted->count; w++)
        if (is_named(gpu, wanted->items[w])) return true;
    return false;
}

/* An unreadable GPU ends the program, unless only others are asked for. That -i spares the others is inferred. */
static int read_gpus(SmiGpuList *list, const SmiList *wanted) {
    list->count = 0;
    unsigned count = 0;
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&count);
    if (result) {
        printf("Failed to get the number of devices: %s\n", nvmlErrorString(result));
        return smi_exit_code(result);
    }
    for (unsigned index = 0; index < count && list->count < SMI_MAX_GPUS; index++) {
        SmiGpu *gpu = &list->gpus[list->count];
        result = read_gpu(index, gpu);
        if (result == NVML_SUCCESS) {
            list->count++;
            continue;
        }
        if (wanted && !is_among(gpu, wanted)) continue;
        printf("Unable to determine the device handle for GPU%u: %s: %s%s\n", index, gpu->pci.busId,
               nvmlErrorString(result),
               result == NVML_ERROR_GPU_IS_LOST ? ".  Reboot the system to recover this GPU" : "");
        return smi_exit_code(result);
    }
    return 0;
}

int smi_all_gpus(SmiGpuList *list) { return read_gpus(list, NULL); }

/* "00000000:10:1C.0", "0000:10:1c.0" and "10:1C.0" are one address. */
static bool same_address(const char *text, const nvmlPciInfo_t *pci) {
    unsigned domain = 0, bus, device, function;
    char more;
    if (sscanf(text, "%x:%x:%x.%x%c", &domain, &bus, &device, &function, &more) != 4) {
        domain = 0;
        if (sscanf(text, "%x:%x.%x%c", &bus, &device, &function, &more) != 3) return false;
    }
    return domain == pci->domain && bus == pci->bus && device == pci->device && function == 0;
}

static bool is_named(const SmiGpu *gpu, const char *id) {
    unsigned index;
    if (smi_number(id, &index)) return index == gpu->index;
    return strcasecmp(id, gpu->uuid) == 0 || same_address(id, &gpu->pci);
}

static int not_found(void) {
    printf("No devices were found\n");
    return SMI_EXIT_NOT_FOUND;
}

int smi_chosen_gpus(SmiGpuList *list, const char *ids) {
    SmiList wanted;
    bool chosen = ids && smi_split(&wanted, ids);
    int code = read_gpus(list, chosen ? &wanted : NULL);
    if (code) return code;
    if (!ids) return list->count ? 0 : not_found();
    if (!chosen) return not_found();
    unsigned kept = 0;
    for (unsigned i = 0; i < list->count; i++)
        if (is_among(&list->gpus[i], &wanted)) list->gpus[kept++] = list->gpus[i];
    for (unsigned w = 0; w < wanted.count; w++) {
        bool matched = false;
        for (unsigned i = 0; i < kept && !matched; i++) matched = is_named(&list->gpus[i], wanted.items[w]);
        if (!matched) return not_found();
    }
    list->count = kept;
    return 0;
}

unsigned smi_mig_devices(const SmiGpu *gpu, nvmlDevice_t devices[SMI_MAX_INSTANCES]) {
    unsigned most = 0, found = 0;
    if (gpu->mig_current != NVML_DEVICE_MIG_ENABLE) return 0;
    if (nvmlDeviceGetMaxMigDeviceCount(gpu->handle, &most)) return 0;
    for (unsigned index = 0; index < most && found < SMI_MAX_INSTANCES; index++)
        if (nvmlDeviceGetMigDeviceHandleByIndex(gpu->handle, index, &devices[found]) == NVML_SUCCESS) found++;
    return found;
}
