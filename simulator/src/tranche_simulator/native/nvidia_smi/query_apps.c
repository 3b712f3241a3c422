/* nvidia-smi --query-compute-apps=FIELDS */
#include "query.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { APP_TIMESTAMP, APP_GPU_NAME, APP_BUS_ID, APP_SERIAL, APP_UUID, APP_PID, APP_NAME, APP_MEMORY } AppField;

typedef struct {
    const char *name, *alias, *unit;
    AppField field;
} AppFieldName;

static const AppFieldName FIELDS[] = {
    {"timestamp", NULL, NULL, APP_TIMESTAMP},     {"gpu_name", NULL, NULL, APP_GPU_NAME},
    {"gpu_bus_id", NULL, NULL, APP_BUS_ID},       {"gpu_serial", NULL, NULL, APP_SERIAL},
    {"gpu_uuid", NULL, NULL, APP_UUID},           {"pid", NULL, NULL, APP_PID},
    {"process_name", "name", NULL, APP_NAME},     {"used_gpu_memory", "used_memory", "MiB", APP_MEMORY},
};

static const AppFieldName *field_named(const char *name) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (strcmp(name, FIELDS[i].name) == 0 || (FIELDS[i].alias && strcmp(name, FIELDS[i].alias) == 0))
            return &FIELDS[i];
    return NULL;
}

static void read_field(AppField field, const SmiGpu *gpu, const nvmlProcessInfo_t *process,
                       char value[QUERY_VALUE_SIZE]) {
    switch (field) {
    case APP_TIMESTAMP: query_timestamp(value); return;
    case APP_GPU_NAME: snprintf(value, QUERY_VALUE_SIZE, "%s", gpu->name); return;
    case APP_BUS_ID: snprintf(value, QUERY_VALUE_SIZE, "%s", gpu->pci.busId); return;
    case APP_UUID: snprintf(value, QUERY_VALUE_SIZE, "%s", gpu->uuid); return;
    case APP_PID: snprintf(value, QUERY_VALUE_SIZE, "%u", process->pid); return;
    case APP_NAME: smi_process_name(process->pid, value, QUERY_VALUE_SIZE); return;
    case APP_SERIAL: {
        nvmlReturn_t result = nvmlDeviceGetSerial(gpu->handle, value, QUERY_VALUE_SIZE);
        if (result) query_refusal(result, value);
        return;
    }
    case APP_MEMORY:
        if (process->usedGpuMemory == ~0ull) query_refusal(NVML_ERROR_NOT_SUPPORTED, value);
        else snprintf(value, QUERY_VALUE_SIZE, "%llu", smi_mib(process->usedGpuMemory));
        return;
    }
}

static void print_apps(const SmiGpu *gpu, const AppFieldName **fields, unsigned count, const QueryFormat *format) {
    SmiProcess *infos = NULL;
    unsigned processes = 0;
    if (smi_processes(gpu, &infos, &processes)) return;
    for (unsigned p = 0; p < processes; p++) {
        for (unsigned f = 0; f < count; f++) {
            char value[QUERY_VALUE_SIZE] = "";
            read_field(fields[f]->field, gpu, &infos[p].info, value);
            query_print_value(value, fields[f]->unit, f, format);
        }
        putchar('\n');
    }
    free(infos);
}

int smi_query_apps(const SmiOptions *options) {
    SmiList names;
    const AppFieldName *fields[SMI_MAX_LIST];
    QueryFormat format;
    if (!smi_split(&names, options->query)) return smi_missing_value("--query-compute-apps");
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
    for (unsigned i = 0; i < list.count; i++) print_apps(&list.gpus[i], fields, names.count, &format);
    return 0;
}
