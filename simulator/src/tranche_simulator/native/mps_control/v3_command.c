#include <stdio.h>
#include <string.h>

#include "mps_control/v3.h"

static const struct {
    const char *name;
    bool (*run)(struct command *command, const char *verb);
} MODULES[] = {
    {"server", v3_servers},
    {"namespace", v3_spaces},
    {"client", v3_clients},
    {"device", v3_clients},
};

const char *v3_option(const struct command *command, const char *key) {
    size_t length = strlen(key);
    for (unsigned int i = 0; i < command->count; i++) {
        const char *word = command->words[i];
        word += strncmp(word, "--", 2) == 0 ? 2 : 0;
        if (strncmp(word, key, length) == 0 && word[length] == '=') {
            return word + length + 1;
        }
    }
    return NULL;
}

bool v3_flag(const struct command *command, const char *flag) {
    for (unsigned int i = 0; i < command->count; i++) {
        if (strncmp(command->words[i], "--", 2) == 0 && strcmp(command->words[i] + 2, flag) == 0) {
            return true;
        }
    }
    return false;
}

const char *v3_word(const struct command *command, unsigned int at) {
    for (unsigned int i = 1; i < command->count; i++) { /* the first is the verb */
        const char *word = command->words[i];
        if (word[0] != '-' && strchr(word, '=') == NULL && at-- == 0) {
            return word;
        }
    }
    return NULL;
}

bool v3_name(struct command *command, const char *name) {
    static const char LETTERS[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    bool sound = name != NULL && name[0] != '\0' && strlen(name) < CONTROL_NAME_SIZE && name[strspn(name, LETTERS)] == '\0';
    if (!sound) {
        command_say(command, "Invalid name '%s'\n", name != NULL ? name : "");
    }
    return sound;
}

struct server *v3_server(struct command *command, const char *name) {
    for (unsigned int i = 0; name != NULL && i < CONTROL_MAX_SERVERS; i++) {
        struct server *server = &command->control->servers[i];
        if (server->pid != 0 && strcmp(server->name, name) == 0) {
            return server;
        }
    }
    command_say(command, "Server '%s' not found\n", name != NULL ? name : "");
    return NULL;
}

struct space *v3_space(struct command *command, struct server *server, const char *name) {
    for (unsigned int i = 0; name != NULL && i < CONTROL_MAX_SPACES; i++) {
        if (server->spaces[i].name[0] != '\0' && strcmp(server->spaces[i].name, name) == 0) {
            return &server->spaces[i];
        }
    }
    command_say(command, "Namespace '%s' not found in server '%s'\n", name != NULL ? name : "", server->name);
    return NULL;
}

bool v3_may_change(struct command *command, const struct server *server, const char *verb) {
    uid_t uid = command->caller->uid;
    if (uid == 0 || uid == server->uid) {
        return true;
    }
    command_say(command, "Insufficient privileges for UID %u. '%s' requires server owner.\n", (unsigned int)uid, verb);
    return false;
}

bool v3_set_limits(struct command *command, struct mps_settings *settings) {
    struct mps_settings next = *settings;
    const char *limit = v3_option(command, "pinned-memory-limit");
    const char *percentage = v3_option(command, "active-thread-percentage");
    const char *priority = v3_option(command, "client-priority");
    uint64_t bytes = 0;
    if (limit == NULL && percentage == NULL && priority == NULL) {
        command_say(command, "At least one option is required\n");
    } else if (limit != NULL && !mps_parse_size(limit, "GMK", &bytes)) {
        command_say(command, "Invalid pinned memory limit '%s'\n", limit);
    } else if (percentage != NULL && !mps_parse_percentage(percentage, &next.percentage)) {
        command_say(command, "Invalid active thread percentage '%s'\n", percentage);
    } else if (priority != NULL && !mps_parse_priority(priority, &next.priority)) {
        command_say(command, "Invalid client priority '%s'\n", priority);
    } else {
        if (limit != NULL) {
            mps_set_limit(&next, MPS_EVERY_DEVICE, bytes);
        }
        *settings = next;
        return true;
    }
    return false;
}

void v3_limit_text(const struct mps_settings *settings, char *text, size_t size) {
    static const struct {
        unsigned int shift;
        char unit;
    } UNITS[] = {{30, 'G'}, {20, 'M'}, {10, 'K'}};
    const struct mps_limit *limit = mps_limit_of(settings, MPS_EVERY_DEVICE);
    snprintf(text, size, "-");
    for (unsigned int i = 3; limit != NULL && i-- > 0;) {
        if ((limit->bytes & ((1ull << UNITS[i].shift) - 1)) == 0) {
            snprintf(text, size, "%llu%c", (unsigned long long)(limit->bytes >> UNITS[i].shift), UNITS[i].unit);
        }
    }
}

static bool by_commas(const struct command *command) {
    const char *format = v3_option(command, "format");
    return format != NULL && strncmp(format, "csv", 3) == 0;
}

void v3_heading(struct command *command, const char *const *columns, unsigned int count) {
    const char *format = v3_option(command, "format");
    if (format != NULL && strstr(format, "noheader") != NULL) {
        return;
    }
    for (unsigned int i = 0; i < count; i++) {
        char heading[32];
        size_t at = 0;
        for (; columns[i][at] != '\0' && at < sizeof heading - 1; at++) {
            bool small = columns[i][at] >= 'a' && columns[i][at] <= 'z';
            heading[at] = (char)(small && !by_commas(command) ? columns[i][at] - 32 : columns[i][at]);
        }
        heading[at] = '\0';
        command_say(command, by_commas(command) ? "%s%s" : "%-20s%s", heading,
                    i + 1 == count ? "\n" : by_commas(command) ? "," : " ");
    }
}

void v3_row(struct command *command, char cells[][V3_CELL], unsigned int count) {
    for (unsigned int i = 0; i < count; i++) {
        command_say(command, by_commas(command) ? "%s%s" : "%-20s%s", cells[i],
                    i + 1 == count ? "\n" : by_commas(command) ? "," : " ");
    }
}

void v3_say_field(struct command *command, const char *const *columns, char cells[][V3_CELL], unsigned int count, const char *field) {
    for (unsigned int i = 0; field != NULL && i < count; i++) {
        if (strcmp(field, columns[i]) == 0) {
            command_say(command, "%s\n", cells[i]);
            return;
        }
    }
    command_say(command, "Unknown field '%s'\n", field != NULL ? field : "");
}

bool v3_run(struct command *command, const struct v3_verb *verbs, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(verbs[i].name, name) == 0) {
            verbs[i].run(command);
            return true;
        }
    }
    return false;
}

void v3_command(struct command *command, const char *module) {
    if (strcmp(module, "quit") == 0) { /* what -q sends */
        servers_end(command->control);
        command->control->quitting = true;
        command->caller->state = CALLER_ASKING; /* until the daemon's end closes the connection */
        command->caller->query = 0;
        return;
    }
    for (size_t i = 0; i < sizeof MODULES / sizeof *MODULES; i++) {
        if (strcmp(MODULES[i].name, module) == 0) {
            const char *verb = command->count > 0 ? command->words[0] : "";
            bool devices = strcmp(module, "device") == 0;
            if (!MODULES[i].run(command, devices ? strcmp(verb, "list") == 0 ? "devices" : "" : verb)) {
                command_say(command, "Unknown command '%s %s'\n", module, verb);
            }
            return;
        }
    }
    command_say(command, "Unknown module '%s'\n", module);
}
