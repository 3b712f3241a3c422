/* Commands that read and change settings: with `default` those of servers to come, else those of a server. */
#include <stdio.h>
#include <string.h>

#include "mps/mps_faults.h"
#include "mps/mps_version.h"
#include "mps_control/control.h"

/* As the real command prints it: whole GiB, rounded down, from one GiB on; an exact number of MiB below. */
static void say_limit(struct command *command, const struct mps_limit *limit) {
    if (limit == NULL) {
        return;
    }
    if (limit->bytes >> 30 != 0) {
        command_say(command, "%lluG\n", (unsigned long long)(limit->bytes >> 30));
    } else {
        command_say(command, "%lluM\n", (unsigned long long)(limit->bytes >> 20));
    }
}

static void percentage(struct command *command, struct mps_settings *settings, char **words, bool sets) {
    if (sets && !mps_parse_percentage(words[0], &settings->percentage)) {
        command_say(command, "Invalid active thread percentage %s\n", words[0]);
        return;
    }
    command_say(command, "%.1f\n", settings->percentage);
}

static void limit(struct command *command, struct mps_settings *settings, char **words, bool sets) {
    if (!sets) {
        const struct mps_limit *said = mps_limit_of(settings, words[0]);
        bool of_server = settings != &command->control->defaults;
        /* A server knows its device by UUID too, a daemon does not (580.159). */
        say_limit(command, said == NULL && of_server && strncmp(words[0], "GPU-", 4) == 0 ? mps_limit_of(settings, "0") : said);
        return;
    }
    uint64_t bytes;
    if (!mps_parse_size(words[1], "GM", &bytes)) {
        command_say(command, "Invalid device pinned memory limit %s\n", words[1]);
    } else if (!mps_fails(command->control->m, MPS_SET_LIMIT)) {
        mps_set_limit(settings, words[0], bytes);
    }
}

static void priority(struct command *command, struct mps_settings *settings, char **words, bool sets) {
    if (sets && !mps_parse_priority(words[0], &settings->priority)) {
        command_say(command, "Invalid client priority %s\n", words[0]);
    } else if (!sets) {
        command_say(command, "%u\n", settings->priority);
    }
}

static const struct setting_kind {
    const char *name; /* after set_, set_default_, get_, get_default_ */
    void (*run)(struct command *command, struct mps_settings *settings, char **words, bool sets);
    unsigned int set_words;
    unsigned int get_words;
    bool of_servers; /* there is one for a single server too */
} KINDS[] = {
    {"active_thread_percentage", percentage, 1, 0, true},
    {"device_pinned_mem_limit", limit, 2, 1, true},
    {"client_priority", priority, 1, 0, false},
};

static const struct setting_kind *kind_of(const struct control *control, const char *name) {
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        if (strcmp(KINDS[i].name, name) == 0 && (KINDS[i].run != limit || mps_has_limits(control->m))) {
            return &KINDS[i];
        }
    }
    return NULL;
}

bool setting_command(struct command *command, const char *name) {
    static const char DEFAULT[] = "default_";
    bool sets = strncmp(name, "set_", 4) == 0;
    if (!sets && strncmp(name, "get_", 4) != 0) {
        return false;
    }
    name += 4;
    bool of_server = strncmp(name, DEFAULT, sizeof DEFAULT - 1) != 0;
    const struct setting_kind *kind = kind_of(command->control, of_server ? name : name + sizeof DEFAULT - 1);
    if (kind == NULL || (of_server && !kind->of_servers)) {
        return false;
    }
    char *zero[] = {(char *)"0"};
    char **words = command->words;
    unsigned int count = command->count;
    struct mps_settings *settings = &command->control->defaults;
    if (of_server) {
        struct server *server = count > 0 ? command_server(command, words[0]) : NULL;
        if (server == NULL) {
            return true;
        }
        settings = &server->spaces[0].settings;
        words++;
        count--;
    }
    if (!sets && kind->get_words == 1 && count == 0) {
        words = zero; /* a device that is not named is the first */
        count = 1;
    }
    if (count != (sets ? kind->set_words : kind->get_words)) {
        command_say(command, "Invalid arguments\n");
        return true;
    }
    kind->run(command, settings, words, sets);
    if (of_server && sets) {
        server_tell(&command->control->servers[0]);
    }
    return true;
}
