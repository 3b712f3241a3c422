/* nvidia-smi mig -dgi, -dci. The first failure ends the command. */
#include "mig.h"

#include <stdio.h>

static int not_found(const char *what) {
    printf("No %s found: Not Found\n", what);
    return SMI_EXIT_NOT_FOUND;
}

static int failed(const char *what, nvmlReturn_t result) {
    printf("Failed to destroy %s: %s\n", what, nvmlErrorString(result));
    return smi_exit_code(result);
}

static int destroy_gi(const SmiGpu *gpu, const MigGi *gi) {
    nvmlReturn_t result = nvmlGpuInstanceDestroy(gi->handle);
    if (!result) {
        printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", gi->info.id, gpu->index);
        return 0;
    }
    printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n", gi->info.id, gpu->index,
           nvmlErrorString(result));
    return failed("GPU instances", result);
}

int mig_destroy_gis(const MigRequest *request) {
    unsigned found = 0;
    for (unsigned i = 0; i < request->gpus.count; i++) {
        const SmiGpu *gpu = &request->gpus.gpus[i];
        MigGiList gis;
        nvmlReturn_t result = mig_gis(gpu, request->gi_ids, &gis);
        if (result) return failed("GPU instances", result);
        found += gis.count;
        for (unsigned g = 0; g < gis.count; g++) {
            int code = destroy_gi(gpu, &gis.items[g]);
            if (code) return code;
        }
    }
    return found ? 0 : not_found("GPU instances");
}

static int destroy_ci(const SmiGpu *gpu, const MigGi *gi, const MigCi *ci) {
    nvmlReturn_t result = nvmlComputeInstanceDestroy(ci->handle);
    if (!result) {
        printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", ci->info.id,
               gpu->index, gi->info.id);
        return 0;
    }
    printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\n", ci->info.id, gpu->index,
           gi->info.id, nvmlErrorString(result));
    return failed("compute instances", result);
}

int mig_destroy_cis(const MigRequest *request) {
    unsigned found = 0;
    for (unsigned i = 0; i < request->gpus.count; i++) {
        const SmiGpu *gpu = &request->gpus.gpus[i];
        MigGiList gis;
        nvmlReturn_t result = mig_gis(gpu, request->gi_ids, &gis);
        if (result) return failed("compute instances", result);
        for (unsigned g = 0; g < gis.count; g++) {
            MigCiList cis;
            result = mig_cis(gis.items[g].handle, request->ci_ids, &cis);
            if (result) return failed("compute instances", result);
            found += cis.count;
            for (unsigned c = 0; c < cis.count; c++) {
                int code = destroy_ci(gpu, &gis.items[g], &cis.items[c]);
                if (code) return code;
            }
        }
    }
    return found ? 0 : not_found("compute instances");
}
