#include "driver_release.h"

#include <pthread.h>
#include <stdio.h>

static const char USUAL[] = "580.95.05";

/* The first release of the driver that came with a version of CUDA. That of 13.3 is inferred from its neighbours. */
static const struct {
    unsigned int release;
    int cuda;
} RELEASES[] = {
    {418, 10010}, {440, 10020}, {450, 11000}, {455, 11010}, {460, 11020}, {465, 11030}, {470, 11040}, {495, 11050},
    {510, 11060}, {515, 11070}, {520, 11080}, {525, 12000}, {530, 12010}, {535, 12020}, {545, 12030}, {550, 12040},
    {555, 12050}, {560, 12060}, {565, 12070}, {570, 12080}, {575, 12090}, {580, 13000}, {590, 13010}, {595, 13020},
    {610, 13030}, {615, 13040},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static machine *usual;

static void open_usual(void) {
    const char *path = trancheSimDefaultStatePath();
    if (path == NULL || machine_open(path, &usual) != NVML_SUCCESS) {
        usual = NULL;
    }
}

/* Release, minor number and, one too high, patch number, which a version need not have. */
uint64_t driver_number(const char *version) {
    unsigned int release, minor, patch, end = 0;
    if (sscanf(version, "%3u.%3u%n", &release, &minor, &end) == 2 && version[end] == '\0') {
        return (uint64_t)release << 32 | (uint64_t)minor << 16;
    }
    if (sscanf(version, "%3u.%3u.%2u%n", &release, &minor, &patch, &end) == 3 && version[end] == '\0') {
        return (uint64_t)release << 32 | (uint64_t)minor << 16 | (patch + 1);
    }
    return 0;
}

static uint64_t number_of(const machine *m) {
    if (m == NULL) {
        pthread_once(&once, open_usual);
        m = usual;
    }
    uint64_t number = m != NULL ? atomic_load(&m->state->driver) : 0;
    return number != 0 ? number : driver_number(USUAL);
}

void driver_version(const machine *m, char version[DRIVER_VERSION_SIZE]) {
    uint64_t number = number_of(m);
    unsigned int minor = number >> 16 & 0xFFFFu, patch = number & 0xFFFFu;
    int length = snprintf(version, DRIVER_VERSION_SIZE, "%u.%02u", (unsigned int)(number >> 32), minor);
    if (patch != 0) {
        snprintf(version + length, DRIVER_VERSION_SIZE - (size_t)length, ".%02u", patch - 1);
    }
}

unsigned int driver_release(const machine *m) { return (unsigned int)(number_of(m) >> 32); }

int driver_cuda(const machine *m) {
    unsigned int release = driver_release(m);
    int cuda = RELEASES[0].cuda;
    for (size_t i = 0; i < sizeof RELEASES / sizeof *RELEASES && RELEASES[i].release <= release; i++) {
        cuda = RELEASES[i].cuda;
    }
    return cuda;
}
