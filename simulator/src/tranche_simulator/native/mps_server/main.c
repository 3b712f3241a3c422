/* nvidia-cuda-mps-server of a simulated machine. The control daemon starts it, with a channel and the log as descriptors 3 and 4. */
#define _GNU_SOURCE
#include <poll.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "driver_release.h"
#include "mps/mps_faults.h"
#include "mps/mps_log.h"
#include "mps_server/server.h"

enum { CHANNEL = 3, LOG = 4, SETTLE_MS = 5 };

struct server_state server;

void tell_daemon(enum mps_order_kind kind, uint32_t number) {
    static struct mps_order order;
    order.kind = kind;
    order.number = number;
    mps_send(server.channel, &order, sizeof order);
}

static bool start(void) {
    mps_log("Start");
    const char *path = trancheSimDefaultStatePath();
    bool opened = path != NULL && trancheSimOpen(path, &server.m) == NVML_SUCCESS;
    if (!opened || mps_fails(server.m, MPS_SERVER_START) || !devices_open()) {
        mps_log("MPS Server failed to start");
        return false;
    }
    return true;
}

static void settings_come(const struct mps_settings *settings) {
    server.settings = *settings;
    mps_log("activeThreadsPercentage set to %f", settings->percentage);
}

/* False: the server should end. */
static bool take_order(void) {
    static struct mps_order order;
    int descriptor;
    if (mps_receive(server.channel, &order, sizeof order, &descriptor) <= 0) {
        close(server.channel);
        server.channel = -1; /* the daemon was killed: the clients that are here may stay */
        return true;
    }
    switch (order.kind) {
    case MPS_ORDER_SETTINGS:
        settings_come(&order.settings);
        break;
    case MPS_ORDER_CLIENT:
        client_arrives(&order, descriptor);
        break;
    case MPS_ORDER_QUERY:
        report(order.text, order.number);
        break;
    case MPS_ORDER_QUIT:
        if (order.number != 0) {
            clients_terminate_all();
        }
        return false;
    default:
        break;
    }
    return true;
}

static void serve(void) {
    static struct pollfd polled[1 + SERVER_MAX_CLIENTS];
    for (bool unsettled = false; server.channel >= 0 || clients_here() > 0; unsettled = clients_settle()) {
        polled[0] = (struct pollfd){.fd = server.channel, .events = POLLIN};
        for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
            const struct served_client *client = &server.clients[i];
            polled[1 + i] = (struct pollfd){.fd = client->here ? client->connection : -1, .events = POLLIN};
        }
        if (poll(polled, 1 + SERVER_MAX_CLIENTS, unsettled ? SETTLE_MS : -1) < 0) {
            continue;
        }
        for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
            if (polled[1 + i].revents != 0) {
                client_heard(&server.clients[i]);
            }
        }
        if (polled[0].revents != 0 && !take_order()) {
            return;
        }
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "-v") == 0) {
        printf("Binary version: %d\n", driver_cuda(NULL));
        return 0;
    }
    if (fcntl(CHANNEL, F_GETFD) < 0) {
        puts("The control daemon starts the server");
        return 1;
    }
    mps_log_open("Other", LOG, argc > 1 && strcmp(argv[1], "-foreground") == 0);
    prctl(PR_SET_NAME, "nvidia-cuda-mps-server"); /* it was started by its descriptor */
    server.channel = CHANNEL;
    if (!start()) {
        return 1;
    }
    server.status = MPS_ACTIVE;
    if (!take_order()) { /* the settings, which were sent at once */
        return 0;
    }
    mps_log("MPS Server is started");
    tell_daemon(MPS_ORDER_READY, 0);
    serve();
    return 0;
}
