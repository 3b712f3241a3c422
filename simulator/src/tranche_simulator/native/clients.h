/* Processes that use a GPU or a MIG device. A live client holds the lock of its slot for as long as its process lives;
 * a phantom has no process and stays until cleared. */
#ifndef TRANCHE_CLIENTS_H
#define TRANCHE_CLIENTS_H

#include "session.h"

/* Client records of the present boot whose owner is alive, at most STATE_MAX_CLIENTS, in slot order. */
unsigned int clients_alive(const machine *m, trancheSimClient_t *clients, unsigned int capacity);

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

#endif
