/* Which server of version 3 a client gets: by the socket that it came to, or at the daemon's own by its user. */
#include <stdio.h>
#include <string.h>

#include "mps/mps_log.h"
#include "mps_control/v3.h"

static struct server *routed(struct control *control, uid_t uid) {
    uid_t owner = control->multiuser ? 0 : uid;
    char name[CONTROL_NAME_SIZE];
    snprintf(name, sizeof name, "uid_%u", (unsigned int)owner);
    for (unsigned int i = 0; i < CONTROL_MAX_SERVERS; i++) {
        struct server *server = &control->servers[i];
        if (server->pid != 0 && !server->leaving && strcmp(server->name, name) == 0) {
            return server;
        }
    }
    return v3_create(control, name, owner, "");
}

void routing_add(struct control *control, struct caller *caller) {
    const struct server *server = NULL;
    uid_t owner = control->multiuser ? 0 : caller->uid;
    if (control->quitting) {
        pending_refuse(caller, MPS_SERVER_NOT_READY);
        return;
    }
    if (caller->server != NO_SERVER) {
        server = &control->servers[caller->server];
    } else if (server_may_be_of(control, owner)) {
        server = routed(control, caller->uid);
    }
    if (server == NULL || server->pid == 0) {
        pending_refuse(caller, server_may_be_of(control, owner) ? MPS_CONNECTION_FAILED : MPS_NOT_PERMITTED);
    } else if (!control->multiuser && server->uid != caller->uid) {
        pending_refuse(caller, MPS_NOT_PERMITTED);
    } else {
        caller->server = (unsigned int)(server - control->servers);
        caller->state = CALLER_PENDING;
        mps_log("NEW CLIENT %d from user %u: %s", (int)caller->pid, (unsigned int)caller->uid,
                server->ready ? "Server already exists" : "Server is not ready, push client to pending list");
    }
}

void routing_serve(struct control *control) {
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        struct caller *caller = &control->callers[i];
        if (caller->state == CALLER_PENDING && control->servers[caller->server].ready) {
            server_serve(control, &control->servers[caller->server], caller);
        }
    }
}
