/* `client list|terminate`, `device list` */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mps_control/v3.h"

static const char *const COLUMNS[] = {"pid", "server", "device", "namespace", "cmd"};
enum { COLUMN_COUNT = 5 };

/* A client is listed with the first device of its server, whichever it computes on. */
static void list(struct command *command) {
    const char *of = v3_option(command, "server");
    if (of != NULL && v3_server(command, of) == NULL) {
        return;
    }
    v3_heading(command, COLUMNS, COLUMN_COUNT);
    for (unsigned int i = 0; i < CONTROL_MAX_SERVED; i++) {
        const struct served *served = &command->control->served[i];
        const struct server *server = &command->control->servers[served->server];
        if (served->number == 0 || (of != NULL && strcmp(server->name, of) != 0)) {
            continue;
        }
        char cells[COLUMN_COUNT][V3_CELL];
        snprintf(cells[0], V3_CELL, "%d", (int)served->pid);
        snprintf(cells[1], V3_CELL, "%s", server->name);
        snprintf(cells[2], V3_CELL, "0");
        snprintf(cells[3], V3_CELL, "%s", server->spaces[served->space].name);
        snprintf(cells[4], V3_CELL, "%s", served->command);
        v3_row(command, cells, COLUMN_COUNT);
    }
}

static void terminate(struct command *command) {
    const char *word = v3_word(command, 0);
    long pid = word != NULL ? strtol(word, NULL, 10) : 0;
    for (unsigned int i = 0; i < CONTROL_MAX_SERVED; i++) {
        const struct served *served = &command->control->served[i];
        const struct server *server = &command->control->servers[served->server];
        if (served->number != 0 && served->pid == pid) {
            char text[64];
            snprintf(text, sizeof text, "terminate_client %ld", pid);
            if (v3_may_change(command, server, "CLIENT TERMINATE")) {
                command_ask(command, server, text);
            }
            return;
        }
    }
    command_say(command, "Client '%s' not found\n", word != NULL ? word : "");
}

/* Of one server: the one that is named, else the first. */
static void devices(struct command *command) {
    const char *of = v3_option(command, "server"), *format = v3_option(command, "format");
    const struct server *server = of != NULL ? v3_server(command, of) : NULL;
    for (unsigned int i = 0; of == NULL && server == NULL && i < CONTROL_MAX_SERVERS; i++) {
        const struct server *each = &command->control->servers[i];
        server = each->pid != 0 ? each : NULL;
    }
    if (server != NULL) {
        command_ask(command, server, format != NULL && strncmp(format, "csv", 3) == 0 ? "device_query --csv" : "device_query");
    }
}

bool v3_clients(struct command *command, const char *verb) {
    static const struct v3_verb VERBS[] = {{"list", list}, {"terminate", terminate}, {"devices", devices}};
    return v3_run(command, VERBS, sizeof VERBS / sizeof *VERBS, verb);
}
