#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clients.h"
#include "compute.h"
#include "mps/mps_faults.h"
#include "mps/mps_log.h"
#include "mps_server/server.h"

/* Hardware channels of a client's context unless CUDA_DEVICE_MAX_CONNECTIONS asks for more; a GPU has enough for its most
 * contexts of so many. */
enum { CHANNELS = 2 };

enum { ILLEGAL_ADDRESS = 700 };

unsigned int clients_here(void) {
    unsigned int count = 0;
    for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        count += server.clients[i].here ? 1 : 0;
    }
    return count;
}

static unsigned int contexts_of_all(void) {
    unsigned int count = 0;
    for (unsigned int i = 0; i < server.device_count; i++) {
        count += server.devices[i].contexts;
    }
    return count;
}

static unsigned int channels_of(const struct served_client *client) {
    return client->hello.connections > CHANNELS ? client->hello.connections : CHANNELS;
}

static struct mps_route route_of(const struct served_client *client) {
    return (struct mps_route){.server = (uint32_t)getpid(), .client = client->id + 1};
}

static void drop_contexts(struct served_client *client, unsigned int device, unsigned int count) {
    server.devices[device].contexts -= count;
    server.devices[device].channels -= count * channels_of(client);
    client->contexts[device] -= count;
}

static void drop_all_contexts(struct served_client *client) {
    for (unsigned int device = 0; device < server.device_count; device++) {
        drop_contexts(client, device, client->contexts[device]);
    }
}

static void report_departure(uint32_t number) { tell_daemon(MPS_ORDER_LEFT, number); }

static void refuse(int connection, uint32_t number, int32_t error) {
    struct mps_grant grant = {.error = error};
    mps_send(connection, &grant, sizeof grant);
    close(connection);
    report_departure(number);
}

static struct served_client *free_place(void) {
    for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        if (!server.clients[i].here) {
            return &server.clients[i];
        }
    }
    return NULL;
}

static bool give_grant(struct served_client *client) {
    int shared = memfd_create("mps", MFD_CLOEXEC);
    if (shared < 0 || ftruncate(shared, sizeof *client->page) != 0) {
        return false;
    }
    void *page = mmap(NULL, sizeof *client->page, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
    client->page = page == MAP_FAILED ? NULL : page;
    struct mps_grant grant = {
        .server = route_of(client).server,
        .client = route_of(client).client,
        .percentage = client->settings.percentage,
        .priority = client->settings.priority,
        .count = server.device_count,
    };
    bool unlimited = mps_fails(server.m, MPS_ENFORCE_LIMIT);
    for (unsigned int i = 0; i < server.device_count; i++) {
        memcpy(grant.devices[i].uuid, server.devices[i].uuid, sizeof grant.devices[i].uuid);
        grant.devices[i].limit = unlimited ? 0 : device_limit(&client->settings, i);
    }
    bool sent = client->page != NULL && mps_send_with(client->connection, &grant, sizeof grant, shared);
    close(shared);
    return sent;
}

void client_arrives(const struct mps_order *order, int connection) {
    struct served_client *client = free_place();
    mps_log("Volta MPS Server: Received new client request");
    if (server.status == MPS_FAULT || client == NULL) {
        refuse(connection, order->number, client == NULL ? MPS_MAX_CLIENTS_REACHED : MPS_SERVER_NOT_READY);
        return;
    }
    *client = (struct served_client){
        .here = true, .connection = connection, .pid = order->pid, .uid = order->uid, .id = server.arrivals++};
    client->number = order->number;
    client->hello = order->hello;
    client->settings = order->settings;
    server.wedged = server.wedged || mps_fails(server.m, MPS_SERVER_HANGS);
    if (server.wedged) {
        return; /* it waits for its grant for ever */
    }
    mps_log("MPS Server: worker created");
    mps_log("Volta MPS: Creating worker thread");
    give_grant(client); /* a client that is gone already is noticed by its connection */
}

static int32_t create_context(struct served_client *client, unsigned int index) {
    if (index >= server.device_count) {
        return MPS_CONNECTION_FAILED;
    }
    struct served_device *device = &server.devices[index];
    if (server.status == MPS_FAULT || client->terminated) {
        return client->terminated ? MPS_CLIENT_TERMINATED : MPS_SERVER_NOT_READY;
    }
    if (server.settings.partitions) {
        return MPS_INVALID_RESOURCE_CONFIGURATION;
    }
    if (device->contexts >= device->most_contexts) {
        mps_log("Volta MPS: Maximum number of client contexts reached on device %u", index);
        return MPS_MAX_CLIENTS_REACHED;
    }
    if (device->channels + channels_of(client) > device->most_contexts * CHANNELS) {
        mps_log("Volta MPS: Maximum number of connections reached on device %u", index);
        return MPS_MAX_CONNECTIONS_REACHED;
    }
    device->contexts++;
    device->channels += channels_of(client);
    client->contexts[index]++;
    return MPS_OK;
}

static bool shares_a_device(const struct served_client *one, const struct served_client *other) {
    for (unsigned int device = 0; device < server.device_count; device++) {
        if (one->contexts[device] > 0 && other->contexts[device] > 0) {
            return true;
        }
    }
    return one == other;
}

/* Tells every client with a context on a GPU of the culprit, without naming the culprit. */
static void fault(const struct served_client *culprit, uint32_t code) {
    mps_log("Volta MPS: Fatal error %u, client process %u", code, culprit->pid);
    for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        struct served_client *client = &server.clients[i];
        if (client->here && client->page != NULL && shares_a_device(culprit, client)) {
            client->affected = true;
            atomic_store(&client->page->error, code);
        }
    }
    server.status = MPS_FAULT;
    tell_daemon(MPS_ORDER_STATUS, MPS_FAULT);
}

