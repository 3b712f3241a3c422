/* nvidia-smi -q: its frame, what a GPU is, and which sections -d asks for. */
#include "report.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "../boards.h"

NVML_API nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, unsigned int mode[2]);
NVML_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *value);
NVML_API nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *value);
NVML_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *value);
NVML_API nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *value);

enum { COLUMN = 42, INDENT = 4, CUDA_MAJOR = 1000, CUDA_MINOR = 10, ADDRESSING_VERSION = 0x1000008 };

void report_heading(unsigned depth, const char *name) { printf("%*s%s\n", (int)(depth * INDENT), "", name); }

void report_text(unsigned depth, const char *name, const char *value) {
    printf("%*s%-*s: %s\n", (int)(depth * INDENT), "", (int)(COLUMN - depth * INDENT), name, value);
}

void report_number(unsigned depth, const char *name, nvmlReturn_t result, unsigned long long value, const char *unit) {
    char text[64] = "N/A";
    if (!result) snprintf(text, sizeof text, "%llu%s%s", value, *unit ? " " : "", unit);
    report_text(depth, name, text);
}

void report_enabled(unsigned depth, const char *name, nvmlReturn_t result, unsigned state) {
    report_text(depth, name, result ? "N/A" : state ? "Enabled" : "Disabled");
}

static const char *architecture_of(const SmiGpu *gpu) {
    unsigned value = 0;
    if (nvmlDeviceGetArchitecture(gpu->handle, &value)) return "N/A";
    for (unsigned i = 0; i < family_table_size; i++)
        if (family_table[i].architecture == value) return family_table[i].name;
    return "Unknown";
}

static void report_modes(const SmiGpu *gpu) {
    static const char *const addressing_names[] = {"None", "HMM", "ATS"};
    nvmlEnableState_t state = NVML_FEATURE_DISABLED;
    nvmlReturn_t result = nvmlDeviceGetDisplayMode(gpu->handle, &state);
    report_enabled(1, "Display Mode", result, state);
    result = nvmlDeviceGetDisplayActive(gpu->handle, &state);
    report_enabled(1, "Display Active", result, state);
    result = nvmlDeviceGetPersistenceMode(gpu->handle, &state);
    report_enabled(1, "Persistence Mode", result, state);
    unsigned addressing[2] = {ADDRESSING_VERSION, 0};
    result = nvmlDeviceGetAddressingMode(gpu->handle, addressing);
    report_text(1, "Addressing Mode", result || addressing[1] > 2 ? "N/A" : addressing_names[addressing[1]]);
    report_heading(1, "MIG Mode");
    nvmlReturn_t none = gpu->mig_capable ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    report_enabled(2, "Current", none, gpu->mig_current);
    report_enabled(2, "Pending", none, gpu->mig_pending);
}

static void report_identity(const SmiGpu *gpu) {
    char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    unsigned number = 0;
    nvmlReturn_t result = nvmlDeviceGetBrand(gpu->handle, &number);
    report_text(1, "Product Name", gpu->name);
    report_text(1, "Product Brand", result ? "N/A" : number == 13 ? "NVIDIA RTX" : "NVIDIA");
    report_text(1, "Product Architecture", architecture_of(gpu));
    report_modes(gpu);
    if (gpu->mig_current == NVML_DEVICE_MIG_ENABLE) report_mig_devices(gpu);
    report_text(1, "Serial Number", nvmlDeviceGetSerial(gpu->handle, text, sizeof text) ? "N/A" : text);
    report_text(1, "GPU UUID", gpu->uuid);
    result = nvmlDeviceGetMinorNumber(gpu->handle, &number);
    report_number(1, "Minor Number", result, number, "");
    report_text(1, "VBIOS Version", nvmlDeviceGetVbiosVersion(gpu->handle, text, sizeof text) ? "N/A" : text);
    report_text(1, "MultiGPU Board", "No");
    if (!nvmlDeviceGetBoardId(gpu->handle, &number)) snprintf(text, sizeof text, "0x%x", number);
    report_text(1, "Board ID", text);
}

static void report_width(const char *name, nvmlReturn_t result, unsigned lanes) {
    char text[32] = "N/A";
    if (!result) snprintf(text, sizeof text, "%ux", lanes);
    report_text(4, name, text);
}

