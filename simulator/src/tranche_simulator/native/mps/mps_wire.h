/* How the three sides of MPS talk: the control daemon, its servers, and the programs that call them. NVIDIA does not publish its
 * protocol; this one is the simulator's own. Every message is one packet of a SOCK_SEQPACKET connection.
 *
 * A caller connects to the socket `control` of the pipe folder and sends a struct mps_hello. A terminal then sends a command in
 * each packet, and gets one packet of text for each. The daemon hands a client's connection over to a server, which answers with a
 * struct mps_grant and a page of memory that both map; afterwards the client sends struct mps_note. A process that dies closes the
 * connection, and the other side sees that. */
#ifndef TRANCHE_MPS_WIRE_H
#define TRANCHE_MPS_WIRE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "mps/mps_settings.h"

#define MPS_PROTOCOL 1u
#define MPS_TEXT_SIZE 16384
#define MPS_PATH_SIZE 4096
#define MPS_MAX_DEVICES 32u
#define MPS_ROOT_FOLDER "/run/nvidia-mps"

/* CUDA's error codes about MPS, and those that it reports in their place. */
enum mps_error {
    MPS_OK = 0,
    MPS_NOT_PERMITTED = 800,
    MPS_CONNECTION_FAILED = 805,
    MPS_RPC_FAILURE = 806,
    MPS_SERVER_NOT_READY = 807,
    MPS_MAX_CLIENTS_REACHED = 808,
    MPS_MAX_CONNECTIONS_REACHED = 809,
    MPS_CLIENT_TERMINATED = 810,
    MPS_INVALID_RESOURCE_CONFIGURATION = 915,
};

enum mps_caller { MPS_TERMINAL = 1, MPS_CLIENT = 2 };

/* The caller. A client follows the rest of its environment's MPS settings itself. */
struct mps_hello {
    uint32_t protocol;
    uint32_t caller;
    uint32_t connections; /* CUDA_DEVICE_MAX_CONNECTIONS; 0: not set */
    uint64_t namespace;   /* inode of its pid namespace */
    char partition[128];  /* CUDA_MPS_SM_PARTITION */
    char command[64];
};

/* A GPU or a MIG device that a server serves. */
struct mps_device {
    char uuid[64];
    uint64_t limit; /* bytes of its memory that a client may take; 0: no limit */
};

/* What a client gets. The page of memory comes with it, unless `error` is set. */
struct mps_grant {
    int32_t error; /* enum mps_error */
    uint32_t server; /* pid */
    uint32_t client; /* the server's number for it */
    double percentage;
    uint32_t priority;
    uint32_t count; /* of devices, as the server numbers them */
    struct mps_device devices[MPS_MAX_DEVICES];
};

/* Shared by a client and its server for as long as one of them lives. */
struct mps_page {
    _Atomic uint32_t error; /* set by the server: what every call of the client returns from now on; 0: nothing */
};

/* What a client tells its server. The server answers MPS_NOTE_CREATE alone, with an int32_t. */
enum mps_note_kind { MPS_NOTE_CREATE = 1, MPS_NOTE_DESTROY = 2, MPS_NOTE_FAULT = 3, MPS_NOTE_BYE = 4 };

struct mps_note {
    uint32_t kind;
    uint32_t device; /* index in the grant */
    uint32_t code;   /* of a fault */
};

/* Between the daemon and a server. */
enum mps_order_kind {
    MPS_ORDER_SETTINGS = 1, /* daemon: what the server was started with, or was told since */
    MPS_ORDER_CLIENT = 2,   /* daemon: serve the client whose connection comes along; `number` is the daemon's for it */
    MPS_ORDER_QUERY = 3,    /* daemon: answer the command in `text` */
    MPS_ORDER_QUIT = 4,     /* daemon: end, clients or not; with a `number` they are terminated first */
    MPS_ORDER_READY = 5,    /* server: clients can come */
    MPS_ORDER_LEFT = 6,     /* server: the client with that `number` has left */
    MPS_ORDER_STATUS = 7,   /* server: `number` is an enum mps_status */
    MPS_ORDER_ANSWER = 8,   /* server: `text` answers the query with this `number` */
};

enum mps_status { MPS_INITIALIZING = 0, MPS_ACTIVE = 1, MPS_FAULT = 2 };

struct mps_order {
    uint32_t kind;
    uint32_t number;
    uint32_t pid; /* of the client, as the daemon sees it; 0 in a foreign pid namespace */
    uint32_t uid;
    struct mps_settings settings; /* a client's come with it */
    struct mps_hello hello;
    char text[MPS_TEXT_SIZE];
};

/* CUDA_MPS_PIPE_DIRECTORY or its default; likewise the folder of the logs. */
const char *mps_pipe_directory(void);
const char *mps_log_directory(void);

/* The address of a daemon's socket in a folder; false when its path is too long. */
struct sockaddr_un;
bool mps_address(const char *folder, struct sockaddr_un *address);
/* A connection to the daemon of the pipe folder; -1 if there is no listener, or the path is too long for a socket. */
int mps_connect(void);
/* The daemon's own end of the socket in a folder. */
int mps_listen(const char *folder);

bool mps_send(int connection, const void *message, size_t size);
/* With a descriptor. The other side gets a copy of it. */
bool mps_send_with(int connection, const void *message, size_t size, int descriptor);
/* The size of the message, which fills the rest of `message` with zeros; 0 at the end of the connection, -1 for an error. What
 * came along is in `descriptor`, else -1. */
ssize_t mps_receive(int connection, void *message, size_t size, int *descriptor);

#endif
