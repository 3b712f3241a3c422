/* Processes that use a GPU or a MIG device. A live client holds the lock of its slot for as long as its process lives;
 * a phantom has no process and stays until cleared. */
#ifndef TRANCHE_CLIENTS_H
#define TRANCHE_CLIENTS_H

#include "session.h"

/* Client records of the present boot whose owner is alive, at most STATE_MAX_CLIENTS, in slot order. */
unsigned int clients_alive(const machine *m, trancheSimClient_t *clients, unsigned int capacity);

/* A consistent copy of a slot; false when it is free, of an earlier boot, or its process is dead. `reader` is of
 * state_lock_reader. */
bool client_read(const machine *m, int reader, unsigned int slot, struct client_record *copy);

struct usage {
    unsigned int clients;
    uint64_t memory_bytes;
    unsigned int utilization; /* percent, capped at 100 */
};

/* Clients of a GPU (gi and ci NO_INSTANCE: all of them, instances included), of a GPU instance (ci NO_INSTANCE), or of
 * one compute instance. */
void usage_of(const machine *m, unsigned int gpu, unsigned int gi, unsigned int ci, struct usage *usage);
/* Clients of the GPU that belong to no instance. */
unsigned int whole_gpu_clients(const machine *m, unsigned int gpu);

/* Through which MPS server a process reaches a GPU, and as which of its clients. All zero: by itself. */
struct mps_route {
    uint32_t server; /* pid */
    uint32_t client; /* the server's number for it, from 1 on */
};

/* trancheSimAttach, for a process that reaches the GPU by that route. */
nvmlReturn_t client_attach(machine *m, const char *uuid, uint64_t memory_bytes, uint32_t utilization,
                           struct mps_route route, unsigned int *client);
/* Slots of the process that reaches or reached GPUs by that route; how many there are. */
unsigned int clients_through(const machine *m, struct mps_route route, unsigned int *slots, unsigned int room);
/* It no longer reaches any GPU, and holds nothing there. */
void clients_end(machine *m, struct mps_route route);
/* client_memory.c: sets how many bytes a client of this process holds. MEMORY: not that much is free. */
nvmlReturn_t client_resize(machine *m, unsigned int client, uint64_t memory_bytes);
/* Whether a process of that control group may have so much more; takes it from others if it is entitled to. The caller
 * holds LOCK_MEMORY. */
bool memory_make_room(machine *m, unsigned int gpu, unsigned int gi, const struct group_chain *groups, uint64_t bytes);
/* Bytes of the GPU, or of the GPU instance, that no client holds. The caller holds LOCK_MEMORY, or asks for information. */
uint64_t memory_left(const machine *m, unsigned int gpu, unsigned int gi);

#endif
