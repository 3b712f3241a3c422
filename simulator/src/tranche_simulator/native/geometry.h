/* The placement rules of one GPU: pure functions of a GPU's state and its board's table. */
#ifndef TRANCHE_GEOMETRY_H
#define TRANCHE_GEOMETRY_H

#include "state.h"

#define ANY_START 0xFFFFFFFFu

/* Placement units taken, one bit each. */
uint32_t grid_occupied(const struct gpu_state *state);

/* More instances of the profile that could be created now, one after the other. */
unsigned int gi_remaining_capacity(const struct board *board, const struct gpu_state *state,
                                   const struct gi_profile *profile);

/* Where the driver puts an instance when no start is asked for: the free start that leaves the most (profile, start)
 * pairs creatable; ties go to the lowest. ANY_START when there is none. */
unsigned int gi_default_start(const struct board *board, const struct gpu_state *state,
                              const struct gi_profile *profile);

bool gi_start_is_legal(const struct gi_profile *profile, unsigned int start);
bool gi_start_is_free(const struct gpu_state *state, const struct gi_profile *profile, unsigned int start);
/* False when an instance that exists excludes the profile: one set of media engines, or +me.all. */
bool gi_engines_allow(const struct board *board, const struct gpu_state *state, const struct gi_profile *profile);

/* GPU-instance id of a placement on this die; BOARD_MAX_GI_IDS when there is none. */
unsigned int gi_id_of(const struct board *board, unsigned int swapped, unsigned int start, unsigned int size);

/* Compute-slice placements inside a GPU instance: starts are multiples of the next power of two of the size. */
unsigned int ci_placements(const struct gi_profile *profile, const struct ci_profile *ci,
                           nvmlComputeInstancePlacement_t *placements);
bool ci_start_is_legal(const struct gi_profile *profile, const struct ci_profile *ci, unsigned int start);
bool ci_start_is_free(const struct gi_state *gi, const struct ci_profile *ci, unsigned int start);
/* The lowest free legal start, or ANY_START. */
unsigned int ci_default_start(const struct gi_state *gi, const struct gi_profile *profile, const struct ci_profile *ci);
unsigned int ci_remaining_capacity(const struct gi_state *gi, const struct gi_profile *profile,
                                   const struct ci_profile *ci);

bool gi_has_compute_instance(const struct gi_state *gi);

#endif