static void report_pci(const SmiGpu *gpu) {
    static const char *const names[] = {"Bus", "Device", "Domain"};
    const unsigned values[] = {gpu->pci.bus, gpu->pci.device, gpu->pci.domain};
    char text[32];
    nvmlPciInfoExt_v1_t extended = {.version = NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1u)};
    report_heading(1, "PCI");
    for (unsigned i = 0; i < 3; i++) {
        snprintf(text, sizeof text, i == 2 ? "0x%04X" : "0x%02X", values[i]);
        report_text(2, names[i], text);
    }
    if (!nvmlDeviceGetPciInfoExt(gpu->handle, &extended)) {
        snprintf(text, sizeof text, "0x%X", extended.baseClass);
        report_text(2, "Base Classcode", text);
        snprintf(text, sizeof text, "0x%X", extended.subClass);
        report_text(2, "Sub Classcode", text);
    }
    snprintf(text, sizeof text, "0x%08X", gpu->pci.pciDeviceId);
    report_text(2, "Device Id", text);
    report_text(2, "Bus Id", gpu->pci.busId);
    snprintf(text, sizeof text, "0x%08X", gpu->pci.pciSubSystemId);
    report_text(2, "Sub System Id", text);
    report_heading(2, "GPU Link Info");
    unsigned value = 0;
    report_heading(3, "PCIe Generation");
    nvmlReturn_t result = nvmlDeviceGetMaxPcieLinkGeneration(gpu->handle, &value);
    report_number(4, "Max", result, value, "");
    result = nvmlDeviceGetCurrPcieLinkGeneration(gpu->handle, &value);
    report_number(4, "Current", result, value, "");
    report_heading(3, "Link Width");
    result = nvmlDeviceGetMaxPcieLinkWidth(gpu->handle, &value);
    report_width("Max", result, value);
    result = nvmlDeviceGetCurrPcieLinkWidth(gpu->handle, &value);
    report_width("Current", result, value);
}

static void report_fan_and_state(const SmiGpu *gpu) {
    unsigned value = 0;
    char text[16] = "N/A";
    nvmlReturn_t result = nvmlDeviceGetFanSpeed(gpu->handle, &value);
    report_number(1, "Fan Speed", result, value, "%");
    if (!nvmlDeviceGetPerformanceState(gpu->handle, &value)) snprintf(text, sizeof text, "P%u", value);
    report_text(1, "Performance State", text);
}

typedef struct {
    const char *display; /* of -d; NULL: in the whole report only */
    void (*print)(const SmiGpu *gpu);
} Section;

static const Section SECTIONS[] = {
    {NULL, report_identity},
    {NULL, report_pci},
    {"PERFORMANCE", report_fan_and_state},
    {"MEMORY", report_memory},
    {"COMPUTE", report_compute_mode},
    {"UTILIZATION", report_utilization},
    {"ECC", report_ecc},
    {"ROW_REMAPPER", report_remapped_rows},
    {"TEMPERATURE", report_temperature},
    {"POWER", report_power},
    {"CLOCK", report_clocks},
    {"PIDS", report_processes},
};
enum { SECTION_COUNT = sizeof SECTIONS / sizeof *SECTIONS };

/* Which sections -d names; all without it. False for an unknown name. */
static bool choose(const char *display, bool chosen[SECTION_COUNT]) {
    SmiList names;
    for (unsigned s = 0; s < SECTION_COUNT; s++) chosen[s] = !display;
    if (!display) return true;
    if (!smi_split(&names, display)) return false;
    for (unsigned i = 0; i < names.count; i++) {
        bool known = false;
        for (unsigned s = 0; s < SECTION_COUNT; s++) {
            bool same = SECTIONS[s].display && strcasecmp(SECTIONS[s].display, names.items[i]) == 0;
            chosen[s] |= same;
            known |= same;
        }
        if (!known) return false;
    }
    return true;
}

static void report_frame(unsigned attached) {
    char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    time_t now = time(NULL);
    struct tm local;
    int version = 0;
    localtime_r(&now, &local);
    strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", &local);
    puts("\n==============NVSMI LOG==============\n");
    report_text(0, "Timestamp", text);
    report_text(0, "Driver Version", nvmlSystemGetDriverVersion(text, sizeof text) ? "N/A" : text);
    snprintf(text, sizeof text, "N/A");
    if (!nvmlSystemGetCudaDriverVersion_v2(&version))
        snprintf(text, sizeof text, "%d.%d", version / CUDA_MAJOR, version % CUDA_MAJOR / CUDA_MINOR);
    report_text(0, "CUDA Version", text);
    puts("");
    report_number(0, "Attached GPUs", NVML_SUCCESS, attached, "");
}

int smi_report(const SmiOptions *options) {
    bool chosen[SECTION_COUNT];
    if (!choose(options->display, chosen)) return smi_bad_combination();
    SmiGpuList list;
    unsigned attached = 0;
    int code = smi_chosen_gpus(&list, options->gpu_ids);
    if (code) return code;
    nvmlDeviceGetCount_v2(&attached);
    report_frame(attached);
    for (unsigned i = 0; i < list.count; i++) {
        printf("GPU %s\n", list.gpus[i].pci.busId);
        for (unsigned s = 0; s < SECTION_COUNT; s++)
            if (chosen[s]) SECTIONS[s].print(&list.gpus[i]);
        puts("");
    }
    return 0;
}
