#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mps/mps_log.h"
#include "mps_control/control.h"

static struct caller *free_slot(struct control *control) {
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        if (control->callers[i].state == CALLER_GONE) {
            return &control->callers[i];
        }
    }
    return NULL;
}

void caller_accept(struct control *control, int listener, unsigned int server, unsigned int space) {
    int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0) {
        return;
    }
    mps_log("Accepting connection...");
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct caller *caller = free_slot(control);
    if (caller == NULL || getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        mps_log("User did not send valid credentials");
        close(connection);
        return;
    }
    memset(caller, 0, sizeof *caller);
    caller->state = CALLER_NEW;
    caller->connection = connection;
    caller->pid = peer.pid;
    caller->uid = peer.uid;
    caller->arrival = ++control->arrivals;
    caller->server = server;
    caller->space = space;
}

void caller_close(struct caller *caller) {
    if (caller->state == CALLER_TERMINAL || caller->state == CALLER_ASKING) {
        mps_log("UI closed");
    }
    if (caller->state != CALLER_GONE) {
        close(caller->connection);
        caller->state = CALLER_GONE;
    }
}

void caller_answer(struct caller *caller, const char *text) {
    caller->state = CALLER_TERMINAL;
    mps_send(caller->connection, text, strlen(text) + 1);
}

static void introduce(struct control *control, struct caller *caller, ssize_t length) {
    if (length != (ssize_t)sizeof caller->hello || caller->hello.protocol != MPS_PROTOCOL) {
        mps_log("User did not send valid credentials");
        caller_close(caller);
    } else if (caller->hello.caller == MPS_TERMINAL) {
        mps_log("NEW UI");
        caller->state = CALLER_TERMINAL;
    } else if (control->protocol == 3) {
        routing_add(control, caller);
    } else {
        pending_add(control, caller);
    }
}

void caller_heard(struct control *control, struct caller *caller) {
    int descriptor;
    if (caller->state == CALLER_NEW) {
        introduce(control, caller, mps_receive(caller->connection, &caller->hello, sizeof caller->hello, &descriptor));
        return;
    }
    char line[MPS_TEXT_SIZE];
    ssize_t length = mps_receive(caller->connection, line, sizeof line - 1, &descriptor);
    if (length <= 0 || caller->state != CALLER_TERMINAL) {
        caller_close(caller); /* hung up; a client says nothing before it is served */
    } else {
        command_run(control, caller, line);
    }
}
