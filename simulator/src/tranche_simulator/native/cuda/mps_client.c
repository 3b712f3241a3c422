#define _GNU_SOURCE
#include "mps_client.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "mps/mps_version.h"
#include "mps/mps_wire.h"

struct mps_session {
    int connection;
    struct mps_page *page;
    struct mps_grant grant;
    double percentage; /* 0 before the first context; fixed from then on */
};

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* Without this a child would keep the connection of a parent that has died. */
static void leave_in_child(void) {
    if (driver.mps != NULL) {
        close(driver.mps->connection);
        driver.mps->connection = -1;
    }
}

static void register_fork_handler(void) { pthread_atfork(NULL, NULL, leave_in_child); }

static void introduce(struct mps_hello *hello) {
    *hello = (struct mps_hello){.protocol = MPS_PROTOCOL, .caller = MPS_CLIENT};
    struct stat namespace;
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const char *partition = getenv("CUDA_MPS_SM_PARTITION");
    hello->connections = connections != NULL ? (uint32_t)strtoul(connections, NULL, 10) : 0;
    hello->namespace = stat("/proc/self/ns/pid", &namespace) == 0 ? namespace.st_ino : 0;
    snprintf(hello->partition, sizeof hello->partition, "%s", partition != NULL ? partition : "");
    snprintf(hello->command, sizeof hello->command, "%s", program_invocation_name);
}

/* Waits for the server, which may have to be started, or to be free of another user's clients. */
static CUresult negotiate(struct mps_session *session) {
    struct mps_hello hello;
    int shared;
    introduce(&hello);
    bool sent = mps_send(session->connection, &hello, sizeof hello);
    if (!sent || mps_receive(session->connection, &session->grant, sizeof session->grant, &shared) <= 0) {
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    }
    void *page = shared >= 0 ? mmap(NULL, sizeof *session->page, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0) : MAP_FAILED;
    if (shared >= 0) {
        close(shared);
    }
    session->page = page;
    return page != MAP_FAILED ? CUDA_SUCCESS
           : session->grant.error != MPS_OK ? (CUresult)session->grant.error
                                            : CUDA_ERROR_MPS_CONNECTION_FAILED;
}

