/* What a server allows its clients: the daemon's defaults when the server starts, its own values afterwards. */
#ifndef TRANCHE_MPS_SETTINGS_H
#define TRANCHE_MPS_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MPS_MAX_LIMITS 96u
#define MPS_KEY_SIZE 96
#define MPS_EVERY_DEVICE "*"

/* A limit as given: its device is checked against the existing ones only when a client comes. */
struct mps_limit {
    char device[MPS_KEY_SIZE]; /* ordinal or UUID, or MPS_EVERY_DEVICE */
    uint64_t bytes;
};

struct mps_settings {
    double percentage; /* of the multiprocessors, up to 100 */
    bool partitions;   /* -S: clients need a partition, which the simulator has none of */
    uint32_t priority; /* 0 normal, 1 below normal */
    uint32_t count;
    struct mps_limit limits[MPS_MAX_LIMITS]; /* in the order in which they were set */
};

/* The daemon's environment. */
void mps_settings_from_environment(struct mps_settings *settings);
/* Whether the limit is kept: an unknown device is no reason to refuse it. */
bool mps_set_limit(struct mps_settings *settings, const char *device, uint64_t bytes);
/* NULL if none was set for that key. */
const struct mps_limit *mps_limit_of(const struct mps_settings *settings, const char *device);

/* "25", "33.3": above 0, up to 100. */
bool mps_parse_percentage(const char *text, double *percentage);
bool mps_parse_priority(const char *text, uint32_t *priority);
/* An integer with one of the `units` ("GM", "GMK"); an environment variable may add a B. */
bool mps_parse_size(const char *text, const char *units, uint64_t *bytes);
/* The entries of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT. False when one of them cannot be read. */
bool mps_parse_limits(const char *text, struct mps_settings *settings);

#endif
