/* A job of the demo on a simulated machine: for SECONDS it uses the GPUs or slices that CUDA_VISIBLE_DEVICES names, as a CUDA
 * program would, and holds MEMORY_MIB of each. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "tranche_sim.h"

static int fail(const char *what, nvmlReturn_t code) {
    fprintf(stderr, "%s: %s\n", what, nvmlErrorString(code));
    return 1;
}

static void use_for(double seconds) {
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    while (nanosleep(&left, &left) != 0) {
    }
}

int main(int argc, char **argv) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    const char *path = trancheSimDefaultStatePath();
    if (argc != 3 || visible == NULL || path == NULL) {
        fprintf(stderr, "usage: demo-job SECONDS MEMORY_MIB, with CUDA_VISIBLE_DEVICES and TRANCHE_SIM_STATE\n");
        return 2;
    }
    /* The demo may be killed: its jobs must not outlive it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    trancheSimMachine_t machine;
    nvmlReturn_t code = trancheSimOpen(path, &machine);
    if (code != NVML_SUCCESS) {
        return fail(path, code);
    }
    unsigned long long bytes = strtoull(argv[2], NULL, 10) << 20;
    char *devices = strdup(visible);
    if (devices == NULL) {
        return fail("CUDA_VISIBLE_DEVICES", NVML_ERROR_MEMORY);
    }
    for (char *rest = devices, *uuid; (uuid = strsep(&rest, ",")) != NULL;) {
        unsigned int client;
        code = trancheSimAttach(machine, uuid, bytes, 100, &client);
        if (code != NVML_SUCCESS) {
            return fail(uuid, code);
        }
    }
    free(devices);
    use_for(strtod(argv[1], NULL));
    return 0;
}
