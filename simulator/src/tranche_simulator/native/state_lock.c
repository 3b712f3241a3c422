#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

/* Open-file-description locks: each call opens the file again, so that two threads of one process exclude each other,
 * a fork does not carry the lock into the child's own calls, and the kernel releases it however the process ends. */

enum { MAX_HELD = 2048 };

static pthread_mutex_t held_guard = PTHREAD_MUTEX_INITIALIZER;
static int held[MAX_HELD];
static unsigned int held_count;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* A forked child shares the parent's descriptions: without this a lock would outlive a killed parent. */
static void close_inherited(void) {
    for (unsigned int i = 0; i < held_count; i++) {
        close(held[i]);
    }
    held_count = 0;
    pthread_mutex_unlock(&held_guard);
}

static void before_fork(void) { pthread_mutex_lock(&held_guard); }

static void after_fork(void) { pthread_mutex_unlock(&held_guard); }

static void register_fork_handlers(void) { pthread_atfork(before_fork, after_fork, close_inherited); }

static void remember(int lock) {
    pthread_mutex_lock(&held_guard);
    if (held_count < MAX_HELD) {
        held[held_count++] = lock;
    }
    pthread_mutex_unlock(&held_guard);
}

static bool forget(int lock) {
    bool found = false;
    pthread_mutex_lock(&held_guard);
    for (unsigned int i = 0; i < held_count; i++) {
        if (held[i] == lock) {
            held[i] = held[--held_count];
            found = true;
            break;
        }
    }
    pthread_mutex_unlock(&held_guard);
    return found;
}

static nvmlReturn_t open_state(const machine *m, int *opened) {
    int descriptor = open(m->path, (m->writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (descriptor < 0) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    struct stat status;
    if (fstat(descriptor, &status) != 0 || status.st_ino != m->inode || status.st_dev != m->device) {
        close(descriptor); /* the machine was destroyed, and perhaps recreated under the same path */
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    *opened = descriptor;
    return NVML_SUCCESS;
}

static struct flock region(short type, unsigned int place) {
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = place;
    lock.l_len = 1;
    return lock;
}

static nvmlReturn_t acquire(const machine *m, unsigned int place, int command, int *lock) {
    if (!m->writable) {
        return NVML_ERROR_NO_PERMISSION;
    }
    pthread_once(&fork_once, register_fork_handlers);
    int descriptor;
    nvmlReturn_t result = open_state(m, &descriptor);
    if (result != NVML_SUCCESS) {
        return result;
    }
    remember(descriptor);
    struct flock wanted = region(F_WRLCK, place);
    while (fcntl(descriptor, command, &wanted) != 0) {
        if (errno == EINTR) {
            continue;
        }
        result = (errno == EAGAIN || errno == EACCES) ? NVML_ERROR_IN_USE : NVML_ERROR_OPERATING_SYSTEM;
        state_unlock(descriptor);
        return result;
    }
    *lock = descriptor;
    return NVML_SUCCESS;
}

nvmlReturn_t state_lock(const machine *m, unsigned int place, int *lock) {
    return acquire(m, place, F_OFD_SETLKW, lock);
}

nvmlReturn_t state_try_lock(const machine *m, unsigned int place, int *lock) {
    return acquire(m, place, F_OFD_SETLK, lock);
}

void state_unlock(int lock) {
    if (!forget(lock)) {
        return; /* inherited from before a fork, closed there already */
    }
    struct flock all = region(F_UNLCK, 0);
    all.l_len = 0;
    fcntl(lock, F_OFD_SETLK, &all); /* explicit, since a child forked meanwhile shares the description */
    close(lock);
}

nvmlReturn_t state_lock_reader(const machine *m, int *reader) { return open_state(m, reader); }

bool state_is_locked(int reader, unsigned int place) {
    struct flock query = region(F_WRLCK, place);
    return fcntl(reader, F_OFD_GETLK, &query) == 0 && query.l_type != F_UNLCK;
}
