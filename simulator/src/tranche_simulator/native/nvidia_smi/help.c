/* -h, mig -h and --version */
#include "smi.h"

#include <stdio.h>

static void print_driver(void) {
    char driver[80] = "N/A";
    nvmlSystemGetDriverVersion(driver, sizeof driver);
    printf("NVIDIA-SMI of a simulated machine, in the formats of driver %s.\n\n", driver);
}

int smi_help(void) {
    print_driver();
    puts("nvidia-smi [OPTION] [-i IDS]");
    puts("");
    puts("    (no option)                   table of GPUs, MIG devices and processes");
    puts("    -h,   --help                  this text");
    puts("          --version               versions of the tool, NVML, the driver and CUDA");
    puts("    -L,   --list-gpus             GPUs and MIG devices with their UUIDs");
    puts("    -i,   --id=IDS                only these GPUs: index, UUID or PCI bus id, separated by commas");
    puts("    -mig, --multi-instance-gpu=M  MIG mode: 0/DISABLED, 1/ENABLED");
    puts("    -q,   --query                 all that is known of the GPUs");
    puts("    -d,   --display=SECTIONS      with -q, these alone: PERFORMANCE, MEMORY, COMPUTE, UTILIZATION, ECC,");
    puts("                                  ROW_REMAPPER, TEMPERATURE, POWER, CLOCK, PIDS");
    puts("    -pm,  --persistence-mode=M    persistence mode: 0/DISABLED, 1/ENABLED");
    puts("    -c,   --compute-mode=M        0/DEFAULT, 2/PROHIBITED, 3/EXCLUSIVE_PROCESS");
    puts("    -r,   --gpu-reset             reset GPUs that no process uses");
    puts("    --query-gpu=FIELDS            values of the GPUs; --help-query-gpu lists the fields");
    puts("    --query-compute-apps=FIELDS   processes: timestamp, gpu_name, gpu_bus_id, gpu_serial, gpu_uuid,");
    puts("                                  pid, process_name, used_gpu_memory");
    puts("    --format=csv[,noheader][,nounits]");
    puts("    mig                           MIG instances; see nvidia-smi mig -h");
    puts("    topo -m                       how the GPUs are connected");
    puts("    compute-policy -l             the time slice of each GPU; --set-timeslice=0|1|2|3 changes it");
    puts("    memory-limits --get -n GROUP  what a control group may have of each GPU's memory;");
    puts("                                  --set with --soft-limit and --hard-limit, in MiB, changes it");
    return 0;
}

int smi_mig_help(void) {
    print_driver();
    puts("nvidia-smi mig ACTION [-i IDS] [-gi IDS] [-ci IDS]");
    puts("");
    puts("    -i,     --id                                     GPUs: index, UUID or PCI bus id");
    puts("    -gi,    --gpu-instance-id                        GPU instances");
    puts("    -ci,    --compute-instance-id                    compute instances");
    puts("    -lgip,  --list-gpu-instance-profiles             GPU instance profiles");
    puts("    -lgipp, --list-gpu-instance-possible-placements  their placements as {starts}:size");
    puts("    -lgi,   --list-gpu-instances                     GPU instances");
    puts("    -lcip,  --list-compute-instance-profiles         compute instance profiles");
    puts("    -lci,   --list-compute-instances                 compute instances");
    puts("    -cgi,   --create-gpu-instance LIST               create: profile ids or names, each with an optional");
    puts("                                                     :START, separated by commas");
    puts("    -C,     --default-compute-instance               with -cgi: a compute instance that spans it");
    puts("    -cci,   --create-compute-instance [LIST]         create in GPU instances; no list: the spanning one");
    puts("    -dgi,   --destroy-gpu-instance                   destroy GPU instances");
    puts("    -dci,   --destroy-compute-instance               destroy compute instances");
    return 0;
}

int smi_version(void) {
    char driver[80] = "N/A", nvml[80] = "N/A";
    int cuda = 0, parts[3] = {0};
    nvmlSystemGetDriverVersion(driver, sizeof driver);
    nvmlSystemGetNVMLVersion(nvml, sizeof nvml);
    nvmlSystemGetCudaDriverVersion_v2(&cuda);
    sscanf(nvml, "%d.%d.%d", &parts[0], &parts[1], &parts[2]);
    printf("NVIDIA-SMI version  : %s (simulated)\n", driver);
    /* NVML puts the major CUDA version before its own. */
    printf("NVML version        : %d.%d\n", parts[1], parts[2]);
    printf("DRIVER version      : %s\n", driver);
    printf("CUDA Version        : %d.%d\n", cuda / 1000, cuda % 1000 / 10);
    return 0;
}
