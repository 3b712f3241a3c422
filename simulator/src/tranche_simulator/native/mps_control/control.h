/* The control daemon of MPS: who calls, which servers there are, and what the next ones will be told. One thread, one loop. */
#ifndef TRANCHE_MPS_CONTROL_H
#define TRANCHE_MPS_CONTROL_H

#include <sys/types.h>

#include "mps/mps_wire.h"
#include "state.h"

#define CONTROL_MAX_CALLERS 512u
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
    uint64_t arrival;
    uint32_t query; /* the number of the query it waits for */
    struct mps_hello hello;
};

/* At most one lives: servers of two users never run at once. */
struct server {
    pid_t pid; /* 0: there is none */
    uid_t uid;
    int channel;
    bool ready;
    bool leaving;
    enum mps_status status;
    uint32_t handed; /* clients given to it */
    uint32_t gone;   /* those that have left it */
    struct mps_settings settings;
};

struct control {
    machine *m; /* NULL: there is no driver, and no server will start */
    int listener;
    int signals;
    bool foreground;
    bool multiuser;
    bool partitions; /* -S */
    struct mps_settings defaults;
    struct server server;
    struct caller callers[CONTROL_MAX_CALLERS];
    uint64_t arrivals;
    uint32_t queries;
    uid_t wanted; /* start_server has asked for a server of this user; NO_USER: nobody has */
    bool quitting;
    double quit_at; /* seconds of CLOCK_MONOTONIC after which servers are ended; 0: they may take their time */
};

/* pipe_folder.c: the daemon's files. False after saying why on stdout: another daemon is there, or a folder cannot be written. */
bool folder_take(void);
/* The daemon itself, after it has gone into the background. False: the socket cannot be made. */
bool folder_open(struct control *control);
void folder_leave(const struct control *control);
int folder_log(const char *name);

/* daemon.c: returns when the daemon has ended. */
void daemon_run(struct control *control);
double daemon_now(void);

/* servers.c */
bool server_may_be_of(const struct control *control, uid_t uid);
void server_start(struct control *control, uid_t uid);
void server_tell(struct control *control);
void server_end(struct control *control);
void server_heard(struct control *control);
/* Its process has ended, or is about to. */
void server_gone(struct control *control, int status);
uint32_t server_clients(const struct server *server);

/* pending.c: serves whom it can; starts, replaces and ends servers for that. */
void pending_add(struct control *control, struct caller *caller);
void pending_serve(struct control *control);
/* Clients whose server could not be started. */
void pending_fail(struct control *control);

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
void command_ask(struct command *command, const char *text);
/* setting_commands.c: whether the name is one of them. */
bool setting_command(struct command *command, const char *name);

/* callers.c */
struct caller *caller_accept(struct control *control);
void caller_close(struct caller *caller);
void caller_heard(struct control *control, struct caller *caller);
void caller_answer(struct caller *caller, const char *text);

/* terminal.c: this program without flags. The exit code. */
int terminal_run(int count, char **words);

#endif
