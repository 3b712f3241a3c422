/* Limits of a GPU's memory for control groups, as drivers from release 615 on have them.
 *
 * Back end misc: the driver has a flat table. The nearest group with an entry, from the process's own upwards, counts for it, and no
 * other. Back end dmem: the kernel has them, and every group above counts too.
 */
#ifndef TRANCHE_MEMORY_LIMITS_H
#define TRANCHE_MEMORY_LIMITS_H

#include "state.h"

/* Whether so much more stays below the hard limits. The caller holds LOCK_MEMORY. */
bool limits_allow(const machine *m, unsigned int gpu, const struct group_chain *groups, uint64_t bytes);

/* For a group that stays below its soft limit with so much more: takes the memory of an MPS client that is above its own. False
 * when there is none, or no right to it. */
bool limits_evict(machine *m, unsigned int gpu, const struct group_chain *groups, uint64_t bytes);

/* What a process of the group sees of its GPU: the hard limit of its own group, and how much of it is used. False without one. */
bool limits_view(const machine *m, unsigned int gpu, const struct group_chain *groups, uint64_t *hard, uint64_t *used);

#endif
