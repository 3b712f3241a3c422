/* The rule by which time is divided, on copies of a unit's lanes. */
#ifndef TRANCHE_COMPUTE_STEP_H
#define TRANCHE_COMPUTE_STEP_H

#include "state.h"

/* A lane with work, as it is worked on. */
struct running {
    unsigned int lane;
    const struct lane *shared;
    uint64_t issued;
    uint64_t done;
    double left;     /* of the first item that is not done */
    double computed; /* nanoseconds of a whole GPU that it was given */
};

struct division {
    struct running lanes[STATE_MAX_LANES];
    unsigned int count;
    const struct machine_state *state;
    unsigned int whole;           /* multiprocessors of the whole GPU, on which work is measured */
    unsigned int multiprocessors; /* of the unit */
    double slice;                 /* nanoseconds of a turn */
    uint64_t holder;
    double slice_left;
    double now; /* nanoseconds since the unit was settled last, before the time scale */
};

/* Goes on until the time is `until`, or nothing can run, or `watched` (a lane, or NO_LANE) has done `items`. What happens to each item
 * that becomes done is `finished`'s; it may be NULL. */
void divide(struct division *division, double until, unsigned int watched, uint64_t items,
            void (*finished)(void *context, struct running *lane, uint64_t item, double at), void *context);

#endif
