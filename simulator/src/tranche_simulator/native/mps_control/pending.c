#include <string.h>

#include "mps/mps_log.h"
#include "mps_control/control.h"

static uid_t user_of(const struct control *control, uid_t uid) { return control->multiuser ? 0 : uid; }

void pending_refuse(struct caller *caller, int32_t error) {
    struct mps_grant grant = {.error = error};
    mps_send(caller->connection, &grant, sizeof grant);
    caller_close(caller);
}

static bool has_server(const struct control *control, uid_t uid) {
    const struct server *server = &control->servers[0];
    return server->pid != 0 && server->ready && !server->leaving && server->uid == user_of(control, uid);
}

void pending_add(struct control *control, struct caller *caller) {
    if (control->quitting) {
        pending_refuse(caller, MPS_SERVER_NOT_READY);
    } else if (!server_may_be_of(control, user_of(control, caller->uid))) {
        pending_refuse(caller, MPS_NOT_PERMITTED);
    } else {
        bool served = has_server(control, caller->uid);
        mps_log("NEW CLIENT %d from user %u: %s", (int)caller->pid, (unsigned int)caller->uid,
                served ? "Server already exists" : "Server is not ready, push client to pending list");
        caller->state = CALLER_PENDING;
    }
}

static struct caller *first_pending(struct control *control) {
    struct caller *first = NULL;
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        struct caller *caller = &control->callers[i];
        if (caller->state == CALLER_PENDING && (first == NULL || caller->arrival < first->arrival)) {
            first = caller;
        }
    }
    return first;
}

void pending_serve(struct control *control) {
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        struct caller *caller = &control->callers[i];
        if (caller->state == CALLER_PENDING && has_server(control, caller->uid)) {
            server_serve(control, &control->servers[0], caller);
        }
    }
    struct server *server = &control->servers[0];
    const struct caller *first = first_pending(control);
    bool wanted = control->wanted != NO_USER || first != NULL;
    uid_t user = control->wanted != NO_USER ? control->wanted : first != NULL ? user_of(control, first->uid) : NO_USER;
    if (server->pid == 0 && wanted && !control->quitting) {
        control->wanted = NO_USER;
        server->spaces[0].settings = control->defaults;
        server_start(control, server, user);
    } else if (server->pid != 0 && server->uid == control->wanted && !server->leaving) {
        control->wanted = NO_USER;
    } else if (server->pid != 0 && server->ready && server_clients(control, server, NULL) == 0 && (wanted || control->quitting)) {
        server_end(server, false); /* of another user, or the last one */
    }
}

void pending_fail(struct control *control, const struct server *server) {
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        struct caller *caller = &control->callers[i];
        bool its_own = control->protocol == 3 ? &control->servers[caller->server] == server
                                              : user_of(control, caller->uid) == server->uid;
        if (caller->state == CALLER_PENDING && its_own) {
            pending_refuse(caller, MPS_CONNECTION_FAILED);
        }
    }
}
