/* nvidia-cuda-mps-control of a simulated machine: the daemon of MPS with -d or -f, else the terminal that commands it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver_release.h"
#include "mps/mps_log.h"
#include "mps/mps_version.h"
#include "mps_control/control.h"

static struct control control;

static void detach(void) {
    setsid();
    int nowhere = open("/dev/null", O_RDWR);
    for (int standard = 0; standard <= 2 && nowhere >= 0; standard++) {
        dup2(nowhere, standard);
    }
    if (nowhere > 2) {
        close(nowhere);
    }
    if (chdir("/") != 0) {
        return; /* the daemon then keeps the folder that it was started in */
    }
}

static void become_daemon(void) {
    mps_log_open("Control", folder_log("control.log"), control.foreground);
    if (!folder_open(&control)) {
        exit(1);
    }
    const char *path = trancheSimDefaultStatePath();
    if (path == NULL || trancheSimOpen(path, &control.m) != NVML_SUCCESS) {
        control.m = NULL;
    }
    mps_settings_from_environment(&control.defaults);
    control.defaults.partitions = control.partitions;
    if (!mps_has_limits(control.m)) {
        control.defaults.count = 0;
    }
    control.wanted = NO_USER;
}

/* The caller comes back when the socket is there, or will not be: what went wrong with it, nobody is told. */
static int start_in_background(void) {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) {
        return 1;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        return 1;
    }
    if (child > 0) {
        char nothing;
        close(ready[1]);
        ssize_t end = read(ready[0], &nothing, 1);
        return end < 0;
    }
    close(ready[0]);
    detach();
    become_daemon();
    close(ready[1]);
    daemon_run(&control);
    return 0;
}

static int start(bool background) {
    if (control.multiuser && geteuid() != 0) {
        puts("The multi-user server can be started by root only");
        return 1;
    }
    if (!folder_take()) {
        return 1;
    }
    if (background) {
        return start_in_background();
    }
    control.foreground = true;
    become_daemon();
    daemon_run(&control);
    return 0;
}

int main(int argc, char **argv) {
    bool background = false, daemon = false;
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) {
        const char *flag = argv[at];
        if (strcmp(flag, "-d") == 0 || strcmp(flag, "-f") == 0) {
            daemon = true;
            background = background || flag[1] == 'd';
        } else if (strcmp(flag, "-S") == 0 || strcmp(flag, "--static-partitioning") == 0) {
            control.partitions = true;
        } else if (strcmp(flag, "-multiuser-server") == 0) {
            control.multiuser = true;
        } else if (strcmp(flag, "-v") == 0) {
            printf("Binary version: %d\n", driver_cuda(NULL));
            return 0;
        } else {
            printf("Unknown option: %s\n", flag);
            return 1;
        }
    }
    return daemon ? start(background) : terminal_run(argc - at, argv + at);
}
