/* nvidia-smi mig: chooses the GPUs and runs the command. */
#include "mig.h"

#include <stdio.h>
#include <string.h>

static bool needs_mig_mode(MigAction action) {
    return action != MIG_LIST_GI_PROFILES && action != MIG_LIST_GI_PLACEMENTS;
}

static int keep_mig_enabled(SmiGpuList *list) {
    unsigned kept = 0;
    for (unsigned i = 0; i < list->count; i++)
        if (list->gpus[i].mig_current == NVML_DEVICE_MIG_ENABLE) list->gpus[kept++] = list->gpus[i];
    list->count = kept;
    if (kept) return 0;
    printf("No MIG-enabled devices found.\n");
    return SMI_EXIT_NOT_FOUND;
}

static int split_ids(const char *text, SmiList *list, const SmiList **ids) {
    *ids = NULL;
    if (!text) return 0;
    if (!smi_split(list, text)) return smi_bad_combination();
    for (unsigned i = 0; i < list->count; i++) {
        unsigned id;
        if (!smi_number(list->items[i], &id)) return smi_bad_combination();
    }
    *ids = list;
    return 0;
}

static int run_action(const MigRequest *request) {
    switch (request->options->action) {
    case MIG_LIST_GI_PROFILES: return mig_list_gi_profiles(request);
    case MIG_LIST_GI_PLACEMENTS: return mig_list_gi_placements(request);
    case MIG_LIST_GIS: return mig_list_gis(request);
    case MIG_LIST_CI_PROFILES: return mig_list_ci_profiles(request);
    case MIG_LIST_CIS: return mig_list_cis(request);
    case MIG_CREATE_GIS: return mig_create_gis(request);
    case MIG_CREATE_CIS: return mig_create_cis(request);
    case MIG_DESTROY_GIS: return mig_destroy_gis(request);
    case MIG_DESTROY_CIS: return mig_destroy_cis(request);
    case MIG_NO_ACTION: break;
    }
    return smi_bad_combination();
}

int smi_mig(int argc, char **argv) {
    MigOptions options;
    int code = mig_parse(argc, argv, &options);
    if (code < 0) return smi_mig_help();
    if (code) return code;
    MigRequest request = {.options = &options};
    code = smi_chosen_gpus(&request.gpus, options.gpu_ids);
    if (!code) code = split_ids(options.gi_ids, &request.gi_text, &request.gi_ids);
    if (!code) code = split_ids(options.ci_ids, &request.ci_text, &request.ci_ids);
    if (!code && needs_mig_mode(options.action)) code = keep_mig_enabled(&request.gpus);
    return code ? code : run_action(&request);
}
