/* Where an MPS server stands between this process and its devices. mps_client.c fills this in; all calls come with the
 * driver's guard held, one at a time. */
#ifndef TRANCHE_CUDA_MPS_CLIENT_H
#define TRANCHE_CUDA_MPS_CLIENT_H

#include "cuda_abi.h"
#include "handles.h"

/* A process's connection to a daemon and its server. NULL stands for a process that runs without MPS. */
struct mps_session;

/* What the server grants the process on one device. All zero: no MPS. */
struct mps_seat {
    uint32_t server;              /* pid: clients of one server compute at the same time, and take turns as one with others */
    uint32_t client;              /* the server's number for the process */
    uint64_t memory_limit;        /* bytes that the process may hold there, its contexts included; 0: no limit */
    unsigned int multiprocessors; /* most that its kernels may use at a time; 0: all */
};

/* In cuInit, before devices are looked for. Success and a NULL session: no daemon answers, the process runs without MPS. A server
 * that never answers is a call that does not return. */
CUresult mps_join(machine *m, struct mps_session **session);
/* Whether the process may use the device at all: the server's CUDA_VISIBLE_DEVICES come before the client's. */
bool mps_shows(const struct mps_session *session, const char *uuid);
/* For the process's first context on a device; CUDA_ERROR_MPS_* or any other refusal. */
CUresult mps_open(struct mps_session *session, const char *uuid, struct mps_seat *seat);
/* After the process's last context there. */
void mps_close(struct mps_session *session, const char *uuid);
/* In every call that needs a context: success, or why the process can do no more (the server gone, a fault of any of its
 * clients, a client that was terminated). */
CUresult mps_health(struct mps_session *session);
/* A fault of this process that ends its work: the server tells its other clients. */
void mps_report_fault(struct mps_session *session, CUresult fault);

#endif
