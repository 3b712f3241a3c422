#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mps/mps_log.h"
#include "mps/mps_reports.h"
#include "mps_control/v3.h"

enum { MAX_WORDS = 8 };

static const char *const STATUS_NAMES[] = {"INITIALIZING", "ACTIVE", "FAULT"};

void command_say(struct command *command, const char *format, ...) {
    size_t used = strlen(command->answer);
    va_list values;
    va_start(values, format);
    vsnprintf(command->answer + used, MPS_TEXT_SIZE - used, format, values);
    va_end(values);
}

struct server *command_server(struct command *command, const char *word) {
    struct server *server = &command->control->servers[0];
    char *end;
    long pid = strtol(word, &end, 10);
    if (server->pid != 0 && *end == '\0' && pid == server->pid) {
        return server;
    }
    command_say(command, "Server %s not found\n", word);
    return NULL;
}

void command_ask(struct command *command, const struct server *server, const char *text) {
    struct control *control = command->control;
    struct mps_order order = {.kind = MPS_ORDER_QUERY, .number = ++control->queries};
    snprintf(order.text, sizeof order.text, "%s", text);
    if (!mps_send(server->channel, &order, sizeof order)) {
        return;
    }
    command->caller->state = CALLER_ASKING;
    command->caller->query = order.number;
}

static void get_server_list(struct command *command) {
    if (command->control->servers[0].pid != 0) {
        command_say(command, "%d\n", (int)command->control->servers[0].pid);
    }
}

static void get_server_status(struct command *command) {
    const struct server *server = command_server(command, command->words[0]);
    if (server != NULL) {
        command_say(command, "%s\n", STATUS_NAMES[server->status]);
    }
}

static void start_server(struct command *command) {
    char *end;
    unsigned long uid = strtoul(command->words[1], &end, 10);
    if (strcmp(command->words[0], "-uid") != 0 || *end != '\0') {
        command_say(command, "Invalid arguments\n");
    } else if (!server_may_be_of(command->control, (uid_t)uid)) {
        command_say(command, "Failed to start a server for user %lu\n", uid);
    } else {
        command->control->wanted = command->control->multiuser ? 0 : (uid_t)uid;
    }
}

static void shutdown_server(struct command *command) {
    struct server *server = command_server(command, command->words[0]);
    bool forced = command->count > 1 && strcmp(command->words[1], "-f") == 0;
    if (server != NULL && (forced || server_clients(command->control, server, NULL) == 0)) {
        server_end(server, false);
    }
}

static void get_client_list(struct command *command) {
    if (command_server(command, command->words[0]) != NULL) {
        command_ask(command, &command->control->servers[0], "get_client_list");
    }
}

static void get_device_client_list(struct command *command) {
    if (command->count == 0 ? command->control->servers[0].pid != 0 : command_server(command, command->words[0]) != NULL) {
        command_ask(command, &command->control->servers[0], "get_device_client_list");
    }
}

static void terminate_client(struct command *command) {
    char text[64];
    if (command_server(command, command->words[0]) != NULL) {
        snprintf(text, sizeof text, "terminate_client %.20s", command->words[1]);
        command_ask(command, &command->control->servers[0], text);
    }
}

static void ps(struct command *command) {
    bool named = command->count == 2 && strcmp(command->words[0], "-p") == 0;
    if (command->count != 0 && !named) {
        command_say(command, "Invalid arguments\n");
    } else if (named ? command_server(command, command->words[1]) != NULL : command->control->servers[0].pid != 0) {
        command_ask(command, &command->control->servers[0], "ps");
    } else if (!named) {
        command_say(command, "%s", MPS_PS_HEADER);
    }
}

static void device_query(struct command *command) {
    bool csv = command->count > 0 && strcmp(command->words[command->count - 1], "--csv") == 0;
    if (command->count > (csv ? 1u : 0u) && command_server(command, command->words[0]) == NULL) {
        return;
    }
    if (command->control->servers[0].pid != 0) {
        command_ask(command, &command->control->servers[0], csv ? "device_query --csv" : "device_query");
    } else {
        command_say(command, "%s", csv ? MPS_DEVICES_CSV_HEADER : MPS_DEVICES_HEADER);
    }
}

/* Without -S there are no partitions. With it none can be made here: see the simulator's reference page. */
static void sm_partition(struct command *command) {
    command_say(command, command->control->partitions
                             ? "Failed to fulfill the requested SM partition, error CUDA_ERROR_NOT_SUPPORTED\n"
                             : "Static partitioning is not enabled\n");
}

static void quit(struct command *command) {
    struct control *control = command->control;
    char *end = NULL;
    double seconds = 0;
    if (command->count > 0) {
        bool timed = command->count == 2 && strcmp(command->words[0], "-t") == 0;
        seconds = timed ? strtod(command->words[1], &end) : -1;
        if (!timed || *end != '\0' || seconds < 0) {
            command_say(command, "Invalid arguments\n");
            return;
        }
    }
    control->quitting = true;
    control->quit_at = end != NULL ? daemon_now() + seconds : 0;
    command->caller->state = CALLER_ASKING; /* until the daemon's end closes the connection */
    command->caller->query = 0;
}

static const struct {
    const char *name;
    void (*run)(struct command *command);
    unsigned int least;
    unsigned int most;
} COMMANDS[] = {
    {"get_server_list", get_server_list, 0, 0},
    {"get_server_status", get_server_status, 1, 1},
    {"start_server", start_server, 2, 3},
    {"shutdown_server", shutdown_server, 1, 2},
    {"get_client_list", get_client_list, 1, 1},
    {"get_device_client_list", get_device_client_list, 0, 1},
    {"terminate_client", terminate_client, 2, 2},
    {"ps", ps, 0, 2},
    {"device_query", device_query, 0, 2},
    {"sm_partition", sm_partition, 3, 3},
    {"lspart", sm_partition, 0, 0},
    {"quit", quit, 0, 2},
};

static void dispatch(struct command *command, const char *name) {
    for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++) {
        if (strcmp(COMMANDS[i].name, name) != 0) {
            continue;
        }
        if (command->count < COMMANDS[i].least || command->count > COMMANDS[i].most) {
            command_say(command, "Invalid arguments\n");
        } else {
            COMMANDS[i].run(command);
        }
        return;
    }
    if (!setting_command(command, name)) {
        command_say(command, "Unknown command \"%s\"\n", name);
    }
}

void command_run(struct control *control, struct caller *caller, char *line) {
    static char answer[MPS_TEXT_SIZE];
    char *words[MAX_WORDS];
    unsigned int count = 0;
    line[strcspn(line, "\r\n")] = '\0';
    mps_log("Cmd:%s", line);
    char *rest = NULL;
    for (char *word = strtok_r(line, " \t", &rest); word != NULL && count < MAX_WORDS; word = strtok_r(NULL, " \t", &rest)) {
        words[count++] = word;
    }
    answer[0] = '\0';
    if (count > 0) {
        struct command command = {control, caller, count - 1, words + 1, answer};
        if (control->protocol == 3) {
            v3_command(&command, words[0]);
        } else {
            dispatch(&command, words[0]);
        }
    }
    if (caller->state == CALLER_TERMINAL) {
        if (answer[0] != '\0') {
            mps_log("%.*s", (int)strcspn(answer, "\n"), answer);
        }
        caller_answer(caller, answer);
    }
}
