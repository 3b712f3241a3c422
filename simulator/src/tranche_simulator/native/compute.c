#include "compute.h"

#include <string.h>
#include <unistd.h>

#include "compute_step.h"

/* Time slices by the numbers of `nvidia-smi compute-policy`: default, short, medium, long. */
static const double SLICE_NANOSECONDS[] = {2e6, 0.5e6, 2e6, 8e6};
static const double FOREVER = 1e18;

static unsigned int unit_of(const struct device_place *place) {
    return place->is_mig ? place->gi * STATE_MAX_CIS + place->ci : STATE_UNITS - 1u;
}

static unsigned int unit_multiprocessors(const machine *m, unsigned int gpu, unsigned int unit,
                                         const struct gpu_state *state) {
    const struct board *board = m->boards[gpu];
    if (unit == STATE_UNITS - 1u) {
        return board->multiprocessors;
    }
    const struct gi_state *gi = &state->gis[unit / STATE_MAX_CIS];
    const struct ci_state *ci = &gi->cis[unit % STATE_MAX_CIS];
    return gi->live && ci->live ? board->gis[gi->profile].cis[ci->profile].multiprocessors : 1;
}

static bool owner_is_alive(const machine *m, int reader, const struct lane *lane) {
    const struct client_record *client = &m->state->clients[lane->client];
    return atomic_load(&client->kind) == CLIENT_LIVE && atomic_load(&client->turn) == lane->client_turn &&
           client->boot == atomic_load(&m->state->boots) && state_is_locked(reader, LOCK_CLIENT + lane->client);
}

enum { NOBODY = STATE_MAX_CLIENTS };

/* Lanes of a unit that have work, with what the rule needs to know; the `ghost` counts as if it lived. */
static void gather(const machine *m, int reader, unsigned int gpu, unsigned int unit, unsigned int ghost,
                   struct division *division) {
    const struct compute_unit *shared = &m->state->units[gpu][unit];
    struct gpu_state state;
    gpu_read(m, gpu, &state);
    division->state = m->state;
    division->whole = m->boards[gpu]->multiprocessors;
    division->multiprocessors = unit_multiprocessors(m, gpu, unit, &state);
    division->slice = SLICE_NANOSECONDS[state.timeslice];
    division->holder = atomic_load(&shared->holder);
    division->slice_left = (double)atomic_load(&shared->slice_left);
    division->now = 0.0;
    division->count = 0;
    uint32_t in_use = atomic_load_explicit(&m->state->lanes_in_use, memory_order_acquire);
    for (unsigned int i = 0; i < in_use && i < STATE_MAX_LANES; i++) {
        const struct lane *lane = &m->state->lanes[i];
        uint64_t issued = atomic_load_explicit(&lane->issued, memory_order_acquire);
        if (atomic_load(&lane->used) == 0 || lane->gpu != gpu || lane->unit != unit ||
            atomic_load(&lane->done) >= issued || (lane->client != ghost && !owner_is_alive(m, reader, lane))) {
            continue;
        }
        division->lanes[division->count++] = (struct running){
            .lane = i,
            .shared = lane,
            .issued = issued,
            .done = atomic_load(&lane->done),
            .left = (double)atomic_load(&lane->left),
        };
    }
}

struct stamps {
    machine *m;
    uint64_t settled_at;
    double scale;
};

static void stamp(void *context, struct running *lane, uint64_t item, double at) {
    const struct stamps *stamps = context;
    struct lane *shared = &stamps->m->state->lanes[lane->lane];
    shared->items[item % STATE_LANE_DEPTH].finished_at = stamps->settled_at + (uint64_t)(at * stamps->scale);
}

/* The caller holds the GPU's LOCK_COMPUTE. `division` is left as the lanes are now. */
static void settle_unit(machine *m, int reader, unsigned int gpu, unsigned int unit, struct division *division) {
    struct compute_unit *shared = &m->state->units[gpu][unit];
    uint64_t now = monotonic_nanoseconds();
    uint64_t settled_at = atomic_load(&shared->settled_at);
    if (settled_at == 0 || settled_at > now) { /* never, or before the host was restarted */
        settled_at = now;
    }
    gather(m, reader, gpu, unit, NOBODY, division);
    double scale = machine_time_scale(m);
    struct stamps stamps = {.m = m, .settled_at = settled_at, .scale = scale};
    double until = scale > 0.0 ? (double)(now - settled_at) / scale : FOREVER;
    divide(division, until, NO_LANE, 0, stamp, &stamps);
    atomic_store(&shared->settled_at, now);
    atomic_store(&shared->holder, division->holder);
    atomic_store(&shared->slice_left, (uint64_t)division->slice_left);
    for (unsigned int i = 0; i < division->count; i++) {
        const struct running *running = &division->lanes[i];
        struct lane *lane = &m->state->lanes[running->lane];
        atomic_store(&lane->left, (uint64_t)(running->left + 0.5));
        atomic_fetch_add(&m->state->clients[lane->client].computed, (uint64_t)running->computed);
        atomic_store_explicit(&lane->done, running->done, memory_order_release);
    }
    division->now = 0.0;
}

