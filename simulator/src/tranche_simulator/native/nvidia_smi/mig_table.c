/* The MIG block of the main table: one row for each compute instance. */
#include "smi.h"

#include <stdio.h>

static void print_heading(void) {
    puts("");
    puts("+-----------------------------------------------------------------------------------------+");
    puts("| MIG devices:                                                                            |");
    puts("+------------------+----------------------------------+-----------+-----------------------+");
    puts("| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |");
    puts("|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |");
    puts("|                  |                                  |        ECC|                       |");
    puts("|==================+==================================+===========+=======================|");
}

/* A total of six digits takes one of the four spaces that end the cell. */
static void format_usage(char *out, size_t size, nvmlReturn_t result, unsigned long long used,
                         unsigned long long total) {
    if (result) snprintf(out, size, "%27s", "N/A");
    else snprintf(out, size, "%13lluMiB / %5lluMiB", smi_mib(used), smi_mib(total));
}

static void print_device(const SmiGpu *gpu, unsigned index, nvmlDevice_t device) {
    unsigned gi = 0, ci = 0;
    nvmlDeviceAttributes_t attributes;
    nvmlMemory_t memory = {0};
    nvmlBAR1Memory_t bar1 = {0};
    if (nvmlDeviceGetGpuInstanceId(device, &gi) || nvmlDeviceGetComputeInstanceId(device, &ci)) return;
    if (nvmlDeviceGetAttributes_v2(device, &attributes)) return;
    char usage[64], bar1_usage[64];
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &memory);
    format_usage(usage, sizeof usage, result, memory.used, memory.total);
    result = nvmlDeviceGetBAR1MemoryInfo(device, &bar1);
    format_usage(bar1_usage, sizeof bar1_usage, result, bar1.bar1Used, bar1.bar1Total);
    unsigned long long errors = 0; /* a simulated memory has none to report */
    nvmlDeviceGetTotalEccErrors(device, 1, 0, &errors);
    printf("|%3u%5u%4u%4u  |   %-31s|%3u%7llu |%3u%4u%5u%5u%5u |\n", gpu->index, gi, ci, index, usage,
           attributes.multiprocessorCount, errors, attributes.sharedCopyEngineCount, attributes.sharedEncoderCount,
           attributes.sharedDecoderCount, attributes.sharedOfaCount, attributes.sharedJpegCount);
    printf("|                  |   %-31s|           |                       |\n", bar1_usage);
    puts("+------------------+----------------------------------+-----------+-----------------------+");
}

void smi_mig_table(const SmiGpuList *list) {
    unsigned printed = 0;
    print_heading();
    for (unsigned i = 0; i < list->count; i++) {
        nvmlDevice_t devices[SMI_MAX_INSTANCES];
        unsigned count = smi_mig_devices(&list->gpus[i], devices);
        for (unsigned index = 0; index < count; index++) print_device(&list->gpus[i], index, devices[index]);
        printed += count;
    }
    if (printed) return;
    puts("|  No MIG devices found                                                                   |");
    puts("+-----------------------------------------------------------------------------------------+");
}
