/* The process block of the main table. */
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_WIDTH = 32 };

/* A long name keeps its end, where programs differ. */
static void shorten(const char *name, char out[NAME_WIDTH + 1]) {
    size_t length = strlen(name);
    if (length <= NAME_WIDTH) snprintf(out, NAME_WIDTH + 1, "%s", name);
    else snprintf(out, NAME_WIDTH + 1, "...%s", name + length - (NAME_WIDTH - 3));
}

static void print_process(const SmiGpu *gpu, const SmiProcess *found) {
    const nvmlProcessInfo_t *process = &found->info;
    char name[256], shown[NAME_WIDTH + 1], instance[32], memory[32] = "N/A";
    smi_process_name(process->pid, name, sizeof name);
    shorten(name, shown);
    if (process->gpuInstanceId == NVML_VALUE_NOT_AVAILABLE) snprintf(instance, sizeof instance, "   N/A  N/A");
    else snprintf(instance, sizeof instance, "%5u%5u ", process->gpuInstanceId, process->computeInstanceId);
    if (process->usedGpuMemory != ~0ull)
        snprintf(memory, sizeof memory, "%lluMiB", smi_mib(process->usedGpuMemory));
    printf("|%5u%s%16u%7s   %-32s%14s |\n", gpu->index, instance, process->pid, found->type, shown, memory);
}

void smi_process_table(const SmiGpuList *list) {
    puts("");
    puts("+-----------------------------------------------------------------------------------------+");
    puts("| Processes:                                                                              |");
    puts("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |");
    puts("|        ID   ID                                                               Usage      |");
    puts("|=========================================================================================|");
    unsigned printed = 0;
    for (unsigned i = 0; i < list->count; i++) {
        SmiProcess *infos = NULL;
        unsigned count = 0;
        if (smi_processes(&list->gpus[i], &infos, &count)) continue;
        for (unsigned p = 0; p < count; p++) print_process(&list->gpus[i], &infos[p]);
        printed += count;
        free(infos);
    }
    if (!printed) puts("|  No running processes found                                                             |");
    puts("+-----------------------------------------------------------------------------------------+");
}
