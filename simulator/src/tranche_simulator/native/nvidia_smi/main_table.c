/* nvidia-smi without arguments: the header, the GPUs, their MIG devices and their processes. */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { NAME_WIDTH = 27, CUDA_MAJOR = 1000, CUDA_MINOR = 10 };

static void print_time(void) {
    char text[64];
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", &local);
    printf("%s       \n", text);
}

static void print_heading(void) {
    char driver[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "N/A", shown[64], cuda[32] = "N/A";
    int version = 0;
    nvmlSystemGetDriverVersion(driver, sizeof driver);
    if (nvmlSystemGetCudaDriverVersion_v2(&version) == NVML_SUCCESS)
        snprintf(cuda, sizeof cuda, "%d.%d", version / CUDA_MAJOR, version % CUDA_MAJOR / CUDA_MINOR);
    snprintf(shown, sizeof shown, "%.40s (simulated)", driver);
    puts("+-----------------------------------------------------------------------------------------+");
    printf("| NVIDIA-SMI %-22.22s Driver Version: %-14.14s CUDA Version: %-8.8s |\n", shown, driver, cuda);
    puts("+-----------------------------------------+------------------------+----------------------+");
    puts("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |");
    puts("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |");
    puts("|                                         |                        |               MIG M. |");
    puts("|=========================================+========================+======================|");
}

static void shorten(const char *name, char out[NAME_WIDTH + 1]) {
    if (strlen(name) <= NAME_WIDTH) snprintf(out, NAME_WIDTH + 1, "%s", name);
    else snprintf(out, NAME_WIDTH + 1, "%.*s...", NAME_WIDTH - 3, name);
}

static const char *on_off(nvmlReturn_t result, nvmlEnableState_t state) {
    if (result) return "N/A";
    return state == NVML_FEATURE_ENABLED ? "On" : "Off";
}

static void print_identity_row(const SmiGpu *gpu) {
    char name[NAME_WIDTH + 1], ecc[24] = "N/A";
    shorten(gpu->name, name);
    nvmlEnableState_t persistence = NVML_FEATURE_DISABLED, display = NVML_FEATURE_DISABLED;
    nvmlReturn_t has_persistence = nvmlDeviceGetPersistenceMode(gpu->handle, &persistence);
    nvmlReturn_t has_display = nvmlDeviceGetDisplayActive(gpu->handle, &display);
    nvmlEnableState_t ecc_now = NVML_FEATURE_DISABLED, ecc_pending;
    unsigned long long errors = 0;
    nvmlReturn_t has_ecc = nvmlDeviceGetEccMode(gpu->handle, &ecc_now, &ecc_pending);
    if (!has_ecc && ecc_now != NVML_FEATURE_ENABLED) snprintf(ecc, sizeof ecc, "Off");
    else if (!has_ecc && gpu->mig_current == NVML_DEVICE_MIG_ENABLE) snprintf(ecc, sizeof ecc, "On");
    else if (!has_ecc && !nvmlDeviceGetTotalEccErrors(gpu->handle, 1, 0, &errors))
        snprintf(ecc, sizeof ecc, "%llu", errors);
    printf("|%4u  %-27s    %-4s|   %16.16s %3s |%21s |\n", gpu->index, name, on_off(has_persistence, persistence),
           gpu->pci.busId, on_off(has_display, display), ecc);
}

static const char *compute_mode(const SmiGpu *gpu) {
    unsigned mode = NVML_COMPUTEMODE_DEFAULT;
    if (nvmlDeviceGetComputeMode(gpu->handle, &mode)) return "N/A";
    if (mode == NVML_COMPUTEMODE_PROHIBITED) return "Prohibited";
    return mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS ? "E. Process" : "Default";
}

static void print_load_row(const SmiGpu *gpu) {
    char fan[16] = "N/A", heat[16] = "N/A", state[16] = "N/A", draw[16] = "N/A", cap[16] = "N/A", load[16] = "N/A";
    unsigned value;
    if (!nvmlDeviceGetFanSpeed(gpu->handle, &value)) snprintf(fan, sizeof fan, "%u%%", value);
    if (!nvmlDeviceGetTemperature(gpu->handle, NVML_TEMPERATURE_GPU, &value)) snprintf(heat, sizeof heat, "%uC", value);
    if (!nvmlDeviceGetPerformanceState(gpu->handle, &value)) snprintf(state, sizeof state, "P%u", value);
    if (!nvmlDeviceGetPowerUsage(gpu->handle, &value)) snprintf(draw, sizeof draw, "%uW", value / 1000);
    if (!nvmlDeviceGetPowerManagementLimit(gpu->handle, &value)) snprintf(cap, sizeof cap, "%uW", value / 1000);
    nvmlUtilization_t rates;
    if (!nvmlDeviceGetUtilizationRates(gpu->handle, &rates)) snprintf(load, sizeof load, "%u%%", rates.gpu);
    char memory[48] = "N/A  ";
    nvmlMemory_v2_t info = {.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2u)};
    if (!nvmlDeviceGetMemoryInfo_v2(gpu->handle, &info))
        snprintf(memory, sizeof memory, "%lluMiB / %6lluMiB", smi_mib(info.used), smi_mib(info.total));
    printf("|%4s%6s    %-4s%14s / %5s |%23s |%8s%13s |\n", fan, heat, state, draw, cap, memory, load, compute_mode(gpu));
}

static void print_mode_row(const SmiGpu *gpu) {
    const char *mode = gpu->mig_current == NVML_DEVICE_MIG_ENABLE ? "Enabled" : "Disabled";
    printf("|%41s|%24s|%21s |\n", "", "", gpu->mig_capable ? mode : "N/A");
    puts("+-----------------------------------------+------------------------+----------------------+");
}

int smi_main_table(const char *ids) {
    SmiGpuList list;
    int code = smi_chosen_gpus(&list, ids);
    if (code) return code;
    print_time();
    print_heading();
    bool mig = false;
    for (unsigned i = 0; i < list.count; i++) {
        print_identity_row(&list.gpus[i]);
        print_load_row(&list.gpus[i]);
        print_mode_row(&list.gpus[i]);
        mig |= list.gpus[i].mig_current == NVML_DEVICE_MIG_ENABLE;
    }
    if (mig) smi_mig_table(&list);
    smi_process_table(&list);
    return 0;
}