static void recover(void) {
    for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        if (server.clients[i].here && server.clients[i].affected) {
            return;
        }
    }
    server.status = MPS_ACTIVE;
    tell_daemon(MPS_ORDER_STATUS, MPS_ACTIVE);
}

static bool has_neighbours(const struct served_client *client) {
    for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        const struct served_client *other = &server.clients[i];
        if (other != client && other->here && shares_a_device(client, other)) {
            return true;
        }
    }
    return false;
}

/* Its neighbours see a fault; without any, the server silently serves no more clients. */
static void killed_amid_work(const struct served_client *client) {
    if (!mps_fails(server.m, MPS_CLIENT_KILLED)) {
        return; /* what usually happens: the work is lost, and no more */
    }
    if (has_neighbours(client)) {
        fault(client, ILLEGAL_ADDRESS);
    } else {
        server.wedged = true;
    }
}

static bool is_computing(const struct served_client *client, bool dead) {
    unsigned int slots[MPS_MAX_DEVICES];
    unsigned int count = clients_through(server.m, route_of(client), slots, MPS_MAX_DEVICES);
    bool computing = false;
    for (unsigned int i = 0; i < count && !computing; i++) {
        if (dead) {
            computing = client_died_at_work(server.m, slots[i]);
        } else {
            compute_settle(server.m, server.m->state->clients[slots[i]].gpu);
            computing = client_is_computing(server.m, slots[i]);
        }
    }
    return computing;
}

static void client_leaves(struct served_client *client, bool said_so) {
    if (!said_so && is_computing(client, true)) {
        killed_amid_work(client);
    }
    mps_log("Receive command failed, assuming client exit");
    drop_all_contexts(client);
    mps_log("Volta MPS: Client disconnected. Number of active client contexts is %u", contexts_of_all());
    mps_log("Volta MPS: Client process disconnected");
    if (client->query != 0) {
        answer(client->query, "0\n");
    }
    if (client->page != NULL) {
        munmap(client->page, sizeof *client->page);
    }
    close(client->connection);
    client->here = false;
    report_departure(client->number);
    if (server.status == MPS_FAULT) {
        recover();
    }
}

void client_heard(struct served_client *client) {
    struct mps_note note;
    int descriptor;
    if (mps_receive(client->connection, &note, sizeof note, &descriptor) != (ssize_t)sizeof note) {
        client_leaves(client, false);
        return;
    }
    int32_t error;
    switch (note.kind) {
    case MPS_NOTE_CREATE:
        error = create_context(client, note.device);
        mps_send(client->connection, &error, sizeof error);
        break;
    case MPS_NOTE_DESTROY:
        if (note.device < server.device_count && client->contexts[note.device] > 0) {
            drop_contexts(client, note.device, 1);
        }
        break;
    case MPS_NOTE_FAULT:
        fault(client, note.code);
        break;
    default:
        client_leaves(client, true);
        break;
    }
}

bool clients_settle(void) {
    bool waiting = false;
    for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        struct served_client *client = &server.clients[i];
        if (!client->here || client->query == 0 || server.wedged) {
            continue;
        }
        if (is_computing(client, false)) {
            waiting = true;
            continue;
        }
        drop_all_contexts(client);
        clients_end(server.m, route_of(client));
        client->terminated = true;
        answer(client->query, "0\n");
        client->query = 0;
    }
    return waiting;
}

void client_terminate(uint32_t pid, uint32_t query) {
    for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        struct served_client *client = &server.clients[i];
        if (client->here && !client->terminated && client->pid == pid && (client->page != NULL || server.wedged)) {
            if (client->page != NULL) {
                atomic_store(&client->page->error, MPS_CLIENT_TERMINATED);
            }
            client->query = query; /* answered by clients_settle */
            return;
        }
    }
    answer(query, "CUDA_ERROR_INVALID_VALUE\n");
}

void clients_terminate_all(void) {
    for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        const struct served_client *client = &server.clients[i];
        if (client->here && client->page != NULL) {
            clients_end(server.m, route_of(client));
            atomic_store(&client->page->error, MPS_CLIENT_TERMINATED);
        }
    }
}
