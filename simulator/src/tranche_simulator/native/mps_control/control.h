/* The control daemon of MPS: its callers, its servers, and the settings for the next ones. One thread, one loop. */
#ifndef TRANCHE_MPS_CONTROL_H
#define TRANCHE_MPS_CONTROL_H

#include <sys/types.h>

#include "mps/mps_wire.h"
#include "state.h"

#define CONTROL_MAX_CALLERS 512u
#define CONTROL_MAX_SERVERS 16u
#define CONTROL_MAX_SPACES 16u
#define CONTROL_MAX_SERVED 1024u
#define CONTROL_NAME_SIZE 65
#define NO_SERVER CONTROL_MAX_SERVERS
#define NO_USER ((uid_t)-1)

enum caller_state {
    CALLER_GONE,     /* this slot is free */
    CALLER_NEW,      /* has not said yet what it is */
    CALLER_TERMINAL, /* gives commands */
    CALLER_ASKING,   /* a terminal whose command a server answers, or whose `quit` is not over */
    CALLER_PENDING,  /* a client that waits for its server */
};

struct caller {
    enum caller_state state;
    int connection;
    pid_t pid; /* 0 in a foreign pid namespace */
    uid_t uid;
    uint32_t arrival;
    uint32_t query; /* the number of the query it waits for */
    unsigned int server; /* version 3: whose socket it came to; NO_SERVER: the daemon's own */
    unsigned int space;
    struct mps_hello hello;
};

/* A namespace of version 3: limits, and a socket to come under them. In version 2 a server has one, without a socket. */
struct space {
    char name[CONTROL_NAME_SIZE];
    int listener;
    struct mps_settings settings;
};

/* A client that a server was given. */
struct served {
    uint32_t number; /* 0: this place is free */
    pid_t pid;
    uint64_t linux_namespace;
    unsigned int server;
    unsigned int space;
    char command[64];
};

/* In version 2 there is the first alone: servers of two users never run at once. */
struct server {
    pid_t pid; /* 0: there is none */
    uid_t uid;
    int channel;
    bool ready;
    bool leaving;
    enum mps_status status;
    char name[CONTROL_NAME_SIZE]; /* in version 3 */
    char allowed[1024];           /* devices, as CUDA_VISIBLE_DEVICES names them; empty: all */
    struct space spaces[CONTROL_MAX_SPACES]; /* the first is `default`; one without a name is free */
};

struct control {
    machine *m; /* NULL: there is no driver, and no server will start */
    int listener;
    int signals;
    int protocol; /* 2 or 3 */
    bool foreground;
    bool multiuser;
    bool partitions; /* -S */
    struct mps_settings defaults;
    struct server servers[CONTROL_MAX_SERVERS];
    struct served served[CONTROL_MAX_SERVED];
    struct caller callers[CONTROL_MAX_CALLERS];
    uint32_t arrivals;
    uint32_t queries;
    uid_t wanted; /* start_server has asked for a server of this user; NO_USER: no request */
    bool quitting;
    double quit_at; /* seconds of CLOCK_MONOTONIC after which servers are ended; 0: they may take their time */
};

/* pipe_folder.c: the daemon's files. False after saying why on stdout: another daemon is there, or a folder cannot be written. */
bool folder_take(void);
/* The daemon itself, after it has gone into the background. False: the socket cannot be made. */
bool folder_open(struct control *control);
void folder_leave(const struct control *control);
/* control.log, or the log of a server, which in version 3 has a folder of its own. */
int folder_log(const char *server, const char *name);
/* The folder of a server's socket, or of a namespace's; in the pipe folder. False: the path is too long. */
bool folder_of_space(const struct server *server, const struct space *space, char *path);
/* Makes it and listens there; -1 when that cannot be done. */
int folder_open_space(const struct server *server, const struct space *space);
void folder_leave_space(const struct server *server, struct space *space);

/* daemon.c: returns when the daemon has ended. */
void daemon_run(struct control *control);
double daemon_now(void);

/* servers.c */
bool server_may_be_of(const struct control *control, uid_t uid);
/* In a place of control->servers that is filled but for what is found out here. */
bool server_start(struct control *control, struct server *server, uid_t uid);
void server_tell(const struct server *server);
/* Its clients are cut off, or terminated before. */
void server_end(struct server *server, bool terminates);
void servers_end(struct control *control);
void server_heard(struct control *control, struct server *server);
/* Its process has ended. */
void server_gone(struct control *control, struct server *server, int status);
/* Gives it a client, which is the caller no longer. */
void server_serve(struct control *control, struct server *server, struct caller *caller);
/* Clients of a server, or of one of its namespaces. */
unsigned int server_clients(const struct control *control, const struct server *server, const struct space *space);
bool servers_are_gone(const struct control *control);

/* pending.c: serves the clients that it can; starts, replaces and ends servers for that. */
void pending_add(struct control *control, struct caller *caller);
void pending_serve(struct control *control);
/* Clients whose server could not be started. */
void pending_fail(struct control *control, const struct server *server);
void pending_refuse(struct caller *caller, int32_t error);

/* v3_routing.c: the same in version 3. */
void routing_add(struct control *control, struct caller *caller);
void routing_serve(struct control *control);

/* commands.c: carries out what a terminal typed, and answers it now or later. */
void command_run(struct control *control, struct caller *caller, char *line);
/* What a command is given: the rest of its line in words. `answer` starts empty. */
struct command {
    struct control *control;
    struct caller *caller;
    unsigned int count;
    char **words;
    char *answer;
};
void command_say(struct command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The server whose pid the word is, else NULL after saying so. */
struct server *command_server(struct command *command, const char *word);
/* The answer comes from the server: the caller waits for it. */
void command_ask(struct command *command, const struct server *server, const char *text);
/* setting_commands.c: whether the name is one of them. */
bool setting_command(struct command *command, const char *name);

/* callers.c */
/* At a socket that listens for that server and namespace. */
void caller_accept(struct control *control, int listener, unsigned int server, unsigned int space);
void caller_close(struct caller *caller);
void caller_heard(struct control *control, struct caller *caller);
void caller_answer(struct caller *caller, const char *text);

/* terminal.c: this program without flags. The exit code. */
int terminal_run(int count, char **words);

#endif
