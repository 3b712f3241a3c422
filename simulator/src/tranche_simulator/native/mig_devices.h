/* MIG devices: compute instances in the order in which tools count them (GPU-instance id, then compute-instance id). */
#ifndef TRANCHE_MIG_DEVICES_H
#define TRANCHE_MIG_DEVICES_H

#include "session.h"

/* The index-th MIG device; `view` NULL: of all. */
bool mig_device_at(const struct gpu_state *state, unsigned int index, const struct view *view, unsigned int gpu,
                   unsigned int *gi, unsigned int *ci);
/* Which slot (GI id, first compute slice) of the GPU the UUID stands for, whether or not an instance is there. */
bool mig_slot_of_uuid(const machine *m, unsigned int gpu, const char *uuid, unsigned int *gi, unsigned int *start);
/* Finds a GPU or an existing MIG device by UUID; gi and ci are NO_INSTANCE for a GPU. */
bool find_by_uuid(const machine *m, const char *uuid, struct device_place *place);

#endif