void compute_settle(machine *m, unsigned int gpu) {
    uint32_t in_use = atomic_load_explicit(&m->state->lanes_in_use, memory_order_acquire);
    bool settled[STATE_UNITS] = {false};
    int lock, reader;
    if (in_use == 0 || state_lock(m, LOCK_COMPUTE + gpu, &lock) != NVML_SUCCESS) {
        return;
    }
    if (state_lock_reader(m, &reader) == NVML_SUCCESS) {
        for (unsigned int i = 0; i < in_use && i < STATE_MAX_LANES; i++) {
            const struct lane *lane = &m->state->lanes[i];
            if (atomic_load(&lane->used) != 0 && lane->gpu == gpu && !settled[lane->unit]) {
                struct division division;
                settled[lane->unit] = true;
                settle_unit(m, reader, gpu, lane->unit, &division);
            }
        }
        close(reader);
    }
    state_unlock(lock);
}

nvmlReturn_t lane_open(machine *m, const struct lane_owner *owner, unsigned int *taken) {
    int tables, lock, reader;
    nvmlReturn_t result = state_lock(m, LOCK_TABLES, &tables);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = state_lock(m, LOCK_COMPUTE + owner->place.gpu, &lock);
    if (result != NVML_SUCCESS) {
        state_unlock(tables);
        return result;
    }
    result = state_lock_reader(m, &reader);
    for (unsigned int i = 0; result == NVML_SUCCESS; i++) {
        if (i == STATE_MAX_LANES) {
            result = NVML_ERROR_INSUFFICIENT_RESOURCES;
            break;
        }
        struct lane *lane = &m->state->lanes[i];
        if (atomic_load(&lane->used) != 0 && owner_is_alive(m, reader, lane)) {
            continue;
        }
        atomic_store(&lane->used, 0);
        atomic_fetch_add(&lane->turn, 1);
        lane->client = owner->client;
        lane->client_turn = atomic_load(&m->state->clients[owner->client].turn);
        lane->gpu = owner->place.gpu;
        lane->unit = unit_of(&owner->place);
        lane->ceiling = owner->ceiling;
        lane->group = owner->group;
        atomic_store(&lane->issued, 0);
        atomic_store(&lane->done, 0);
        atomic_store(&lane->left, 0);
        if (atomic_load(&m->state->lanes_in_use) <= i) {
            atomic_store(&m->state->lanes_in_use, i + 1);
        }
        atomic_store_explicit(&lane->used, 1, memory_order_release);
        *taken = i;
        break;
    }
    if (result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_RESOURCES) {
        close(reader);
    }
    state_unlock(lock);
    state_unlock(tables);
    return result;
}

void lane_close(machine *m, unsigned int lane) { atomic_store(&m->state->lanes[lane].used, 0); }

bool lane_is_busy(const machine *m, unsigned int lane) {
    const struct lane *shared = &m->state->lanes[lane];
    return atomic_load(&shared->done) < atomic_load(&shared->issued);
}

/* Settles the lane's unit, and hands the caller its lock. */
static nvmlReturn_t settled(machine *m, unsigned int lane, struct division *division, int *lock) {
    unsigned int gpu = m->state->lanes[lane].gpu;
    int reader;
    nvmlReturn_t result = state_lock(m, LOCK_COMPUTE + gpu, lock);
    if (result != NVML_SUCCESS) {
        return result;
    }
    result = state_lock_reader(m, &reader);
    if (result != NVML_SUCCESS) {
        state_unlock(*lock);
        return result;
    }
    settle_unit(m, reader, gpu, m->state->lanes[lane].unit, division);
    close(reader);
    return NVML_SUCCESS;
}

