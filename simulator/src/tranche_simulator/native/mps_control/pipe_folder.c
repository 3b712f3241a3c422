#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mps/mps_log.h"
#include "mps_control/control.h"

/* Held by the daemon for as long as it lives, so that a killed daemon's folder can be taken over at once. */
static int lock = -1;

static bool folder_path(char *path, const char *folder, const char *name) {
    int length = snprintf(path, MPS_PATH_SIZE, "%s/%s", folder, name);
    return length > 0 && length < MPS_PATH_SIZE;
}

static bool make_folder(const char *folder) {
    if (mkdir(folder, 0755) == 0 || errno == EEXIST) {
        return true;
    }
    printf("Failed to create the directory %s: %s\n", folder, strerror(errno));
    return false;
}

bool folder_take(void) {
    char path[MPS_PATH_SIZE];
    if (!make_folder(mps_pipe_directory()) || !make_folder(mps_log_directory()) ||
        !folder_path(path, mps_pipe_directory(), "control_lock")) {
        return false;
    }
    lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0) {
        printf("Failed to open %s: %s\n", path, strerror(errno));
        return false;
    }
    if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        puts("An instance of this daemon is already running");
        return false;
    }
    return true;
}

int folder_log(const char *server, const char *name) {
    char path[MPS_PATH_SIZE], folder[MPS_PATH_SIZE];
    if (server[0] == '\0') {
        snprintf(folder, sizeof folder, "%s", mps_log_directory());
    } else if (!folder_path(folder, mps_log_directory(), server) || !make_folder(folder)) {
        return -1;
    }
    return folder_path(path, folder, name) ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
}

static void write_pid(void) {
    char path[MPS_PATH_SIZE];
    if (!folder_path(path, mps_pipe_directory(), "nvidia-cuda-mps-control.pid")) {
        return;
    }
    FILE *file = fopen(path, "we");
    if (file != NULL) {
        fprintf(file, "%d\n", (int)getpid());
        fclose(file);
    }
}

bool folder_open(struct control *control) {
    char path[MPS_PATH_SIZE];
    control->listener = mps_listen(mps_pipe_directory());
    if (control->listener < 0) {
        return false;
    }
    write_pid();
    if (folder_path(path, mps_pipe_directory(), "log")) {
        mkfifo(path, 0600); /* there already, after a daemon that was killed */
    }
    mps_log("Starting control daemon using socket %s/control", mps_pipe_directory());
    mps_log("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", mps_pipe_directory());
    return true;
}

void folder_leave(const struct control *control) {
    static const char *const names[] = {"control", "nvidia-cuda-mps-control.pid", "log"};
    close(control->listener);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[MPS_PATH_SIZE];
        if (folder_path(path, mps_pipe_directory(), names[i])) {
            unlink(path);
        }
    }
}

bool folder_of_space(const struct server *server, const struct space *space, char *path) {
    char folder[MPS_PATH_SIZE];
    return space == server->spaces ? folder_path(path, mps_pipe_directory(), server->name)
                                   : folder_path(folder, mps_pipe_directory(), server->name) &&
                                         folder_path(path, folder, space->name);
}

int folder_open_space(const struct server *server, const struct space *space) {
    char path[MPS_PATH_SIZE];
    return folder_of_space(server, space, path) && make_folder(path) ? mps_listen(path) : -1;
}

void folder_leave_space(const struct server *server, struct space *space) {
    char path[MPS_PATH_SIZE], socket[MPS_PATH_SIZE];
    close(space->listener);
    if (folder_of_space(server, space, path) && folder_path(socket, path, "control")) {
        unlink(socket);
        rmdir(path);
    }
    memset(space, 0, sizeof *space);
}
