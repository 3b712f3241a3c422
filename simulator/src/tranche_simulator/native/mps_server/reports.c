#define _GNU_SOURCE
#include "mps/mps_reports.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "mps_server/server.h"

static struct mps_order reply;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *format, ...) {
    size_t used = strlen(reply.text);
    va_list values;
    va_start(values, format);
    vsnprintf(reply.text + used, sizeof reply.text - used, format, values);
    va_end(values);
}

void answer(uint32_t number, const char *text) {
    reply.kind = MPS_ORDER_ANSWER;
    reply.number = number;
    snprintf(reply.text, sizeof reply.text, "%s", text);
    mps_send(server.channel, &reply, sizeof reply);
}

static const struct served_client *client_at(unsigned int index) {
    const struct served_client *client = &server.clients[index];
    return client->here && !client->terminated ? client : NULL;
}

static void client_list(void) {
    for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        if (client_at(i) != NULL) {
            say("%u\n", client_at(i)->pid);
        }
    }
}

/* Every client enumerates every device that it can see, whether it computes there or not. The digit is its context's; it follows
 * the process id, as 580.159 prints it. The bus id there was 00:00.0 too. */
static void device_client_list(void) {
    for (unsigned int device = 0; device < server.device_count; device++) {
        say("[%u] 00:00.0, %s\n", device, server.devices[device].name);
        for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
            if (client_at(i) != NULL) {
                say("%u.1\n", client_at(i)->pid);
            }
        }
    }
}

static void processes(void) {
    say(MPS_PS_HEADER);
    for (unsigned int i = 0; i < SERVER_MAX_CLIENTS; i++) {
        const struct served_client *client = client_at(i);
        for (unsigned int device = 0; client != NULL && device < server.device_count; device++) {
            char shortened[24];
            snprintf(shortened, sizeof shortened, "%.23s", server.devices[device].uuid);
            if (client->contexts[device] > 0) {
                say(MPS_PS_ROW, (int)client->pid, client->id, (int)getpid(), shortened,
                    (unsigned long long)client->hello.namespace, client->hello.command);
            }
        }
    }
}

static void devices(bool csv) {
    say(csv ? MPS_DEVICES_CSV_HEADER : MPS_DEVICES_HEADER);
    for (unsigned int i = 0; i < server.device_count; i++) {
        const struct served_device *device = &server.devices[i];
        if (csv) {
            say(MPS_DEVICES_CSV_ROW, i, device->bus_id, device->uuid, device->name);
        } else {
            say(MPS_DEVICES_ROW, i, device->bus_id, device->uuid, device->name);
        }
    }
}

void report(const char *query, uint32_t number) {
    unsigned int pid;
    reply.text[0] = '\0';
    if (sscanf(query, "terminate_client %u", &pid) == 1) {
        client_terminate(pid, number);
        return;
    }
    if (strcmp(query, "get_client_list") == 0) {
        client_list();
    } else if (strcmp(query, "get_device_client_list") == 0) {
        device_client_list();
    } else if (strcmp(query, "ps") == 0) {
        processes();
    } else {
        devices(strstr(query, "--csv") != NULL);
    }
    reply.kind = MPS_ORDER_ANSWER;
    reply.number = number;
    mps_send(server.channel, &reply, sizeof reply);
}
