#include <string.h>

#include "mps/mps_log.h"
#include "mps_control/control.h"

static uid_t user_of(const struct control *control, uid_t uid) { return control->multiuser ? 0 : uid; }

static void refuse(struct caller *caller, int32_t error) {
    struct mps_grant grant = {.error = error};
    mps_send(caller->connection, &grant, sizeof grant);
    caller_close(caller);
}

static bool has_server(const struct control *control, uid_t uid) {
    const struct server *server = &control->server;
    return server->pid != 0 && server->ready && !server->leaving && server->uid == user_of(control, uid);
}

void pending_add(struct control *control, struct caller *caller) {
    if (control->quitting) {
        refuse(caller, MPS_SERVER_NOT_READY);
    } else if (!server_may_be_of(control, user_of(control, caller->uid))) {
        refuse(caller, MPS_NOT_PERMITTED);
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

static void hand_over(struct control *control, struct caller *caller) {
    struct mps_order order = {.kind = MPS_ORDER_CLIENT, .pid = (uint32_t)caller->pid, .uid = caller->uid};
    order.hello = caller->hello;
    if (mps_send_with(control->server.channel, &order, sizeof order, caller->connection)) {
        control->server.handed++;
        caller_close(caller); /* the server has its own copy of the connection */
    } else {
        refuse(caller, MPS_CONNECTION_FAILED);
    }
}

void pending_serve(struct control *control) {
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        struct caller *caller = &control->callers[i];
        if (caller->state == CALLER_PENDING && has_server(control, caller->uid)) {
            hand_over(control, caller);
        }
    }
    const struct server *server = &control->server;
    const struct caller *first = first_pending(control);
    bool wanted = control->wanted != NO_USER || first != NULL;
    uid_t user = control->wanted != NO_USER ? control->wanted : first != NULL ? user_of(control, first->uid) : NO_USER;
    if (server->pid == 0 && wanted && !control->quitting) {
        control->wanted = NO_USER;
        server_start(control, user);
    } else if (server->pid != 0 && server->uid == control->wanted && !server->leaving) {
        control->wanted = NO_USER;
    } else if (server->pid != 0 && server->ready && server_clients(server) == 0 && (wanted || control->quitting)) {
        server_end(control); /* of another user, or the last one */
    }
}

void pending_fail(struct control *control) {
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        struct caller *caller = &control->callers[i];
        if (caller->state == CALLER_PENDING && user_of(control, caller->uid) == control->server.uid) {
            refuse(caller, MPS_CONNECTION_FAILED);
        }
    }
}
