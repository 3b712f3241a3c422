/* `namespace create|delete|list|set|get` */
#include <stdio.h>
#include <string.h>

#include "mps_control/v3.h"

static const char *const COLUMNS[] = {"name",           "server",
                                      "server-status",  "pinned-memory-limit",
                                      "active-thread-percentage", "client-priority",
                                      "pipe-directory"};
enum { COLUMN_COUNT = 7 };

/* A new namespace inherits nothing of its server's, and may be given more. */
static void create(struct command *command) {
    const char *name = v3_word(command, 0);
    struct server *server = v3_server(command, v3_option(command, "server"));
    if (server == NULL || !v3_may_change(command, server, "NAMESPACE CREATE") || !v3_name(command, name)) {
        return;
    }
    struct space *space = NULL;
    for (unsigned int i = CONTROL_MAX_SPACES; i-- > 0;) {
        if (strcmp(server->spaces[i].name, name) == 0) {
            command_say(command, "Namespace '%s' already exists in server '%s'\n", name, server->name);
            return;
        }
        space = server->spaces[i].name[0] == '\0' ? &server->spaces[i] : space;
    }
    if (space != NULL) {
        snprintf(space->name, sizeof space->name, "%s", name);
        space->settings = (struct mps_settings){.percentage = 100.0};
        space->listener = folder_open_space(server, space);
    }
    if (space == NULL || space->listener < 0) {
        command_say(command, "Failed to create namespace '%s'\n", name);
        if (space != NULL) {
            memset(space, 0, sizeof *space);
        }
        return;
    }
    command_say(command, "Namespace '%s' created in server '%s'\n", name, server->name);
}

static bool is_unused(struct command *command, const struct server *server, const struct space *space) {
    bool unused = server_clients(command->control, server, space) == 0;
    if (!unused) {
        command_say(command, "Namespace '%s' has active clients\n", space->name);
    }
    return unused;
}

static void terminate_clients(const struct control *control, const struct server *server, const struct space *space) {
    for (unsigned int i = 0; i < CONTROL_MAX_SERVED; i++) {
        const struct served *served = &control->served[i];
        if (served->number != 0 && &control->servers[served->server] == server && &server->spaces[served->space] == space) {
            struct mps_order order = {.kind = MPS_ORDER_QUERY, .number = UINT32_MAX}; /* nothing waits for the answer */
            snprintf(order.text, sizeof order.text, "terminate_client %d", (int)served->pid);
            mps_send(server->channel, &order, sizeof order);
        }
    }
}

static void delete(struct command *command) {
    struct server *server = v3_server(command, v3_option(command, "server"));
    if (server == NULL || !v3_may_change(command, server, "NAMESPACE DELETE")) {
        return;
    }
    struct space *space = v3_space(command, server, v3_word(command, 0));
    if (space == NULL) {
        return;
    }
    if (space == &server->spaces[0]) {
        command_say(command, "Namespace 'default' cannot be deleted\n");
    } else if (v3_flag(command, "force") || is_unused(command, server, space)) {
        terminate_clients(command->control, server, space);
        command_say(command, "Namespace '%s' deleted from server '%s'\n", space->name, server->name);
        folder_leave_space(server, space);
    }
}

static void describe(const struct server *server, const struct space *space, char cells[COLUMN_COUNT][V3_CELL]) {
    char path[MPS_PATH_SIZE] = "";
    folder_of_space(server, space, path);
    snprintf(cells[0], V3_CELL, "%s", space->name);
    snprintf(cells[1], V3_CELL, "%s", server->name);
    snprintf(cells[2], V3_CELL, "%s", server->ready ? "Ready" : "Initializing");
    v3_limit_text(&space->settings, cells[3], V3_CELL);
    snprintf(cells[4], V3_CELL, "%g", space->settings.percentage);
    snprintf(cells[5], V3_CELL, "%u", space->settings.priority);
    snprintf(cells[6], V3_CELL, "%.1000s", path);
}

static void list(struct command *command) {
    const char *name = v3_word(command, 0), *of = v3_option(command, "server");
    if (of != NULL && v3_server(command, of) == NULL) {
        return;
    }
    v3_heading(command, COLUMNS, COLUMN_COUNT);
    for (unsigned int i = 0; i < CONTROL_MAX_SERVERS * CONTROL_MAX_SPACES; i++) {
        const struct server *server = &command->control->servers[i / CONTROL_MAX_SPACES];
        const struct space *space = &server->spaces[i % CONTROL_MAX_SPACES];
        bool listed = server->pid != 0 && space->name[0] != '\0' && (of == NULL || strcmp(server->name, of) == 0);
        if (listed && (name == NULL || strcmp(space->name, name) == 0)) {
            char cells[COLUMN_COUNT][V3_CELL];
            describe(server, space, cells);
            v3_row(command, cells, COLUMN_COUNT);
        }
    }
}

static void set(struct command *command) {
    struct server *server = v3_server(command, v3_option(command, "server"));
    if (server == NULL || !v3_may_change(command, server, "NAMESPACE SET")) {
        return;
    }
    struct space *space = v3_space(command, server, v3_word(command, 0));
    if (space != NULL && is_unused(command, server, space)) {
        v3_set_limits(command, &space->settings);
    }
}

static void get(struct command *command) {
    struct server *server = v3_server(command, v3_word(command, 1));
    const struct space *space = server != NULL ? v3_space(command, server, v3_word(command, 0)) : NULL;
    const char *field = v3_word(command, 2);
    char cells[COLUMN_COUNT][V3_CELL];
    if (space == NULL) {
        return;
    }
    describe(server, space, cells);
    v3_say_field(command, COLUMNS, cells, COLUMN_COUNT, field);
}

bool v3_spaces(struct command *command, const char *verb) {
    static const struct v3_verb VERBS[] = {{"create", create}, {"delete", delete}, {"list", list}, {"set", set}, {"get", get}};
    return v3_run(command, VERBS, sizeof VERBS / sizeof *VERBS, verb);
}
