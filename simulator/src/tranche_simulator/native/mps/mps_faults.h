/* Injectable faults of MPS: an error injected into one of these names, as if it were a function of NVML, with any
 * code. */
#ifndef TRANCHE_MPS_FAULTS_H
#define TRANCHE_MPS_FAULTS_H

#include "session.h"

/* The next server does not start. */
#define MPS_SERVER_START "mpsServerStart"
/* The daemon drops a limit of memory that it is given, and says nothing. */
#define MPS_SET_LIMIT "mpsSetLimit"
/* A server serves a client without any limit of memory. */
#define MPS_ENFORCE_LIMIT "mpsEnforceLimit"
/* A client that is killed amid its work takes its neighbours with it, or the server. */
#define MPS_CLIENT_KILLED "mpsClientKilled"
/* From the next client on, a server silently answers no client. */
#define MPS_SERVER_HANGS "mpsServerHangs"

/* All of them; trancheSimSpecialFault names each. */
#define MPS_FAULTS MPS_SERVER_START, MPS_SET_LIMIT, MPS_ENFORCE_LIMIT, MPS_CLIENT_KILLED, MPS_SERVER_HANGS

static inline bool mps_fails(machine *m, const char *what) {
    return m != NULL && fault_check(m, what, TRANCHE_SIM_ANY_GPU) != NVML_SUCCESS;
}

#endif
