#include "mps_client.h"

/* No daemon ever answers. */

CUresult mps_join(machine *m, struct mps_session **session) {
    (void)m;
    *session = NULL;
    return CUDA_SUCCESS;
}

bool mps_shows(const struct mps_session *session, const char *uuid) {
    (void)session;
    (void)uuid;
    return true;
}

CUresult mps_open(struct mps_session *session, const char *uuid, struct mps_seat *seat) {
    (void)session;
    (void)uuid;
    *seat = (struct mps_seat){0};
    return CUDA_SUCCESS;
}

void mps_close(struct mps_session *session, const char *uuid) {
    (void)session;
    (void)uuid;
}

CUresult mps_health(struct mps_session *session) {
    (void)session;
    return CUDA_SUCCESS;
}

void mps_report_fault(struct mps_session *session, CUresult fault) {
    (void)session;
    (void)fault;
}
