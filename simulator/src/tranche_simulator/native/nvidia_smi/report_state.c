/* nvidia-smi -q: memory, use, errors, sensors, processes and MIG devices of one GPU. */
#include "report.h"

#include <stdio.h>
#include <stdlib.h>

NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                                unsigned int *uncorrectable, unsigned int *pending,
                                                unsigned int *failed);
NVML_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold,
                                                        unsigned int *celsius);
NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
                                                                   unsigned int *most);

static void report_usage(unsigned depth, const char *name, const unsigned long long *bytes, unsigned count,
                         nvmlReturn_t result) {
    static const char *const all[] = {"Total", "Reserved", "Used", "Free"}, *const three[] = {"Total", "Used", "Free"};
    report_heading(depth, name);
    for (unsigned i = 0; i < count; i++)
        report_number(depth + 1, count == 4 ? all[i] : three[i], result, smi_mib(bytes[i]), "MiB");
}

static void report_memory_of(unsigned depth, nvmlDevice_t device) {
    nvmlMemory_v2_t memory = {.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2u)};
    nvmlBAR1Memory_t bar1 = {0};
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(device, &memory);
    report_usage(depth, "FB Memory Usage",
                 (unsigned long long[]){memory.total, memory.reserved, memory.used, memory.free}, 4, result);
    result = nvmlDeviceGetBAR1MemoryInfo(device, &bar1);
    report_usage(depth, "BAR1 Memory Usage", (unsigned long long[]){bar1.bar1Total, bar1.bar1Used, bar1.bar1Free}, 3,
                 result);
}

void report_memory(const SmiGpu *gpu) { report_memory_of(1, gpu->handle); }

