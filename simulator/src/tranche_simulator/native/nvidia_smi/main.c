/* nvidia-smi of a simulated machine. */
#include "options.h"

#include <stdio.h>
#include <string.h>

static int no_driver(nvmlReturn_t result) {
    if (result == NVML_ERROR_DRIVER_NOT_LOADED) {
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
               "NVIDIA driver is installed and running.\n\n");
        fprintf(stderr, "hint: this is the nvidia-smi of simulated machines; TRANCHE_SIM_STATE names the machine's "
                        "state file (see `tranche sim env`)\n");
    } else {
        printf("Failed to initialize NVML: %s\n", nvmlErrorString(result));
    }
    return smi_exit_code(result);
}

static int run(int argc, char **argv) {
    if (argc > 0 && strcmp(argv[0], "mig") == 0) return smi_mig(argc - 1, argv + 1);
    if (argc > 0 && strcmp(argv[0], "topo") == 0) return smi_topology(argc - 1, argv + 1);
    if (argc > 0 && strcmp(argv[0], "compute-policy") == 0) return smi_compute_policy(argc - 1, argv + 1);
    if (argc > 0 && strcmp(argv[0], "memory-limits") == 0) return smi_memory_limits(argc - 1, argv + 1);
    if (argc == 1 && (strcmp(argv[0], "-h") == 0 || strcmp(argv[0], "--help") == 0)) return smi_help();
    if (argc == 1 && strcmp(argv[0], "--help-query-gpu") == 0) return smi_query_gpu_help();
    if (argc == 1 && strcmp(argv[0], "--version") == 0) return smi_version();
    SmiOptions options;
    int code = smi_parse(argc, argv, &options);
    if (code) return code;
    if (options.list_gpus) return smi_list_gpus(options.gpu_ids);
    if (options.mig_mode) return smi_set_mig_mode(options.mig_mode, options.gpu_ids);
    if (options.persistence) return smi_set_persistence(options.persistence, options.gpu_ids);
    if (options.compute_mode) return smi_set_compute_mode(options.compute_mode, options.gpu_ids);
    if (options.report) return smi_report(&options);
    if (options.reset) return smi_reset_gpus(options.gpu_ids);
    if (options.query_gpu) return smi_query_gpus(&options);
    if (options.query_apps) return smi_query_apps(&options);
    return smi_main_table(options.gpu_ids);
}

int main(int argc, char **argv) {
    nvmlReturn_t result = nvmlInit_v2();
    if (result) return no_driver(result);
    int code = run(argc - 1, argv + 1);
    nvmlShutdown();
    return code;
}
