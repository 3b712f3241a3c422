#define _GNU_SOURCE
#include "mps/mps_wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 128 };

static const char *folder_named(const char *variable, const char *otherwise) {
    const char *folder = getenv(variable);
    return folder != NULL && folder[0] != '\0' ? folder : otherwise;
}

/* A daemon of root's in version 3 has another folder unless told otherwise; programs find either. */
const char *mps_pipe_directory(void) {
    bool new_one = access(MPS_ROOT_FOLDER "/control", F_OK) == 0;
    return folder_named("CUDA_MPS_PIPE_DIRECTORY", new_one ? MPS_ROOT_FOLDER : "/tmp/nvidia-mps");
}

const char *mps_log_directory(void) { return folder_named("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"); }

bool mps_address(const char *folder, struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int length = snprintf(address->sun_path, sizeof address->sun_path, "%s/control", folder);
    return length > 0 && (size_t)length < sizeof address->sun_path;
}

int mps_connect(void) {
    struct sockaddr_un address;
    if (!mps_address(mps_pipe_directory(), &address)) {
        return -1;
    }
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection >= 0 && connect(connection, (struct sockaddr *)&address, sizeof address) != 0) {
        close(connection);
        connection = -1;
    }
    return connection;
}

int mps_listen(const char *folder) {
    struct sockaddr_un address;
    if (!mps_address(folder, &address)) {
        return -1;
    }
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0) {
        return -1;
    }
    unlink(address.sun_path); /* a daemon that was killed left its own */
    /* Programs of every account may connect; the daemon knows their accounts. */
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || chmod(address.sun_path, 0666) != 0 ||
        listen(listener, BACKLOG) != 0) {
        close(listener);
        return -1;
    }
    return listener;
}

bool mps_send_with(int connection, const void *message, size_t size, int descriptor) {
    struct iovec part = {.iov_base = (void *)message, .iov_len = size};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    memset(&control, 0, sizeof control);
    if (descriptor >= 0) {
        header.msg_control = control.space;
        header.msg_controllen = sizeof control.space;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    }
    ssize_t sent;
    do {
        sent = sendmsg(connection, &header, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)size;
}

bool mps_send(int connection, const void *message, size_t size) {
    return mps_send_with(connection, message, size, -1);
}

ssize_t mps_receive(int connection, void *message, size_t size, int *descriptor) {
    memset(message, 0, size);
    *descriptor = -1;
    struct iovec part = {.iov_base = message, .iov_len = size};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    ssize_t length;
    do {
        length = recvmsg(connection, &header, MSG_CMSG_CLOEXEC);
    } while (length < 0 && errno == EINTR);
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&header); length >= 0 && each != NULL; each = CMSG_NXTHDR(&header, each)) {
        if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SCM_RIGHTS) {
            memcpy(descriptor, CMSG_DATA(each), sizeof *descriptor);
        }
    }
    return length;
}
