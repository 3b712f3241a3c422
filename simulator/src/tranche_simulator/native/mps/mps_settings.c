#define _GNU_SOURCE
#include "mps/mps_settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool mps_parse_percentage(const char *text, double *percentage) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value > 0.0) || value > 100.0) {
        return false;
    }
    *percentage = value;
    return true;
}

bool mps_parse_priority(const char *text, uint32_t *priority) {
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0) {
        return false;
    }
    *priority = text[0] == '1';
    return true;
}

bool mps_parse_size(const char *text, const char *units, uint64_t *bytes) {
    if (*text < '0' || *text > '9') {
        return false;
    }
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (*end == '\0' || strchr(units, *end) == NULL) {
        return false;
    }
    unsigned int shift = *end == 'G' ? 30 : *end == 'M' ? 20 : 10;
    end += strchr(units, 'K') != NULL && end[1] == 'B' ? 2 : 1;
    if (*end != '\0' || errno == ERANGE || number > UINT64_MAX >> shift) {
        return false;
    }
    *bytes = (uint64_t)number << shift;
    return true;
}

bool mps_set_limit(struct mps_settings *settings, const char *device, uint64_t bytes) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < settings->count; i++) {
        if (strcmp(settings->limits[i].device, device) != 0) {
            settings->limits[kept++] = settings->limits[i];
        }
    }
    settings->count = kept;
    if (kept == MPS_MAX_LIMITS || strlen(device) >= MPS_KEY_SIZE) {
        return false;
    }
    struct mps_limit *limit = &settings->limits[settings->count++];
    snprintf(limit->device, sizeof limit->device, "%s", device);
    limit->bytes = bytes;
    return true;
}

const struct mps_limit *mps_limit_of(const struct mps_settings *settings, const char *device) {
    for (uint32_t i = 0; i < settings->count; i++) {
        if (strcmp(settings->limits[i].device, device) == 0) {
            return &settings->limits[i];
        }
    }
    return NULL;
}

bool mps_parse_limits(const char *text, struct mps_settings *settings) {
    char *entries = strdup(text);
    bool sound = entries != NULL;
    for (char *rest = entries, *entry; sound && (entry = strsep(&rest, ",")) != NULL;) {
        char *equals = strchr(entry, '=');
        uint64_t bytes;
        sound = equals != NULL && mps_parse_size(equals + 1, "GMK", &bytes);
        if (sound) {
            *equals = '\0';
            sound = mps_set_limit(settings, entry, bytes);
        }
    }
    free(entries);
    return sound;
}

void mps_settings_from_environment(struct mps_settings *settings) {
    memset(settings, 0, sizeof *settings);
    settings->percentage = 100.0;
    const char *percentage = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    const char *priority = getenv("CUDA_MPS_CLIENT_PRIORITY");
    const char *limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    if (percentage != NULL) {
        mps_parse_percentage(percentage, &settings->percentage);
    }
    if (priority != NULL) {
        mps_parse_priority(priority, &settings->priority);
    }
    if (limits != NULL && !mps_parse_limits(limits, settings)) {
        settings->count = 0;
    }
}
