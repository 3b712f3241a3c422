/* nvidia-smi memory-limits */
#include "smi.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    bool set, get;
    const char *ids, *group, *soft, *hard;
} LimitOptions;

/* MiB, "max" for no limit, "default" for what a group has that was given none. */
static bool parse_limit(const char *text, unsigned long long unlimited, unsigned long long *bytes) {
    unsigned mib;
    if (text == NULL || strcmp(text, "default") == 0) *bytes = unlimited;
    else if (strcmp(text, "max") == 0) *bytes = NVML_DEVICE_MEMORY_LIMIT_MAX;
    else if (smi_number(text, &mib)) *bytes = (unsigned long long)mib << 20;
    else return false;
    return true;
}

static int bad_limit(const char *option) {
    printf("%s must be a non-negative MebiByte value\n", option);
    return smi_exit_code(NVML_ERROR_INVALID_ARGUMENT);
}

static void print_limit(const char *name, unsigned long long bytes) {
    if (bytes == NVML_DEVICE_MEMORY_LIMIT_MAX) printf("%s: max\n", name);
    else printf("%s: %llu MiB\n", name, bytes >> 20);
}

static int get_of(const SmiGpu *gpu, const char *group) {
    nvmlGetMemoryLimits_v1_t limits = {.nameSpace = group};
    nvmlReturn_t result = nvmlDeviceGetMemoryLimits_v1(gpu->handle, &limits);
    if (result) {
        printf("Unable to get memory limit: %s\n", nvmlErrorString(result));
        return smi_exit_code(result);
    }
    printf("namespace: %s\n", group);
    print_limit("soft limit", limits.softLimit);
    print_limit("hard limit", limits.hardLimit);
    print_limit("current used", limits.currentUsed);
    return 0;
}

static int set_of(const SmiGpu *gpu, const LimitOptions *options) {
    nvmlSetMemoryLimits_v1_t limits = {.nameSpace = options->group};
    if (!parse_limit(options->soft, 0, &limits.softLimit)) return bad_limit("--soft-limit");
    if (!parse_limit(options->hard, NVML_DEVICE_MEMORY_LIMIT_MAX, &limits.hardLimit)) return bad_limit("--hard-limit");
    nvmlReturn_t result = nvmlDeviceSetMemoryLimits_v1(gpu->handle, &limits);
    if (result) printf("Unable to set memory limit: %s\n", nvmlErrorString(result));
    return result ? smi_exit_code(result) : 0;
}

int smi_memory_limits(int argc, char **argv) {
    LimitOptions options = {0};
    for (int at = 0; at < argc; at++) {
        const char *value;
        if (strcmp(argv[at], "--set") == 0) options.set = true;
        else if (strcmp(argv[at], "--get") == 0) options.get = true;
        else if ((value = smi_value(argc, argv, &at, "--soft-limit"))) options.soft = value;
        else if ((value = smi_value(argc, argv, &at, "--hard-limit"))) options.hard = value;
        else if ((value = smi_value(argc, argv, &at, "-n"))) options.group = value;
        else if ((value = smi_value(argc, argv, &at, "--id")) || (value = smi_value(argc, argv, &at, "-i"))) options.ids = value;
        else return smi_bad_option(argv[at]);
    }
    if (options.set == options.get || options.group == NULL) return smi_bad_combination();
    SmiGpuList list;
    int code = smi_chosen_gpus(&list, options.ids);
    for (unsigned i = 0; !code && i < list.count; i++)
        code = options.get ? get_of(&list.gpus[i], options.group) : set_of(&list.gpus[i], &options);
    return code;
}
