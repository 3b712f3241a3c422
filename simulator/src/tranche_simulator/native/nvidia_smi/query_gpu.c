/* nvidia-smi --query-gpu=FIELDS: the fields, their units and how each is read. */
#include "query.h"

#include <stdio.h>
#include <string.h>

typedef nvmlReturn_t (*FieldReader)(const SmiGpu *gpu, char *value);

typedef struct {
    const char *name, *alias, *unit;
    FieldReader read;
} Field;

static nvmlReturn_t text(char *value, const char *content) {
    snprintf(value, QUERY_VALUE_SIZE, "%s", content);
    return NVML_SUCCESS;
}

static nvmlReturn_t number(char *value, nvmlReturn_t result, unsigned long long content) {
    if (!result) snprintf(value, QUERY_VALUE_SIZE, "%llu", content);
    return result;
}

static nvmlReturn_t watts(char *value, nvmlReturn_t result, unsigned milliwatts) {
    if (!result) snprintf(value, QUERY_VALUE_SIZE, "%.2f", milliwatts / 1000.0);
    return result;
}

static nvmlReturn_t enabled(char *value, nvmlReturn_t result, unsigned state) {
    return result ? result : text(value, state ? "Enabled" : "Disabled");
}

static nvmlReturn_t memory(const SmiGpu *gpu, nvmlMemory_v2_t *info) {
    info->version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2u);
    return nvmlDeviceGetMemoryInfo_v2(gpu->handle, info);
}

static nvmlReturn_t read_timestamp(const SmiGpu *gpu, char *value) {
    (void)gpu;
    query_timestamp(value);
    return NVML_SUCCESS;
}

static nvmlReturn_t read_driver_version(const SmiGpu *gpu, char *value) {
    (void)gpu;
    return nvmlSystemGetDriverVersion(value, QUERY_VALUE_SIZE);
}

static nvmlReturn_t read_count(const SmiGpu *gpu, char *value) {
    (void)gpu;
    unsigned count = 0;
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&count);
    return number(value, result, count);
}

static nvmlReturn_t read_name(const SmiGpu *gpu, char *value) { return text(value, gpu->name); }
static nvmlReturn_t read_uuid(const SmiGpu *gpu, char *value) { return text(value, gpu->uuid); }
static nvmlReturn_t read_index(const SmiGpu *gpu, char *value) { return number(value, NVML_SUCCESS, gpu->index); }
static nvmlReturn_t read_bus_id(const SmiGpu *gpu, char *value) { return text(value, gpu->pci.busId); }

static nvmlReturn_t read_serial(const SmiGpu *gpu, char *value) {
    return nvmlDeviceGetSerial(gpu->handle, value, QUERY_VALUE_SIZE);
}

static nvmlReturn_t read_vbios(const SmiGpu *gpu, char *value) {
    return nvmlDeviceGetVbiosVersion(gpu->handle, value, QUERY_VALUE_SIZE);
}

static nvmlReturn_t hexadecimal(char *value, const char *format, unsigned content) {
    snprintf(value, QUERY_VALUE_SIZE, format, content);
    return NVML_SUCCESS;
}

static nvmlReturn_t read_domain(const SmiGpu *gpu, char *value) { return hexadecimal(value, "0x%04X", gpu->pci.domain); }
static nvmlReturn_t read_bus(const SmiGpu *gpu, char *value) { return hexadecimal(value, "0x%02X", gpu->pci.bus); }
static nvmlReturn_t read_slot(const SmiGpu *gpu, char *value) { return hexadecimal(value, "0x%02X", gpu->pci.device); }
static nvmlReturn_t read_device_id(const SmiGpu *gpu, char *value) {
    return hexadecimal(value, "0x%08X", gpu->pci.pciDeviceId);
}

static nvmlReturn_t read_memory_total(const SmiGpu *gpu, char *value) {
    nvmlMemory_v2_t info;
    nvmlReturn_t result = memory(gpu, &info);
    return number(value, result, result ? 0 : smi_mib(info.total));
}

static nvmlReturn_t read_memory_reserved(const SmiGpu *gpu, char *value) {
    nvmlMemory_v2_t info;
    nvmlReturn_t result = memory(gpu, &info);
    return number(value, result, result ? 0 : smi_mib(info.reserved));
}