CUresult mps_join(machine *m, struct mps_session **session) {
    (void)m;
    *session = NULL;
    int connection = mps_connect();
    if (connection < 0) {
        return CUDA_SUCCESS; /* the process goes on without MPS, silently */
    }
    struct mps_session *joined = calloc(1, sizeof *joined);
    if (joined == NULL) {
        close(connection);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    joined->connection = connection;
    CUresult result = negotiate(joined);
    if (result != CUDA_SUCCESS) {
        close(connection);
        free(joined);
        return result;
    }
    pthread_once(&fork_once, register_fork_handler);
    *session = joined;
    return CUDA_SUCCESS;
}

/* The server's number of a device; its count of devices if it has none of that UUID. */
static uint32_t number_of(const struct mps_session *session, const char *uuid) {
    uint32_t number = 0;
    while (number < session->grant.count && strcmp(session->grant.devices[number].uuid, uuid) != 0) {
        number++;
    }
    return number;
}

bool mps_shows(const struct mps_session *session, const char *uuid) {
    return session == NULL || number_of(session, uuid) < session->grant.count;
}

/* The device that a key of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT names: an ordinal of this process, or the beginning of a UUID. */
static const struct cuda_device *device_of_key(const char *key) {
    char *end;
    unsigned long ordinal = strtoul(key, &end, 10);
    if (end != key) {
        return *end == '\0' && ordinal < driver.device_count ? &driver.devices[ordinal] : NULL;
    }
    for (unsigned int i = 0; i < driver.device_count && strlen(key) > 4; i++) {
        if (strncasecmp(driver.devices[i].uuid, key, strlen(key)) == 0) {
            return &driver.devices[i];
        }
    }
    return NULL;
}

/* An ordinal always counts; a UUID in later drivers, and only a GPU's. */
static bool key_counts(const char *key) {
    return strncasecmp(key, "MIG-", 4) != 0 && (strncasecmp(key, "GPU-", 4) != 0 || mps_heeds_uuids(driver.m));
}

/* The server's limit, which the environment may lower. An entry for a device that the process does not see undoes all limits, the
 * server's too: so do real drivers. */
static uint64_t memory_limit(const struct mps_session *session, const struct cuda_device *device) {
    uint64_t limit = session->grant.devices[number_of(session, device->uuid)].limit;
    const char *text = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    struct mps_settings own = {0};
    if (text == NULL || !mps_has_limits(driver.m) || !mps_parse_limits(text, &own)) {
        return limit;
    }
    for (uint32_t i = 0; i < own.count; i++) {
        const struct mps_limit *entry = &own.limits[i];
        const struct cuda_device *named = device_of_key(entry->device);
        if (named == NULL) {
            return 0;
        }
        if (named == device && key_counts(entry->device) && (limit == 0 || entry->bytes < limit)) {
            limit = entry->bytes;
        }
    }
    return limit;
}

static double own_percentage(const struct mps_session *session) {
    double percentage = session->grant.percentage, own;
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    return text != NULL && mps_parse_percentage(text, &own) && own < percentage ? own : percentage;
}

/* Rounded down to what a GPU can set aside: pairs of multiprocessors. */
static unsigned int share_of(const struct cuda_device *device, double percentage) {
    unsigned int share = (unsigned int)((double)device->multiprocessors * percentage / 100.0) / 2 * 2;
    return percentage >= 100.0 ? 0 : share < 2 ? 2 : share;
}

static bool tell(const struct mps_session *session, enum mps_note_kind kind, uint32_t device, uint32_t code) {
    struct mps_note note = {.kind = kind, .device = device, .code = code};
    return mps_send(session->connection, &note, sizeof note);
}

CUresult mps_open(struct mps_session *session, const char *uuid, struct mps_seat *seat) {
    *seat = (struct mps_seat){0};
    if (session == NULL) {
        return CUDA_SUCCESS;
    }
    int32_t error;
    int none;
    if (!tell(session, MPS_NOTE_CREATE, number_of(session, uuid), 0) ||
        mps_receive(session->connection, &error, sizeof error, &none) != (ssize_t)sizeof error) {
        return CUDA_ERROR_MPS_RPC_FAILURE;
    }
    if (error != MPS_OK) {
        return (CUresult)error;
    }
    if (session->percentage == 0) {
        session->percentage = own_percentage(session);
    }
    for (unsigned int i = 0; i < driver.device_count; i++) {
        const struct cuda_device *device = &driver.devices[i];
        if (strcmp(device->uuid, uuid) == 0) {
            *seat = (struct mps_seat){
                .server = session->grant.server,
                .client = session->grant.client,
                .memory_limit = memory_limit(session, device),
                .multiprocessors = share_of(device, session->percentage),
            };
        }
    }
    return CUDA_SUCCESS;
}

void mps_close(struct mps_session *session, const char *uuid) {
    if (session != NULL) {
        tell(session, MPS_NOTE_DESTROY, number_of(session, uuid), 0);
    }
}

CUresult mps_health(struct mps_session *session) {
    if (session == NULL) {
        return CUDA_SUCCESS;
    }
    uint32_t error = atomic_load(&session->page->error);
    struct pollfd server = {.fd = session->connection};
    if (error == 0 && poll(&server, 1, 0) > 0) {
        return CUDA_ERROR_MPS_RPC_FAILURE; /* it has hung up */
    }
    return (CUresult)error;
}

void mps_report_fault(struct mps_session *session, CUresult fault) {
    if (session != NULL) {
        tell(session, MPS_NOTE_FAULT, 0, (uint32_t)fault);
    }
}