void report_compute_mode(const SmiGpu *gpu) {
    static const char *const names[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
    unsigned mode = 0;
    nvmlReturn_t result = nvmlDeviceGetComputeMode(gpu->handle, &mode);
    report_text(1, "Compute Mode", result || mode > 3 ? "N/A" : names[mode]);
}

void report_utilization(const SmiGpu *gpu) {
    nvmlUtilization_t rates = {0};
    nvmlReturn_t result = nvmlDeviceGetUtilizationRates(gpu->handle, &rates);
    report_heading(1, "Utilization");
    report_number(2, "GPU", result, rates.gpu, "%");
    report_number(2, "Memory", result, rates.memory, "%");
}

void report_ecc(const SmiGpu *gpu) {
    static const char *const counters[] = {"Volatile", "Aggregate"};
    static const char *const kinds[] = {"Correctable", "Uncorrectable"};
    nvmlEnableState_t current = NVML_FEATURE_DISABLED, pending = NVML_FEATURE_DISABLED;
    nvmlReturn_t result = nvmlDeviceGetEccMode(gpu->handle, &current, &pending);
    report_heading(1, "ECC Mode");
    report_enabled(2, "Current", result, current);
    report_enabled(2, "Pending", result, pending);
    report_heading(1, "ECC Errors");
    for (unsigned counter = 0; counter < 2; counter++) {
        report_heading(2, counters[counter]);
        for (unsigned kind = 0; kind < 2; kind++) {
            unsigned long long errors = 0;
            result = nvmlDeviceGetTotalEccErrors(gpu->handle, kind, counter, &errors);
            report_number(3, kinds[kind], result, errors, "");
        }
    }
}

void report_remapped_rows(const SmiGpu *gpu) {
    unsigned correctable = 0, uncorrectable = 0, pending = 0, failed = 0;
    if (nvmlDeviceGetRemappedRows(gpu->handle, &correctable, &uncorrectable, &pending, &failed)) {
        report_text(1, "Remapped Rows", "N/A");
        return;
    }
    report_heading(1, "Remapped Rows");
    report_number(2, "Correctable Error", NVML_SUCCESS, correctable, "");
    report_number(2, "Uncorrectable Error", NVML_SUCCESS, uncorrectable, "");
    report_text(2, "Pending", pending ? "Yes" : "No");
    report_text(2, "Remapping Failure Occurred", failed ? "Yes" : "No");
}

void report_temperature(const SmiGpu *gpu) {
    static const char *const names[] = {"GPU Shutdown Temp", "GPU Slowdown Temp", "Memory Max Operating Temp",
                                        "GPU Max Operating Temp"};
    unsigned celsius = 0;
    nvmlReturn_t result = nvmlDeviceGetTemperature(gpu->handle, NVML_TEMPERATURE_GPU, &celsius);
    report_heading(1, "Temperature");
    report_number(2, "GPU Current Temp", result, celsius, "C");
    for (unsigned threshold = 0; threshold < 4; threshold++) {
        result = nvmlDeviceGetTemperatureThreshold(gpu->handle, threshold, &celsius);
        report_number(2, names[threshold], result, celsius, "C");
    }
}

static void report_watts(const char *name, nvmlReturn_t result, unsigned milliwatts) {
    char text[32] = "N/A";
    if (!result) snprintf(text, sizeof text, "%.2f W", milliwatts / 1000.0);
    report_text(2, name, text);
}

void report_power(const SmiGpu *gpu) {
    unsigned value = 0, most = 0;
    nvmlReturn_t result = nvmlDeviceGetPowerUsage(gpu->handle, &value);
    report_heading(1, "GPU Power Readings");
    report_watts("Instantaneous Power Draw", result, value);
    result = nvmlDeviceGetPowerManagementLimit(gpu->handle, &value);
    report_watts("Current Power Limit", result, value);
    result = nvmlDeviceGetPowerManagementLimitConstraints(gpu->handle, &value, &most);
    report_watts("Min Power Limit", result, value);
    report_watts("Max Power Limit", result, most);
}

static void report_clocks_by(const SmiGpu *gpu, const char *heading,
                             nvmlReturn_t (*read)(nvmlDevice_t device, unsigned int type, unsigned int *mhz)) {
    static const char *const names[] = {"Graphics", "SM", "Memory", "Video"};
    report_heading(1, heading);
    for (unsigned type = 0; type < 4; type++) {
        unsigned mhz = 0;
        nvmlReturn_t result = read(gpu->handle, type, &mhz);
        report_number(2, names[type], result, mhz, "MHz");
    }
}

void report_clocks(const SmiGpu *gpu) {
    report_clocks_by(gpu, "Clocks", nvmlDeviceGetClockInfo);
    report_clocks_by(gpu, "Max Clocks", nvmlDeviceGetMaxClockInfo);
}

void report_processes(const SmiGpu *gpu) {
    SmiProcess *infos = NULL;
    unsigned count = 0;
    nvmlReturn_t result = smi_processes(gpu, &infos, &count);
    if (result || !count) {
        report_text(1, "Processes", result ? "N/A" : "None");
        free(infos);
        return;
    }
    report_heading(1, "Processes");
    for (unsigned i = 0; i < count; i++) {
        char name[256];
        bool mig = infos[i].info.gpuInstanceId != NVML_VALUE_NOT_AVAILABLE;
        nvmlReturn_t none = mig ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        report_number(2, "GPU instance ID", none, infos[i].info.gpuInstanceId, "");
        report_number(2, "Compute instance ID", none, infos[i].info.computeInstanceId, "");
        report_number(2, "Process ID", NVML_SUCCESS, infos[i].info.pid, "");
        report_text(3, "Type", infos[i].type);
        report_text(3, "Name", smi_process_name(infos[i].info.pid, name, sizeof name));
        report_number(3, "Used GPU Memory", NVML_SUCCESS, smi_mib(infos[i].info.usedGpuMemory), "MiB");
    }
    free(infos);
}

static void report_mig_device(unsigned index, nvmlDevice_t device) {
    unsigned gi = 0, ci = 0;
    nvmlDeviceAttributes_t attributes;
    if (nvmlDeviceGetGpuInstanceId(device, &gi) || nvmlDeviceGetComputeInstanceId(device, &ci)) return;
    if (nvmlDeviceGetAttributes_v2(device, &attributes)) return;
    report_heading(1, "MIG Device");
    report_number(2, "Index", NVML_SUCCESS, index, "");
    report_number(2, "GPU Instance ID", NVML_SUCCESS, gi, "");
    report_number(2, "Compute Instance ID", NVML_SUCCESS, ci, "");
    report_heading(2, "Device Attributes");
    report_heading(3, "Shared");
    report_number(4, "Multiprocessor count", NVML_SUCCESS, attributes.multiprocessorCount, "");
    report_number(4, "Copy Engine count", NVML_SUCCESS, attributes.sharedCopyEngineCount, "");
    report_number(4, "Encoder count", NVML_SUCCESS, attributes.sharedEncoderCount, "");
    report_number(4, "Decoder count", NVML_SUCCESS, attributes.sharedDecoderCount, "");
    report_number(4, "OFA count", NVML_SUCCESS, attributes.sharedOfaCount, "");
    report_number(4, "JPG count", NVML_SUCCESS, attributes.sharedJpegCount, "");
    report_memory_of(2, device);
}

void report_mig_devices(const SmiGpu *gpu) {
    nvmlDevice_t devices[SMI_MAX_INSTANCES];
    unsigned count = smi_mig_devices(gpu, devices);
    for (unsigned index = 0; index < count; index++) report_mig_device(index, devices[index]);
}