static nvmlReturn_t read_memory_used(const SmiGpu *gpu, char *value) {
    nvmlMemory_v2_t info;
    nvmlReturn_t result = memory(gpu, &info);
    return number(value, result, result ? 0 : smi_mib(info.used));
}

static nvmlReturn_t read_memory_free(const SmiGpu *gpu, char *value) {
    nvmlMemory_v2_t info;
    nvmlReturn_t result = memory(gpu, &info);
    return number(value, result, result ? 0 : smi_mib(info.free));
}

static nvmlReturn_t read_gpu_load(const SmiGpu *gpu, char *value) {
    nvmlUtilization_t rates = {0};
    nvmlReturn_t result = nvmlDeviceGetUtilizationRates(gpu->handle, &rates);
    return number(value, result, rates.gpu);
}

static nvmlReturn_t read_memory_load(const SmiGpu *gpu, char *value) {
    nvmlUtilization_t rates = {0};
    nvmlReturn_t result = nvmlDeviceGetUtilizationRates(gpu->handle, &rates);
    return number(value, result, rates.memory);
}

static nvmlReturn_t read_temperature(const SmiGpu *gpu, char *value) {
    unsigned celsius = 0;
    nvmlReturn_t result = nvmlDeviceGetTemperature(gpu->handle, NVML_TEMPERATURE_GPU, &celsius);
    return number(value, result, celsius);
}

static nvmlReturn_t read_fan(const SmiGpu *gpu, char *value) {
    unsigned percent = 0;
    nvmlReturn_t result = nvmlDeviceGetFanSpeed(gpu->handle, &percent);
    return number(value, result, percent);
}

static nvmlReturn_t read_power_draw(const SmiGpu *gpu, char *value) {
    unsigned milliwatts = 0;
    nvmlReturn_t result = nvmlDeviceGetPowerUsage(gpu->handle, &milliwatts);
    return watts(value, result, milliwatts);
}

static nvmlReturn_t read_power_limit(const SmiGpu *gpu, char *value) {
    unsigned milliwatts = 0;
    nvmlReturn_t result = nvmlDeviceGetPowerManagementLimit(gpu->handle, &milliwatts);
    return watts(value, result, milliwatts);
}

static nvmlReturn_t read_pstate(const SmiGpu *gpu, char *value) {
    unsigned state = 0;
    nvmlReturn_t result = nvmlDeviceGetPerformanceState(gpu->handle, &state);
    if (!result) snprintf(value, QUERY_VALUE_SIZE, "P%u", state);
    return result;
}

static nvmlReturn_t read_persistence(const SmiGpu *gpu, char *value) {
    nvmlEnableState_t state = NVML_FEATURE_DISABLED;
    nvmlReturn_t result = nvmlDeviceGetPersistenceMode(gpu->handle, &state);
    return enabled(value, result, state);
}

static nvmlReturn_t read_compute_mode(const SmiGpu *gpu, char *value) {
    unsigned mode = NVML_COMPUTEMODE_DEFAULT;
    nvmlReturn_t result = nvmlDeviceGetComputeMode(gpu->handle, &mode);
    if (result) return result;
    if (mode == NVML_COMPUTEMODE_PROHIBITED) return text(value, "Prohibited");
    return text(value, mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS ? "Exclusive_Process" : "Default");
}

static nvmlReturn_t read_compute_capability(const SmiGpu *gpu, char *value) {
    int major = 0, minor = 0;
    nvmlReturn_t result = nvmlDeviceGetCudaComputeCapability(gpu->handle, &major, &minor);
    if (!result) snprintf(value, QUERY_VALUE_SIZE, "%d.%d", major, minor);
    return result;
}

static nvmlReturn_t read_sm_clock(const SmiGpu *gpu, char *value) {
    unsigned mhz = 0;
    nvmlReturn_t result = nvmlDeviceGetClockInfo(gpu->handle, NVML_CLOCK_SM, &mhz);
    return number(value, result, mhz);
}

static nvmlReturn_t read_memory_clock(const SmiGpu *gpu, char *value) {
    unsigned mhz = 0;
    nvmlReturn_t result = nvmlDeviceGetClockInfo(gpu->handle, NVML_CLOCK_MEM, &mhz);
    return number(value, result, mhz);
}

