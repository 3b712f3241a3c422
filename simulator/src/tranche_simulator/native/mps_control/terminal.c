#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mps_control/control.h"

/* False when the daemon has ended. */
static bool carry_out(int connection, const char *line) {
    static char answer[MPS_TEXT_SIZE + 1];
    int descriptor;
    if (!mps_send(connection, line, strlen(line) + 1)) {
        return false;
    }
    if (mps_receive(connection, answer, MPS_TEXT_SIZE, &descriptor) <= 0) {
        return false;
    }
    fputs(answer, stdout);
    fflush(stdout);
    return true;
}

static void carry_out_words(int connection, int count, char **words) {
    char line[MPS_TEXT_SIZE] = "";
    for (int i = 0; i < count; i++) {
        size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, "%s%s", i > 0 ? " " : "", words[i]);
    }
    carry_out(connection, line);
}

static void carry_out_input(int connection) {
    char *line = NULL;
    size_t room = 0;
    bool connected = true;
    while (connected && getline(&line, &room, stdin) > 0) {
        line[strcspn(line, "\n")] = '\0';
        if (line[strspn(line, " \t\r")] != '\0' && strlen(line) < MPS_TEXT_SIZE - 1) {
            connected = carry_out(connection, line);
        }
    }
    free(line);
}

int terminal_run(int count, char **words) {
    struct mps_hello hello = {.protocol = MPS_PROTOCOL, .caller = MPS_TERMINAL};
    int connection = mps_connect();
    if (connection < 0 || !mps_send(connection, &hello, sizeof hello)) {
        puts("Cannot find MPS control daemon process");
        return 1;
    }
    if (count > 0) {
        carry_out_words(connection, count, words);
    } else {
        carry_out_input(connection);
    }
    close(connection);
    return 0; /* regardless of the daemon's answer */
}
