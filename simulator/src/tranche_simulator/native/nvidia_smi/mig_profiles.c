/* nvidia-smi mig -lgip, -lgipp, -lcip */
#include "mig.h"

#include <stdio.h>

enum { GI_PROFILE_WIDTH = 79, CI_PROFILE_WIDTH = 86 };

/* Hopper and later answer with MIG off; before, a GPU has no profiles until MIG is on. */
static int no_profiles(const MigRequest *request) {
    bool capable = false;
    for (unsigned i = 0; i < request->gpus.count; i++) capable |= request->gpus.gpus[i].mig_capable;
    printf(capable ? "No MIG-enabled devices found.\n" : "No MIG-supported devices found.\n");
    return SMI_EXIT_NOT_FOUND;
}

static void print_gi_heading(void) {
    smi_rule(GI_PROFILE_WIDTH);
    puts("| GPU instance profiles:                                                        |");
    puts("| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |");
    puts("|                                Free/Total   GiB              CE    JPEG  OFA  |");
    puts("|===============================================================================|");
}

static void print_gi_profile(const SmiGpu *gpu, const MigGiProfile *profile) {
    unsigned free_count = 0;
    char memory[24];
    nvmlDeviceGetGpuInstanceRemainingCapacity(gpu->handle, profile->id, &free_count);
    snprintf(memory, sizeof memory, "%.2f", (double)profile->memorySizeMB / 1024.0);
    printf("|%4u  %-18s%4u     %u/%u        %-11s%-7s%-7u%-6u%-4u|\n", gpu->index, profile->name, profile->id, free_count,
           profile->instanceCount, memory, profile->isP2pSupported ? "Yes" : "No", profile->multiprocessorCount,
           profile->decoderCount, profile->encoderCount);
    printf("|%63s%-6u%-6u%-4u|\n", "", profile->copyEngineCount, profile->jpegCount, profile->ofaCount);
    smi_rule(GI_PROFILE_WIDTH);
}

int mig_list_gi_profiles(const MigRequest *request) {
    bool printed = false;
    for (unsigned i = 0; i < request->gpus.count; i++) {
        MigGiProfile profiles[NVML_GPU_INSTANCE_PROFILE_COUNT];
        unsigned count = mig_gi_profiles(&request->gpus.gpus[i], profiles);
        if (count && !printed) print_gi_heading();
        printed |= count > 0;
        for (unsigned p = 0; p < count; p++) print_gi_profile(&request->gpus.gpus[i], &profiles[p]);
    }
    return printed ? 0 : no_profiles(request);
}

static void print_placements(const SmiGpu *gpu, const MigGiProfile *profile) {
    nvmlGpuInstancePlacement_t placements[SMI_MAX_INSTANCES];
    unsigned count = SMI_MAX_INSTANCES;
    if (nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu->handle, profile->id, placements, &count) || !count) return;
    printf("GPU %2u Profile ID %2u Placement%s: {", gpu->index, profile->id, count > 1 ? "s" : " ");
    for (unsigned i = 0; i < count; i++) printf("%s%u", i ? "," : "", placements[i].start);
    printf("}:%u\n", placements[0].size);
}

int mig_list_gi_placements(const MigRequest *request) {
    bool printed = false;
    for (unsigned i = 0; i < request->gpus.count; i++) {
        MigGiProfile profiles[NVML_GPU_INSTANCE_PROFILE_COUNT];
        unsigned count = mig_gi_profiles(&request->gpus.gpus[i], profiles);
        printed |= count > 0;
        for (unsigned p = 0; p < count; p++) print_placements(&request->gpus.gpus[i], &profiles[p]);
    }
    return printed ? 0 : no_profiles(request);
}

static void print_ci_heading(void) {
    smi_rule(CI_PROFILE_WIDTH);
    puts("| Compute instance profiles:                                                           |");
    puts("| GPU     GPU       Name             Profile  Instances   Exclusive       Shared       |");
    puts("|       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  |");
    puts("|         ID                                                          CE    JPEG       |");
    puts("|======================================================================================|");
}

static void print_ci_profile(const SmiGpu *gpu, const MigGi *gi, const MigCiProfile *profile, bool is_default) {
    unsigned free_count = 0;
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi->handle, profile->id, &free_count);
    char left[64];
    snprintf(left, sizeof left, "%4u%7u       %-20.24s%2u%c", gpu->index, gi->info.id, profile->name, profile->id,
             is_default ? '*' : ' ');
    printf("|%-46s%u/%u           %-10u%-6u%-6u%-4u|\n", left, free_count, profile->instanceCount,
           profile->multiprocessorCount, profile->sharedDecoderCount, profile->sharedEncoderCount,
           profile->sharedOfaCount);
    printf("|%70s%-6u%-10u|\n", "", profile->sharedCopyEngineCount, profile->sharedJpegCount);
    smi_rule(CI_PROFILE_WIDTH);
}

/* Listings of a 1g with double memory show 1_SLICE_REV1 only, although 1_SLICE can be created there too. */
static bool is_listed(const MigCiProfile *profile, const MigCiProfile *spanning) {
    return profile->id != NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE ||
           spanning->id != NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1;
}

static void print_ci_profiles_of(const SmiGpu *gpu, const MigGi *gi) {
    MigCiProfile profiles[NVML_COMPUTE_INSTANCE_PROFILE_COUNT], spanning;
    unsigned count = mig_ci_profiles(gi->handle, profiles);
    if (!mig_default_ci_profile(gi->handle, &spanning)) return;
    for (unsigned i = 0; i < count; i++)
        if (is_listed(&profiles[i], &spanning))
            print_ci_profile(gpu, gi, &profiles[i], profiles[i].id == spanning.id);
}

int mig_list_ci_profiles(const MigRequest *request) {
    bool printed = false;
    for (unsigned i = 0; i < request->gpus.count; i++) {
        const SmiGpu *gpu = &request->gpus.gpus[i];
        MigGiList gis;
        nvmlReturn_t result = mig_gis(gpu, request->gi_ids, &gis);
        if (result) {
            printf("Failed to display compute instance profiles: %s\n", nvmlErrorString(result));
            return smi_exit_code(result);
        }
        if (gis.count && !printed) print_ci_heading();
        printed |= gis.count > 0;
        for (unsigned g = 0; g < gis.count; g++) print_ci_profiles_of(gpu, &gis.items[g]);
    }
    if (printed) return 0;
    printf("No GPU instances found: Not Found\n");
    return SMI_EXIT_NOT_FOUND;
}
