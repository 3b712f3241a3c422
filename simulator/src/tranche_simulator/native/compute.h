/* How a modelled GPU divides its time among its clients.
 *
 * Work lies in lanes. Lanes of one group run at the same time, and share the multiprocessors where they want more than there are;
 * groups that have work take turns of a time slice's length, and a lone group needs no turns. Nothing runs in the background:
 * each reader brings the lanes up to date, under a lock that the kernel drops with its process. A dead process's lanes do not
 * count, so it holds up no others. A process killed while it brings lanes up to date costs the others at most the time that it was
 * about to account for.
 */
#ifndef TRANCHE_COMPUTE_H
#define TRANCHE_COMPUTE_H

#include "handles.h"

struct lane_owner {
    unsigned int client; /* slot of the process on the device */
    struct device_place place;
    uint64_t group;
    uint32_t ceiling;
};

struct lane_sight {
    bool done;
    uint64_t finished_at; /* of the item, while the lane has not taken STATE_LANE_DEPTH others since */
    uint64_t wait;        /* nanoseconds until it will be done, if nothing changes; UINT64_MAX: it never will */
};

/* INSUFFICIENT_RESOURCES: all lanes are in use. */
nvmlReturn_t lane_open(machine *m, const struct lane_owner *owner, unsigned int *lane);
void lane_close(machine *m, unsigned int lane);
/* `number` says which of the lane's items it is. INSUFFICIENT_RESOURCES: the lane is full until its first item is done. */
nvmlReturn_t lane_put(machine *m, unsigned int lane, const struct lane_item *item, uint64_t *number);
nvmlReturn_t lane_look(machine *m, unsigned int lane, uint64_t number, struct lane_sight *sight);
/* The lane holds work that is not done. */
bool lane_is_busy(const machine *m, unsigned int lane);

/* Brings every lane of the GPU, and what its clients have computed, up to the present. */
void compute_settle(machine *m, unsigned int gpu);
/* The process of the client has died, and had work that was not done. */
bool client_died_at_work(machine *m, unsigned int client);
/* A client has work that is not done, as of the last look. */
bool client_is_computing(const machine *m, unsigned int client);

#endif
