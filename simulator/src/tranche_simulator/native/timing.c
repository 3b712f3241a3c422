#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

/* The times of a family are of a GPU instance with its compute instance; a compute instance alone takes a tenth. */
static const double GI_PART = 0.9;
static const double CI_PART = 0.1;
static const double MODE_CHANGE_SECONDS = 0.5;
static const double RESET_SECONDS = 3.0;
/* From a T4: the start of an MPS server, and each GPU's context in it. */
static const double MPS_SERVER_SECONDS = 0.59;
static const double MPS_CONTEXT_SECONDS = 0.03;

void sleep_seconds(double seconds) {
    if (!(seconds > 0.0)) {
        return;
    }
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

double machine_time_scale(const machine *m) {
    uint64_t bits = atomic_load(&m->state->time_scale);
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

static double time_scale(const machine *m) {
    const char *override = getenv("TRANCHE_SIM_TIME_SCALE");
    if (override != NULL && override[0] != '\0') {
        char *end;
        double scale = strtod(override, &end);
        if (*end == '\0' && scale >= 0.0) {
            return scale;
        }
    }
    return machine_time_scale(m);
}

static void simulate(const machine *m, double seconds) { sleep_seconds(seconds * time_scale(m)); }

static unsigned int capped(unsigned int slices) { return slices < 8 ? slices : 8; }

void simulate_mode_change(const machine *m) { simulate(m, MODE_CHANGE_SECONDS); }

void simulate_reset(const machine *m) { simulate(m, RESET_SECONDS); }

void simulate_mps_start(const machine *m, unsigned int devices) {
    simulate(m, MPS_SERVER_SECONDS + MPS_CONTEXT_SECONDS * devices);
}

void simulate_gi_create(const machine *m, const struct board *board, unsigned int slices) {
    simulate(m, GI_PART * board->family->create_seconds[capped(slices)]);
}

void simulate_gi_destroy(const machine *m, const struct board *board, unsigned int slices) {
    simulate(m, GI_PART * board->family->destroy_seconds[capped(slices)]);
}

void simulate_ci_create(const machine *m, const struct board *board, unsigned int slices) {
    simulate(m, CI_PART * board->family->create_seconds[capped(slices)]);
}

void simulate_ci_destroy(const machine *m, const struct board *board, unsigned int slices) {
    simulate(m, CI_PART * board->family->destroy_seconds[capped(slices)]);
}
