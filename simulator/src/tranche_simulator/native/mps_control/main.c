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
    mps_log_open("Control", folder_log("", "control.log"), control.foreground);
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

/* The caller returns once the socket exists, or certainly never will; the reason for a failure is not reported. */
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
    if (control.protocol == 3) {
        printf("To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY=%s\n", mps_pipe_directory());
    }
    if (background) {
        return start_in_background();
    }
    control.foreground = true;
    become_daemon();
    daemon_run(&control);
    return 0;
}

static bool is_flag(const char *word, const char *brief, const char *full) {
    return strcmp(word, brief) == 0 || (full != NULL && strcmp(word, full) == 0);
}

/* Flags that came with version 3, which a release before it does not know. */
static bool take_new_flag(int argc, char **argv, int *at, bool *quits) {
    const char *flag = argv[*at];
    if (is_flag(flag, "-p", "--protocol") && *at + 1 < argc) {
        control.protocol = atoi(argv[++*at]);
    } else if (is_flag(flag, "-m", "--multiuser")) {
        control.multiuser = true;
    } else if (is_flag(flag, "-q", "--quit")) {
        *quits = true;
    } else {
        return false;
    }
    return true;
}

/* The variable beats the flag. False: no such version. */
static bool settle_protocol(bool knows_three) {
    const char *wanted = getenv("CUDA_MPS_PROTOCOL_VERSION");
    control.protocol = wanted != NULL && wanted[0] != '\0' ? atoi(wanted) : control.protocol;
    if (!knows_three) {
        control.protocol = 2;
    }
    if (control.protocol == 3 && geteuid() == 0) {
        setenv("CUDA_MPS_PIPE_DIRECTORY", MPS_ROOT_FOLDER, 0);
    }
    return control.protocol == 2 || control.protocol == 3;
}

int main(int argc, char **argv) {
    bool background = false, daemon = false, quits = false, knows_three = mps_has_version_3(NULL);
    int at = 1;
    control.protocol = 2;
    for (; at < argc && argv[at][0] == '-'; at++) {
        const char *flag = argv[at];
        if (is_flag(flag, "-d", knows_three ? "--daemon" : NULL) || is_flag(flag, "-f", knows_three ? "--foreground" : NULL)) {
            daemon = true;
            background = background || strchr(flag, 'd') == flag + strspn(flag, "-");
        } else if (is_flag(flag, "-S", "--static-partitioning")) {
            control.partitions = true;
        } else if (strcmp(flag, "-multiuser-server") == 0) {
            control.multiuser = true;
        } else if (is_flag(flag, "-v", knows_three ? "--version" : NULL)) {
            printf("Binary version: %d\n", driver_cuda(NULL));
            return 0;
        } else if (!knows_three || !take_new_flag(argc, argv, &at, &quits)) {
            printf("Unknown option: %s\n", flag);
            return 1;
        }
    }
    if (daemon && !settle_protocol(knows_three)) {
        puts("The protocol is 2 or 3");
        return 1;
    }
    char *quit[] = {(char *)"quit"};
    return daemon ? start(background) : quits ? terminal_run(1, quit) : terminal_run(argc - at, argv + at);
}
