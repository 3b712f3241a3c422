/* The arguments of nvidia-smi, `mig` aside. */
#include "options.h"

#include <string.h>

/* `--name=value` gives the value, `--name` an empty string, anything else NULL. */
static const char *after_name(const char *argument, const char *name) {
    size_t length = strlen(name);
    if (strncmp(argument, name, length) != 0) return NULL;
    if (argument[length] == '\0') return argument + length;
    return argument[length] == '=' ? argument + length + 1 : NULL;
}

typedef struct {
    const char *brief, *full;
    const char **place;
} ValueOption;

static int take_value(int argc, char **argv, int *at, const ValueOption *option, bool *taken) {
    const char *attached = after_name(argv[*at], option->full);
    *taken = attached || (option->brief && strcmp(argv[*at], option->brief) == 0);
    if (!*taken) return 0;
    if (attached && *attached) {
        *option->place = attached;
        return 0;
    }
    if (*at + 1 >= argc) return smi_missing_value(argv[*at]);
    *option->place = argv[++*at];
    return 0;
}

static bool take_flag(const char *argument, SmiOptions *options) {
    if (strcmp(argument, "-L") == 0 || strcmp(argument, "--list-gpus") == 0) options->list_gpus = true;
    else if (strcmp(argument, "-r") == 0 || strcmp(argument, "--gpu-reset") == 0) options->reset = true;
    else if (strcmp(argument, "-q") == 0 || strcmp(argument, "--query") == 0) options->report = true;
    else return false;
    return true;
}

static int take_argument(int argc, char **argv, int *at, SmiOptions *options) {
    const char *gpu_query = NULL, *app_query = NULL;
    const ValueOption values[] = {
        {"-i", "--id", &options->gpu_ids},
        {"-mig", "--multi-instance-gpu", &options->mig_mode},
        {"-pm", "--persistence-mode", &options->persistence},
        {"-c", "--compute-mode", &options->compute_mode},
        {"-d", "--display", &options->display},
        {NULL, "--format", &options->format},
        {NULL, "--query-gpu", &gpu_query},
        {NULL, "--query-compute-apps", &app_query},
    };
    if (take_flag(argv[*at], options)) return 0;
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        bool taken;
        int code = take_value(argc, argv, at, &values[v], &taken);
        if (code) return code;
        if (!taken) continue;
        options->query_gpu |= gpu_query != NULL;
        options->query_apps |= app_query != NULL;
        if (gpu_query) options->query = gpu_query;
        if (app_query) options->query = app_query;
        return 0;
    }
    return smi_bad_option(argv[*at]);
}

int smi_parse(int argc, char **argv, SmiOptions *options) {
    memset(options, 0, sizeof *options);
    for (int at = 0; at < argc; at++) {
        int code = take_argument(argc, argv, &at, options);
        if (code) return code;
    }
    int commands = options->list_gpus + options->reset + (options->mig_mode != NULL) + options->query_gpu +
                   options->query_apps + options->report + (options->persistence != NULL) +
                   (options->compute_mode != NULL);
    bool loose = (options->format && !options->query) || (options->display && !options->report);
    return commands > 1 || loose ? smi_bad_combination() : 0;
}
