/* The arguments of `nvidia-smi mig`. */
#include "mig.h"

#include <string.h>

typedef struct {
    const char *brief, *full;
    MigAction action;
} ActionName;

static const ActionName ACTIONS[] = {
    {"-lgip", "--list-gpu-instance-profiles", MIG_LIST_GI_PROFILES},
    {"-lgipp", "--list-gpu-instance-possible-placements", MIG_LIST_GI_PLACEMENTS},
    {"-lgi", "--list-gpu-instances", MIG_LIST_GIS},
    {"-lcip", "--list-compute-instance-profiles", MIG_LIST_CI_PROFILES},
    {"-lci", "--list-compute-instances", MIG_LIST_CIS},
    {"-cgi", "--create-gpu-instance", MIG_CREATE_GIS},
    {"-cci", "--create-compute-instance", MIG_CREATE_CIS},
    {"-dgi", "--destroy-gpu-instance", MIG_DESTROY_GIS},
    {"-dci", "--destroy-compute-instance", MIG_DESTROY_CIS},
};

static bool is(const char *argument, const char *brief, const char *full) {
    return strcmp(argument, brief) == 0 || strcmp(argument, full) == 0;
}

static MigAction action_named(const char *argument) {
    for (size_t i = 0; i < sizeof ACTIONS / sizeof *ACTIONS; i++)
        if (is(argument, ACTIONS[i].brief, ACTIONS[i].full)) return ACTIONS[i].action;
    return MIG_NO_ACTION;
}

static const char **value_place(MigOptions *options, const char *argument) {
    if (is(argument, "-i", "--id")) return &options->gpu_ids;
    if (is(argument, "-gi", "--gpu-instance-id")) return &options->gi_ids;
    if (is(argument, "-ci", "--compute-instance-id")) return &options->ci_ids;
    return NULL;
}

/* A profile list may follow -cgi and -cci; another option may not be taken for one. */
static bool has_value(int argc, char **argv, int at) { return at + 1 < argc && argv[at + 1][0] != '-'; }

static int parse_action(int argc, char **argv, int *at, MigAction action, MigOptions *options) {
    if (options->action != MIG_NO_ACTION) return smi_bad_combination();
    options->action = action;
    if (action != MIG_CREATE_GIS && action != MIG_CREATE_CIS) return 0;
    if (has_value(argc, argv, *at)) options->profiles = argv[++*at];
    else if (action == MIG_CREATE_GIS) return smi_missing_value(argv[*at]);
    return 0;
}

int mig_parse(int argc, char **argv, MigOptions *options) {
    memset(options, 0, sizeof *options);
    for (int at = 0; at < argc; at++) {
        const char *argument = argv[at];
        if (is(argument, "-h", "--help")) return -1;
        MigAction action = action_named(argument);
        if (action != MIG_NO_ACTION) {
            int code = parse_action(argc, argv, &at, action, options);
            if (code) return code;
            continue;
        }
        if (is(argument, "-C", "--default-compute-instance")) {
            options->default_ci = true;
            continue;
        }
        const char **value = value_place(options, argument);
        if (!value) return smi_bad_option(argument);
        if (!has_value(argc, argv, at)) return smi_missing_value(argument);
        *value = argv[++at];
    }
    if (options->default_ci && options->action != MIG_CREATE_GIS) return smi_bad_combination();
    return options->action == MIG_NO_ACTION ? -1 : 0;
}
