#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

bool caller_may_change(const machine *m) {
    const char *unprivileged = getenv("TRANCHE_SIM_UNPRIVILEGED");
    if (unprivileged != NULL && strcmp(unprivileged, "1") == 0) {
        return false;
    }
    uid_t caller = geteuid();
    return m->writable && (caller == 0 || caller == m->state->owner_uid);
}
