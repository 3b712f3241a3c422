/* A server of MPS: the process that uses the GPUs for its clients. One thread, one loop; the daemon is at the other end of a
 * channel. */
#ifndef TRANCHE_MPS_SERVER_H
#define TRANCHE_MPS_SERVER_H

#include "mps/mps_wire.h"
#include "session.h"

#define SERVER_MAX_CLIENTS 512u

/* A GPU or a MIG device that the server has a context on. */
struct served_device {
    struct device_place place;
    char uuid[64];
    char name[TRANCHE_SIM_NAME_SIZE];
    char bus_id[32];
    unsigned int most_contexts; /* of clients */
    unsigned int contexts;      /* that there are */
    unsigned int channels;      /* that those use */
};

struct served_client {
    bool here;
    bool terminated;
    bool affected; /* by the fault that the server is in */
    int connection;
    uint32_t pid;
    uint32_t uid;
    uint32_t id;
    uint32_t number; /* the daemon's */
    struct mps_settings settings;
    uint32_t query; /* terminate_client waits for it; 0: nothing does */
    struct mps_hello hello;
    struct mps_page *page;
    unsigned int contexts[MPS_MAX_DEVICES];
};

struct server_state {
    machine *m;
    int channel; /* -1: the daemon is gone */
    enum mps_status status;
    bool wedged; /* a client was killed amid its work: no client gets answers any more */
    uint32_t arrivals;
    struct mps_settings settings;
    unsigned int device_count;
    struct served_device devices[MPS_MAX_DEVICES];
    struct served_client clients[SERVER_MAX_CLIENTS];
};

extern struct server_state server;

/* served_devices.c: those that CUDA_VISIBLE_DEVICES leaves, each with a context of the server. False after logging why not. */
bool devices_open(void);
/* Bytes that a client with these settings may hold of the device; 0: no limit. */
uint64_t device_limit(const struct mps_settings *settings, unsigned int device);

/* served_clients.c */
unsigned int clients_here(void);
void client_arrives(const struct mps_order *order, int connection);
void client_heard(struct served_client *client);
/* Terminates the clients due for it that have no work under way. True: some still have. */
bool clients_settle(void);
void client_terminate(uint32_t pid, uint32_t query);
void clients_terminate_all(void);

/* reports.c: answers a query of the daemon. */
void report(const char *query, uint32_t number);
void answer(uint32_t number, const char *text);

void tell_daemon(enum mps_order_kind kind, uint32_t number);

#endif
