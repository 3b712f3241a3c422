/* `server create|delete|list|set|get` */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mps_control/v3.h"

static const char *const COLUMNS[] = {"name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids"};
enum { COLUMN_COUNT = 7, FIELD_COUNT = 6 };

struct server *v3_create(struct control *control, const char *name, uid_t uid, const char *allowed) {
    for (unsigned int i = 0; i < CONTROL_MAX_SERVERS; i++) {
        struct server *server = &control->servers[i];
        if (server->pid != 0) {
            continue;
        }
        memset(server, 0, sizeof *server);
        snprintf(server->name, sizeof server->name, "%s", name);
        snprintf(server->allowed, sizeof server->allowed, "%s", allowed);
        struct space *space = &server->spaces[0];
        space->settings = control->defaults;
        space->listener = folder_open_space(server, space);
        if (space->listener < 0) {
            memset(server, 0, sizeof *server);
            return NULL;
        }
        snprintf(space->name, sizeof space->name, "default");
        if (!server_start(control, server, uid)) {
            folder_leave_space(server, space);
            memset(server, 0, sizeof *server);
            return NULL;
        }
        return server;
    }
    return NULL;
}

static bool name_is_free(struct command *command, const char *name) {
    for (unsigned int i = 0; i < CONTROL_MAX_SERVERS; i++) {
        if (command->control->servers[i].pid != 0 && strcmp(command->control->servers[i].name, name) == 0) {
            command_say(command, "Server '%s' already exists\n", name);
            return false;
        }
    }
    return true;
}

static void create(struct command *command) {
    const char *name = v3_word(command, 0), *owner = v3_option(command, "uid"), *allowed = v3_option(command, "allowed-devices");
    char routed[CONTROL_NAME_SIZE];
    char *end = NULL;
    unsigned long uid = owner != NULL ? strtoul(owner, &end, 10) : command->caller->uid;
    snprintf(routed, sizeof routed, "uid_%lu", uid);
    if ((owner != NULL && *end != '\0') || (name == NULL && owner == NULL)) {
        command_say(command, "Invalid arguments\n");
        return;
    }
    name = name != NULL ? name : routed;
    bool foreign = command->control->multiuser ? uid != 0 : !server_may_be_of(command->control, (uid_t)uid);
    if (command->caller->uid != 0 && uid != command->caller->uid) {
        command_say(command, "Insufficient privileges for UID %u. 'SERVER CREATE' requires server owner.\n",
                    (unsigned int)command->caller->uid);
    } else if (foreign) {
        command_say(command, "A server of user %lu is not allowed\n", uid);
    } else if (v3_name(command, name) && name_is_free(command, name)) {
        if (v3_create(command->control, name, (uid_t)uid, allowed != NULL ? allowed : "") != NULL) {
            command_say(command, "Server '%s' created\n", name);
        } else {
            command_say(command, "Failed to create server '%s'\n", name);
        }
    }
}

static void delete(struct command *command) {
    struct server *server = v3_server(command, v3_word(command, 0));
    if (server == NULL || !v3_may_change(command, server, "SERVER DELETE")) {
        return;
    }
    if (!v3_flag(command, "force") && server_clients(command->control, server, NULL) > 0) {
        command_say(command, "Server '%s' has active clients\n", server->name);
        return;
    }
    command_say(command, "Server '%s' deleted\n", server->name);
    server_end(server, true);
}

static void describe(const struct server *server, char cells[COLUMN_COUNT][V3_CELL]) {
    static const char *const STATUS_NAMES[] = {"Initializing", "Ready", "Fault"};
    char path[MPS_PATH_SIZE] = "";
    folder_of_space(server, &server->spaces[0], path);
    snprintf(cells[0], V3_CELL, "%s", server->name);
    snprintf(cells[1], V3_CELL, "%u", (unsigned int)server->uid);
    snprintf(cells[2], V3_CELL, "%d", (int)server->pid);
    snprintf(cells[3], V3_CELL, "%s", STATUS_NAMES[server->status]);
    snprintf(cells[4], V3_CELL, "%.1000s", path);
    snprintf(cells[5], V3_CELL, "%s", server->allowed[0] != '\0' ? server->allowed : "-");
    snprintf(cells[6], V3_CELL, "-");
}

static void list(struct command *command) {
    const char *name = v3_word(command, 0);
    if (name != NULL && v3_server(command, name) == NULL) {
        return;
    }
    v3_heading(command, COLUMNS, COLUMN_COUNT);
    for (unsigned int i = 0; i < CONTROL_MAX_SERVERS; i++) {
        const struct server *server = &command->control->servers[i];
        if (server->pid != 0 && (name == NULL || strcmp(server->name, name) == 0)) {
            char cells[COLUMN_COUNT][V3_CELL];
            describe(server, cells);
            v3_row(command, cells, COLUMN_COUNT);
        }
    }
}

static void set(struct command *command) {
    struct server *server = v3_server(command, v3_word(command, 0));
    if (server == NULL || !v3_may_change(command, server, "SERVER SET")) {
        return;
    }
    if (server_clients(command->control, server, &server->spaces[0]) > 0) {
        command_say(command, "Namespace 'default' has active clients\n");
    } else if (v3_set_limits(command, &server->spaces[0].settings)) {
        server_tell(server);
    }
}

static void get(struct command *command) {
    const struct server *server = v3_server(command, v3_word(command, 0));
    const char *field = v3_word(command, 1);
    char cells[COLUMN_COUNT][V3_CELL];
    if (server == NULL) {
        return;
    }
    describe(server, cells);
    v3_say_field(command, COLUMNS, cells, FIELD_COUNT, field);
}

bool v3_servers(struct command *command, const char *verb) {
    static const struct v3_verb VERBS[] = {{"create", create}, {"delete", delete}, {"list", list}, {"set", set}, {"get", get}};
    return v3_run(command, VERBS, sizeof VERBS / sizeof *VERBS, verb);
}