static nvmlReturn_t read_mig_current(const SmiGpu *gpu, char *value) {
    return enabled(value, gpu->mig_capable ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED, gpu->mig_current);
}

static nvmlReturn_t read_mig_pending(const SmiGpu *gpu, char *value) {
    return enabled(value, gpu->mig_capable ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED, gpu->mig_pending);
}

static const Field FIELDS[] = {
    {"timestamp", NULL, NULL, read_timestamp},
    {"driver_version", NULL, NULL, read_driver_version},
    {"count", NULL, NULL, read_count},
    {"name", "gpu_name", NULL, read_name},
    {"serial", "gpu_serial", NULL, read_serial},
    {"uuid", "gpu_uuid", NULL, read_uuid},
    {"pci.bus_id", "gpu_bus_id", NULL, read_bus_id},
    {"pci.domain", NULL, NULL, read_domain},
    {"pci.bus", NULL, NULL, read_bus},
    {"pci.device", NULL, NULL, read_slot},
    {"pci.device_id", NULL, NULL, read_device_id},
    {"index", NULL, NULL, read_index},
    {"vbios_version", NULL, NULL, read_vbios},
    {"fan.speed", NULL, "%", read_fan},
    {"pstate", NULL, NULL, read_pstate},
    {"persistence_mode", NULL, NULL, read_persistence},
    {"compute_mode", NULL, NULL, read_compute_mode},
    {"compute_cap", NULL, NULL, read_compute_capability},
    {"memory.total", NULL, "MiB", read_memory_total},
    {"memory.reserved", NULL, "MiB", read_memory_reserved},
    {"memory.used", NULL, "MiB", read_memory_used},
    {"memory.free", NULL, "MiB", read_memory_free},
    {"utilization.gpu", NULL, "%", read_gpu_load},
    {"utilization.memory", NULL, "%", read_memory_load},
    {"temperature.gpu", NULL, NULL, read_temperature},
    {"power.draw", NULL, "W", read_power_draw},
    {"power.limit", NULL, "W", read_power_limit},
    {"clocks.current.sm", "clocks.sm", "MHz", read_sm_clock},
    {"clocks.current.memory", "clocks.mem", "MHz", read_memory_clock},
    {"mig.mode.current", NULL, NULL, read_mig_current},
    {"mig.mode.pending", NULL, NULL, read_mig_pending},
};

enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

static const Field *field_named(const char *name) {
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (strcmp(name, FIELDS[i].name) == 0 || (FIELDS[i].alias && strcmp(name, FIELDS[i].alias) == 0))
            return &FIELDS[i];
    return NULL;
}

int smi_query_gpu_help(void) {
    puts("Fields of --query-gpu on a simulated machine:");
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        if (FIELDS[i].alias) printf("\"%s\" or \"%s\"\n", FIELDS[i].name, FIELDS[i].alias);
        else printf("\"%s\"\n", FIELDS[i].name);
    }
    return 0;
}

static void print_row(const SmiGpu *gpu, const Field **fields, unsigned count, const QueryFormat *format) {
    for (unsigned f = 0; f < count; f++) {
        char value[QUERY_VALUE_SIZE] = "";
        nvmlReturn_t result = fields[f]->read(gpu, value);
        if (result) query_refusal(result, value);
        query_print_value(value, fields[f]->unit, f, format);
    }
    putchar('\n');
}

int smi_query_gpus(const SmiOptions *options) {
    SmiList names;
    const Field *fields[SMI_MAX_LIST];
    QueryFormat format;
    if (!smi_split(&names, options->query)) return smi_missing_value("--query-gpu");
    for (unsigned f = 0; f < names.count; f++)
        if (!(fields[f] = field_named(names.items[f]))) return query_unknown_field(names.items[f]);
    if (!query_format(options->format, &format)) return SMI_EXIT_USAGE;
    SmiGpuList list;
    int code = smi_chosen_gpus(&list, options->gpu_ids);
    if (code) return code;
    if (format.header) {
        for (unsigned f = 0; f < names.count; f++) query_print_heading(fields[f]->name, fields[f]->unit, f);
        putchar('\n');
    }
    for (unsigned i = 0; i < list.count; i++) print_row(&list.gpus[i], fields, names.count, &format);
    return 0;
}
