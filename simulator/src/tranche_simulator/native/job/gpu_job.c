/* A job for a simulated machine: for SECONDS it uses the GPUs or slices that CUDA_VISIBLE_DEVICES names, as a CUDA program would,
 * and holds MEMORY_MIB of each. Its standard input is a pipe from its starter: when that closes, the starter is gone, and
 * the job ends too. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tranche_sim.h"

static int fail(const char *what, nvmlReturn_t code) {
    fprintf(stderr, "%s: %s\n", what, nvmlErrorString(code));
    return 1;
}

static int use_for(double seconds) {
    struct pollfd starter = {.fd = STDIN_FILENO, .events = 0};
    return poll(&starter, 1, (int)(seconds * 1000.0 + 0.5)) == 0 ? 0 : 3;
}

int main(int argc, char **argv) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    const char *path = trancheSimDefaultStatePath();
    if (argc != 3 || visible == NULL || path == NULL) {
        fprintf(stderr, "usage: gpu-job SECONDS MEMORY_MIB, with CUDA_VISIBLE_DEVICES and TRANCHE_SIM_STATE\n");
        return 2;
    }
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
    return use_for(strtod(argv[1], NULL));
}
