/* Version 3 of the commands: `MODULE VERB words --key=value --flag`. */
#ifndef TRANCHE_MPS_V3_H
#define TRANCHE_MPS_V3_H

#include "mps_control/control.h"

enum { V3_MAX_ROWS = 512, V3_CELL = 1100, V3_MAX_COLUMNS = 8 };

void v3_command(struct command *command, const char *module);

/* The value of --key=value or key=value; NULL where it is not given. */
const char *v3_option(const struct command *command, const char *key);
bool v3_flag(const struct command *command, const char *flag);
/* The word at that place among those that are neither; NULL past the last. */
const char *v3_word(const struct command *command, unsigned int at);
/* Lowercase letters, digits and underscores; NULL is none. Says what is wrong with any other. */
bool v3_name(struct command *command, const char *name);
/* NULL after saying that there is none. */
struct server *v3_server(struct command *command, const char *name);
struct space *v3_space(struct command *command, struct server *server, const char *name);
/* Whether the caller may change the server; says so if not, in the words of the `verb` ("NAMESPACE SET"). */
bool v3_may_change(struct command *command, const struct server *server, const char *verb);
/* Sets what the options say; false after saying what is wrong with one, or that there is none. */
bool v3_set_limits(struct command *command, struct mps_settings *settings);
/* "4G", "-" */
void v3_limit_text(const struct mps_settings *settings, char *text, size_t size);

/* A row for each line of a listing, as a table or, with --format=csv, with commas; `noheader` leaves the columns' names out. */
void v3_heading(struct command *command, const char *const *columns, unsigned int count);
void v3_row(struct command *command, char cells[][V3_CELL], unsigned int count);

/* The cell of the column that `field` names; says so when none has that name. */
void v3_say_field(struct command *command, const char *const *columns, char cells[][V3_CELL], unsigned int count, const char *field);

struct v3_verb {
    const char *name;
    void (*run)(struct command *command);
};
/* Runs the verb of that name; false when there is none. */
bool v3_run(struct command *command, const struct v3_verb *verbs, size_t count, const char *name);

/* v3_servers.c, v3_spaces.c, v3_clients.c: whether the module has the verb. */
bool v3_servers(struct command *command, const char *verb);
bool v3_spaces(struct command *command, const char *verb);
bool v3_clients(struct command *command, const char *verb);
/* A new server with its default namespace and its process; NULL when there is no room or no process. */
struct server *v3_create(struct control *control, const char *name, uid_t uid, const char *allowed);

#endif
