#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "mps/mps_log.h"
#include "mps_control/control.h"

enum { SERVER_CHANNEL = 3, SERVER_LOG = 4 };

bool server_may_be_of(const struct control *control, uid_t uid) {
    return control->multiuser || geteuid() == 0 || geteuid() == uid;
}

unsigned int server_clients(const struct control *control, const struct server *server, const struct space *space) {
    unsigned int count = 0;
    for (unsigned int i = 0; i < CONTROL_MAX_SERVED; i++) {
        const struct served *served = &control->served[i];
        bool here = served->number != 0 && &control->servers[served->server] == server;
        count += here && (space == NULL || &server->spaces[served->space] == space) ? 1 : 0;
    }
    return count;
}

bool servers_are_gone(const struct control *control) {
    for (unsigned int i = 0; i < CONTROL_MAX_SERVERS; i++) {
        if (control->servers[i].pid != 0) {
            return false;
        }
    }
    return true;
}

/* Beside this program, resolved through links. */
static void server_program(char path[PATH_MAX + 32]) {
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
    path[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(path, '/');
    strcpy(slash != NULL ? slash + 1 : path, "nvidia-cuda-mps-server");
}

/* In the child: never returns. */
static void become_server(const struct control *control, const struct server *server, uid_t uid, int channel, int log) {
    char path[PATH_MAX + 32];
    server_program(path);
    int program = open(path, O_RDONLY | O_CLOEXEC); /* the user may not reach it by its path */
    if (geteuid() == 0 && uid != 0 && (setgroups(0, NULL) != 0 || setuid(uid) != 0)) {
        _exit(1);
    }
    if (server->allowed[0] != '\0') {
        setenv("CUDA_VISIBLE_DEVICES", server->allowed, 1);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* Each may already be numbered 3 or 4, so they go out of the way first. */
    int far_program = fcntl(program, F_DUPFD_CLOEXEC, SERVER_LOG + 1);
    int far_channel = fcntl(channel, F_DUPFD_CLOEXEC, SERVER_LOG + 1);
    int far_log = fcntl(log, F_DUPFD_CLOEXEC, SERVER_LOG + 1);
    dup2(far_channel, SERVER_CHANNEL);
    dup2(far_log, SERVER_LOG);
    char *arguments[] = {(char *)"nvidia-cuda-mps-server", control->foreground ? (char *)"-foreground" : NULL, NULL};
    fexecve(far_program, arguments, environ);
    _exit(1);
}

bool server_start(struct control *control, struct server *server, uid_t uid) {
    int ends[2];
    int log = folder_log(server->name, "server.log");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return false;
    }
    pid_t pid = fork();
    if (pid == 0) {
        become_server(control, server, uid, ends[1], log);
    }
    close(ends[1]);
    if (log >= 0) {
        close(log);
    }
    if (pid < 0) {
        close(ends[0]);
        return false;
    }
    mps_log("Starting new server %d for user %u", (int)pid, (unsigned int)uid);
    server->pid = pid;
    server->uid = uid;
    server->channel = ends[0];
    server_tell(server);
    return true;
}

void server_tell(const struct server *server) {
    struct mps_order order = {.kind = MPS_ORDER_SETTINGS, .settings = server->spaces[0].settings};
    mps_send(server->channel, &order, sizeof order);
}

void server_end(struct server *server, bool terminates) {
    struct mps_order order = {.kind = MPS_ORDER_QUIT, .number = terminates};
    if (server->pid == 0 || server->leaving) {
        return;
    }
    server->leaving = true;
    if (!mps_send(server->channel, &order, sizeof order)) {
        kill(server->pid, SIGKILL);
    }
}

void servers_end(struct control *control) {
    for (unsigned int i = 0; i < CONTROL_MAX_SERVERS; i++) {
        server_end(&control->servers[i], false);
    }
}

static struct served *served_place(struct control *control, uint32_t number) {
    for (unsigned int i = 0; i < CONTROL_MAX_SERVED; i++) {
        if (control->served[i].number == number) {
            return &control->served[i];
        }
    }
    return NULL;
}

void server_serve(struct control *control, struct server *server, struct caller *caller) {
    struct mps_order order = {
        .kind = MPS_ORDER_CLIENT, .number = caller->arrival, .pid = (uint32_t)caller->pid, .uid = caller->uid};
    order.hello = caller->hello;
    order.settings = server->spaces[caller->space].settings;
    struct served *place = served_place(control, 0);
    if (place == NULL || !mps_send_with(server->channel, &order, sizeof order, caller->connection)) {
        pending_refuse(caller, MPS_CONNECTION_FAILED);
        return;
    }
    *place = (struct served){
        .number = caller->arrival,
        .pid = caller->pid,
        .linux_namespace = caller->hello.namespace,
        .server = (unsigned int)(server - control->servers),
        .space = caller->space,
    };
    memcpy(place->command, caller->hello.command, sizeof place->command);
    caller_close(caller); /* the server has its own copy of the connection */
}

static void answer_query(struct control *control, uint32_t query, const char *text) {
    for (unsigned int i = 0; i < CONTROL_MAX_CALLERS; i++) {
        struct caller *caller = &control->callers[i];
        if (caller->state == CALLER_ASKING && caller->query != 0 && (query == 0 || caller->query == query)) {
            caller_answer(caller, text);
        }
    }
}

void server_heard(struct control *control, struct server *server) {
    static struct mps_order order;
    int descriptor;
    if (mps_receive(server->channel, &order, sizeof order, &descriptor) <= 0) {
        close(server->channel); /* SIGCHLD reports its end */
        server->channel = -1;
        return;
    }
    switch (order.kind) {
    case MPS_ORDER_READY:
        mps_log("NEW SERVER %d: Ready", (int)server->pid);
        server->ready = true;
        server->status = MPS_ACTIVE;
        break;
    case MPS_ORDER_LEFT: {
        struct served *served = served_place(control, order.number);
        if (served != NULL) {
            served->number = 0;
        }
        break;
    }
    case MPS_ORDER_STATUS:
        server->status = (enum mps_status)order.number;
        break;
    case MPS_ORDER_ANSWER:
        answer_query(control, order.number, order.text);
        break;
    default:
        break;
    }
}

void server_gone(struct control *control, struct server *server, int status) {
    mps_log("Server %d exited with status %d", (int)server->pid, WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    if (!server->ready) {
        pending_fail(control, server);
    }
    if (server->channel >= 0) {
        close(server->channel);
    }
    for (unsigned int i = 0; i < CONTROL_MAX_SERVED; i++) {
        if (control->served[i].number != 0 && &control->servers[control->served[i].server] == server) {
            control->served[i].number = 0;
        }
    }
    for (unsigned int i = CONTROL_MAX_SPACES; i-- > 0;) {
        if (server->spaces[i].name[0] != '\0') {
            folder_leave_space(server, &server->spaces[i]);
        }
    }
    memset(server, 0, sizeof *server);
    answer_query(control, 0, "");
}
