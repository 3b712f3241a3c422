#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mps/mps_log.h"
#include "mps_control/control.h"

enum {
    LISTENER = 0,
    SIGNALS = 1,
    CHANNELS = 2,
    SPACES = CHANNELS + CONTROL_MAX_SERVERS,
    CALLERS = SPACES + CONTROL_MAX_SERVERS * CONTROL_MAX_SPACES,
    POLLED = CALLERS + CONTROL_MAX_CALLERS
};

double daemon_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int open_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* True if the daemon itself should end. */
static bool take_signals(struct control *control) {
    bool ended = false;
    struct signalfd_siginfo signal;
    while (read(control->signals, &signal, sizeof signal) == (ssize_t)sizeof signal) {
        ended = ended || signal.ssi_signo != SIGCHLD;
    }
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        for (unsigned int i = 0; i < CONTROL_MAX_SERVERS; i++) {
            if (pid == control->servers[i].pid) {
                server_gone(control, &control->servers[i], status);
            }
        }
    }
    return ended;
}

/* How long the loop may sleep, in milliseconds; -1: until something happens. */
static int patience(struct control *control) {
    if (!control->quitting || control->quit_at == 0) {
        return -1;
    }
    double left = control->quit_at - daemon_now();
    if (left > 0) {
        return (int)(left * 1000) + 1;
    }
    control->quit_at = 0;
    servers_end(control);
    return -1;
}

static void gather(const struct control *control, struct pollfd *polled) {
    polled[LISTENER] = (struct pollfd){.fd = control->listener, .events = POLLIN};
    polled[SIGNALS] = (struct pollfd){.fd = control->signals, .events = POLLIN};
    for (unsigned int i = 0; i < CONTROL_MAX_SERVERS; i++) {
        const struct server *server = &control->servers[i];
        polled[CHANNELS + i] = (struct pollfd){.fd = server->pid != 0 ? server->channel : -1, .events = POLLIN};
        for (unsigned int j = 0; j < CONTROL_MAX_SPACES; j++) {
            int listener = server->spaces[j].name[0] != '\0' ? server->spaces[j].listener : -1;
            polled[SPACES + i * CONTROL_MAX_SPACES + j] = (struct pollfd){.fd = listener, .events = POLLIN};
        }
    }
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        const struct caller *caller = &control->callers[i];
        polled[CALLERS + i].fd = caller->state == CALLER_GONE ? -1 : caller->connection;
        /* Who waits is not heard before it has its answer; that it hangs up is seen all the same. */
        polled[CALLERS + i].events = caller->state == CALLER_ASKING ? 0 : POLLIN;
        polled[CALLERS + i].revents = 0;
    }
}

static void hear(struct control *control, const struct pollfd *polled) {
    for (unsigned int i = 0; i < CONTROL_MAX_SERVERS; i++) {
        if (polled[CHANNELS + i].revents != 0) {
            server_heard(control, &control->servers[i]);
        }
    }
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        if (polled[CALLERS + i].revents != 0) {
            caller_heard(control, &control->callers[i]);
        }
    }
    for (unsigned int i = 0; i < CONTROL_MAX_SERVERS * CONTROL_MAX_SPACES; i++) {
        if (polled[SPACES + i].revents != 0) {
            caller_accept(control, polled[SPACES + i].fd, i / CONTROL_MAX_SPACES, i % CONTROL_MAX_SPACES);
        }
    }
    if (polled[LISTENER].revents != 0) {
        caller_accept(control, control->listener, NO_SERVER, 0);
    }
}

void daemon_run(struct control *control) {
    static struct pollfd polled[POLLED];
    control->signals = open_signals();
    while (!control->quitting || !servers_are_gone(control)) {
        int wait = patience(control);
        gather(control, polled);
        if (poll(polled, POLLED, wait) < 0) {
            continue;
        }
        hear(control, polled);
        if (polled[SIGNALS].revents != 0 && take_signals(control)) {
            servers_end(control);
            control->quitting = true;
        }
        if (control->protocol == 3) {
            routing_serve(control);
        } else {
            pending_serve(control);
        }
    }
    folder_leave(control);
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        caller_close(&control->callers[i]);
    }
}