nvmlReturn_t lane_put(machine *m, unsigned int lane, const struct lane_item *item, uint64_t *number) {
    struct division division;
    int lock;
    nvmlReturn_t result = settled(m, lane, &division, &lock);
    if (result != NVML_SUCCESS) {
        return result;
    }
    struct lane *shared = &m->state->lanes[lane];
    uint64_t issued = atomic_load(&shared->issued), done = atomic_load(&shared->done);
    if (issued - done == STATE_LANE_DEPTH) {
        result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    } else {
        shared->items[issued % STATE_LANE_DEPTH] = *item;
        if (issued == done) {
            atomic_store(&shared->left, item->work);
        }
        atomic_store_explicit(&shared->issued, issued + 1, memory_order_release);
        *number = issued;
    }
    state_unlock(lock);
    return result;
}

/* The lane may wait for another device's work, which no other process may be settling. */
static void settle_before(machine *m, const struct lane *lane) {
    uint64_t done = atomic_load(&lane->done);
    uint32_t before = lane->items[done % STATE_LANE_DEPTH].after_lane;
    if (done < atomic_load(&lane->issued) && before < STATE_MAX_LANES && m->state->lanes[before].gpu != lane->gpu) {
        compute_settle(m, m->state->lanes[before].gpu);
    }
}

nvmlReturn_t lane_look(machine *m, unsigned int lane, uint64_t number, struct lane_sight *sight) {
    struct division division;
    int lock;
    settle_before(m, &m->state->lanes[lane]);
    nvmlReturn_t result = settled(m, lane, &division, &lock);
    if (result != NVML_SUCCESS) {
        return result;
    }
    const struct lane *shared = &m->state->lanes[lane];
    *sight = (struct lane_sight){.done = atomic_load(&shared->done) > number};
    if (sight->done) {
        sight->finished_at = shared->items[number % STATE_LANE_DEPTH].finished_at;
    } else {
        divide(&division, FOREVER, lane, number + 1, NULL, NULL);
        bool will_be = false;
        for (unsigned int i = 0; i < division.count; i++) {
            will_be = will_be || (division.lanes[i].lane == lane && division.lanes[i].done > number);
        }
        double wait = division.now * machine_time_scale(m);
        sight->wait = will_be && wait < FOREVER ? (uint64_t)wait : UINT64_MAX;
    }
    state_unlock(lock);
    return NVML_SUCCESS;
}

/* What would have become of the lane by now, had its process lived: nothing of it is kept. */
static bool would_be_busy(machine *m, int reader, const struct lane *lane) {
    struct division division;
    double scale = machine_time_scale(m);
    uint64_t settled_at = atomic_load(&m->state->units[lane->gpu][lane->unit].settled_at);
    gather(m, reader, lane->gpu, lane->unit, lane->client, &division);
    divide(&division, scale > 0.0 ? (double)(monotonic_nanoseconds() - settled_at) / scale : FOREVER, NO_LANE, 0, NULL, NULL);
    for (unsigned int i = 0; i < division.count; i++) {
        if (division.lanes[i].shared == lane && division.lanes[i].done < division.lanes[i].issued) {
            return true;
        }
    }
    return false;
}

bool client_died_at_work(machine *m, unsigned int client) {
    int lock, reader;
    bool busy = false;
    unsigned int gpu = m->state->clients[client].gpu;
    uint32_t in_use = atomic_load_explicit(&m->state->lanes_in_use, memory_order_acquire);
    if (state_lock(m, LOCK_COMPUTE + gpu, &lock) != NVML_SUCCESS) {
        return false;
    }
    if (state_lock_reader(m, &reader) == NVML_SUCCESS) {
        for (unsigned int i = 0; i < in_use && i < STATE_MAX_LANES && !busy; i++) {
            const struct lane *lane = &m->state->lanes[i];
            busy = atomic_load(&lane->used) != 0 && lane->client == client &&
                   lane->client_turn == atomic_load(&m->state->clients[client].turn) && would_be_busy(m, reader, lane);
        }
        close(reader);
    }
    state_unlock(lock);
    return busy;
}

bool client_is_computing(const machine *m, unsigned int client) {
    uint32_t in_use = atomic_load_explicit(&m->state->lanes_in_use, memory_order_acquire);
    for (unsigned int i = 0; i < in_use && i < STATE_MAX_LANES; i++) {
        const struct lane *lane = &m->state->lanes[i];
        if (atomic_load(&lane->used) != 0 && lane->client == client &&
            lane->client_turn == atomic_load(&m->state->clients[client].turn) && lane_is_busy(m, i)) {
            return true;
        }
    }
    return false;
}
