/* nvidia-smi mig -lgi, -lci */
#include "mig.h"

#include <stdio.h>

enum { GI_WIDTH = 57, CI_WIDTH = 68 };

static int failed(const char *what, nvmlReturn_t result) {
    printf("Failed to display %s: %s\n", what, nvmlErrorString(result));
    return smi_exit_code(result);
}

static void print_gi_heading(void) {
    smi_rule(GI_WIDTH);
    puts("| GPU instances:                                          |");
    puts("| GPU   Name               Profile  Instance   Placement  |");
    puts("|                            ID       ID       Start:Size |");
    puts("|=========================================================|");
}

static void print_gi(const SmiGpu *gpu, const MigGi *gi) {
    printf("|%4u  %-18s%6u%9u%11u:%-6u|\n", gpu->index, gi->name, gi->info.profileId, gi->info.id,
           gi->info.placement.start, gi->info.placement.size);
    smi_rule(GI_WIDTH);
}

int mig_list_gis(const MigRequest *request) {
    bool printed = false;
    for (unsigned i = 0; i < request->gpus.count; i++) {
        MigGiList gis;
        nvmlReturn_t result = mig_gis(&request->gpus.gpus[i], request->gi_ids, &gis);
        if (result) return failed("GPU instances", result);
        if (gis.count && !printed) print_gi_heading();
        printed |= gis.count > 0;
        for (unsigned g = 0; g < gis.count; g++) print_gi(&request->gpus.gpus[i], &gis.items[g]);
    }
    if (printed) return 0;
    printf("No GPU instances found: Not Found\n");
    return SMI_EXIT_NOT_FOUND;
}

static void print_ci_heading(void) {
    smi_rule(CI_WIDTH);
    puts("| Compute instances:                                                 |");
    puts("| GPU     GPU       Name             Profile   Instance   Placement  |");
    puts("|       Instance                       ID        ID       Start:Size |");
    puts("|         ID                                                         |");
    puts("|====================================================================|");
}

static void print_ci(const SmiGpu *gpu, const MigGi *gi, const MigCi *ci) {
    char left[64];
    snprintf(left, sizeof left, "%4u%7u       %-20.24s%2u", gpu->index, gi->info.id, ci->name, ci->info.profileId);
    printf("|%-41s%9u%11u:%-6u|\n", left, ci->info.id, ci->info.placement.start, ci->info.placement.size);
    smi_rule(CI_WIDTH);
}

int mig_list_cis(const MigRequest *request) {
    bool printed = false;
    for (unsigned i = 0; i < request->gpus.count; i++) {
        const SmiGpu *gpu = &request->gpus.gpus[i];
        MigGiList gis;
        nvmlReturn_t result = mig_gis(gpu, request->gi_ids, &gis);
        for (unsigned g = 0; !result && g < gis.count; g++) {
            MigCiList cis;
            result = mig_cis(gis.items[g].handle, request->ci_ids, &cis);
            if (result) break;
            if (cis.count && !printed) print_ci_heading();
            printed |= cis.count > 0;
            for (unsigned c = 0; c < cis.count; c++) print_ci(gpu, &gis.items[g], &cis.items[c]);
        }
        if (result) return failed("compute instances", result);
    }
    if (printed) return 0;
    printf("No compute instances found: Not Found\n");
    return SMI_EXIT_NOT_FOUND;
}
