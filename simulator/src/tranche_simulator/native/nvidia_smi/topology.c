/* nvidia-smi topo -m: how each GPU reaches each other one, and which processors and memory are near. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned int *level);
NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set);
NVML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *nodes,
                                                  unsigned int scope);
NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active);

enum { WORDS = 16, BITS = 8 * sizeof(unsigned long), LINKS = 18, TEXT_SIZE = 512 };

static const char LEGEND[] =
    "\nLegend:\n\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
    "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
    "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
    "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
    "  PIX  = Connection traversing at most a single PCIe bridge\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n";

static unsigned active_links(const SmiGpu *gpu) {
    unsigned count = 0;
    for (unsigned link = 0; link < LINKS; link++) {
        nvmlEnableState_t state = NVML_FEATURE_DISABLED;
        count += nvmlDeviceGetNvLinkState(gpu->handle, link, &state) == NVML_SUCCESS && state == NVML_FEATURE_ENABLED;
    }
    return count;
}

static void print_path(const SmiGpu *from, const SmiGpu *to) {
    unsigned level = NVML_TOPOLOGY_SYSTEM, here = active_links(from), there = active_links(to);
    if (from->index == to->index) printf("\t X ");
    else if (here && there) printf("\tNV%u", here < there ? here : there); /* a switch joins them all */
    else if (nvmlDeviceGetTopologyCommonAncestor(from->handle, to->handle, &level)) printf("\tN/A");
    else if (level == NVML_TOPOLOGY_SYSTEM) printf("\tSYS");
    else printf(level == NVML_TOPOLOGY_NODE ? "\tNODE" : "\tPIX");
}

/* Numbers of the bits set, as ranges: 0-23,48-71. */
static void format_set(const unsigned long *set, char *text) {
    size_t length = 0;
    text[0] = '\0';
    for (unsigned bit = 0; bit < WORDS * BITS; bit++) {
        if (!(set[bit / BITS] >> (bit % BITS) & 1)) continue;
        unsigned last = bit;
        while (last + 1 < WORDS * BITS && (set[(last + 1) / BITS] >> ((last + 1) % BITS) & 1)) last++;
        int step = bit == last ? snprintf(text + length, TEXT_SIZE - length, "%s%u", length ? "," : "", bit)
                               : snprintf(text + length, TEXT_SIZE - length, "%s%u-%u", length ? "," : "", bit, last);
        if (step < 0 || length + (size_t)step >= TEXT_SIZE) return;
        length += (size_t)step;
        bit = last;
    }
}

static void print_near(const SmiGpu *gpu) {
    unsigned long cpus[WORDS] = {0}, nodes[WORDS] = {0};
    char cpu_text[TEXT_SIZE], node_text[TEXT_SIZE];
    nvmlDeviceGetCpuAffinity(gpu->handle, WORDS, cpus);
    nvmlDeviceGetMemoryAffinity(gpu->handle, WORDS, nodes, 0);
    format_set(cpus, cpu_text);
    format_set(nodes, node_text);
    printf("\t%s\t%s\t\tN/A\n", cpu_text, node_text);
}

static int print_matrix(void) {
    SmiGpuList list;
    int code = smi_all_gpus(&list);
    if (code) return code;
    printf("\t\033[4mGPU0");
    for (unsigned i = 1; i < list.count; i++) printf("\tGPU%u", list.gpus[i].index);
    printf("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\n");
    for (unsigned i = 0; i < list.count; i++) {
        printf("GPU%u", list.gpus[i].index);
        for (unsigned j = 0; j < list.count; j++) print_path(&list.gpus[i], &list.gpus[j]);
        print_near(&list.gpus[i]);
    }
    fputs(LEGEND, stdout);
    return 0;
}

int smi_topology(int argc, char **argv) {
    if (argc == 1 && (strcmp(argv[0], "-m") == 0 || strcmp(argv[0], "--matrix") == 0)) return print_matrix();
    return argc > 0 ? smi_bad_option(argv[0]) : smi_bad_combination();
}
