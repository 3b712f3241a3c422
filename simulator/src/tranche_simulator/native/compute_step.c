#include "compute_step.h"

static const double NOTHING = 0.5; /* nanoseconds: what is left of a piece of work when it is done */

static const struct lane_item *head(const struct running *lane) {
    return &lane->shared->items[lane->done % STATE_LANE_DEPTH];
}

static bool has_work(const struct running *lane) { return lane->done < lane->issued; }

/* What the first item waits for is done, or its lane is gone. */
static bool may_begin(const struct division *division, const struct running *lane) {
    const struct lane_item *item = head(lane);
    if (item->after_lane == NO_LANE) {
        return true;
    }
    for (unsigned int i = 0; i < division->count; i++) {
        if (division->lanes[i].lane == item->after_lane && division->lanes[i].shared->turn == item->after_turn) {
            return division->lanes[i].done > item->after_item;
        }
    }
    const struct lane *other = &division->state->lanes[item->after_lane];
    return atomic_load(&other->used) == 0 || atomic_load(&other->turn) != item->after_turn ||
           atomic_load(&other->done) > item->after_item;
}

static bool can_run(const struct division *division, const struct running *lane) {
    return has_work(lane) && may_begin(division, lane);
}

static double smaller(double left, double right) { return left < right ? left : right; }

/* Multiprocessors that a lane could use in this unit. */
static double demand(const struct division *division, const struct running *lane) {
    double most = smaller(head(lane)->width, division->multiprocessors);
    uint32_t ceiling = lane->shared->ceiling;
    return ceiling != 0 ? smaller(most, ceiling) : most;
}

/* Pieces without work of their own are done when their turn in the lane comes. True when there was one. */
static bool finish_empty(struct division *division, void (*finished)(void *, struct running *, uint64_t, double),
                         void *context) {
    bool any = false;
    for (unsigned int i = 0; i < division->count; i++) {
        struct running *lane = &division->lanes[i];
        while (can_run(division, lane) && lane->left < NOTHING) {
            if (finished != NULL) {
                finished(context, lane, lane->done, division->now);
            }
            lane->done++;
            lane->left = has_work(lane) ? (double)head(lane)->work : 0.0;
            any = true;
        }
    }
    return any;
}

/* The group whose turn it is; false when none can run. `others`: more than one could. */
static bool choose_group(struct division *division, bool *others) {
    uint64_t lowest = UINT64_MAX, next = UINT64_MAX, first = 0;
    bool any = false, holder_runs = false;
    *others = false;
    for (unsigned int i = 0; i < division->count; i++) {
        const struct running *lane = &division->lanes[i];
        if (!can_run(division, lane)) {
            continue;
        }
        uint64_t group = lane->shared->group;
        *others = *others || (any && group != first);
        first = any ? first : group;
        any = true;
        holder_runs = holder_runs || group == division->holder;
        lowest = group < lowest ? group : lowest;
        next = group > division->holder && group < next ? group : next;
    }
    if (any && (!holder_runs || division->slice_left < NOTHING)) {
        division->holder = next != UINT64_MAX ? next : lowest;
        division->slice_left = division->slice;
    }
    return any;
}

/* Lets the holder's lanes run at the same time, for as long as nothing changes, `most` at the longest. */
static double run_holder(struct division *division, double most) {
    double wanted = 0.0;
    for (unsigned int i = 0; i < division->count; i++) {
        const struct running *lane = &division->lanes[i];
        if (can_run(division, lane) && lane->shared->group == division->holder) {
            wanted += demand(division, lane);
        }
    }
    double share = wanted > division->multiprocessors ? division->multiprocessors / wanted : 1.0;
    double step = most;
    for (unsigned int i = 0; i < division->count; i++) {
        const struct running *lane = &division->lanes[i];
        if (can_run(division, lane) && lane->shared->group == division->holder) {
            double speed = demand(division, lane) * share / head(lane)->width;
            step = smaller(step, lane->left / speed);
        }
    }
    bool running[STATE_MAX_LANES];
    for (unsigned int i = 0; i < division->count; i++) {
        running[i] = can_run(division, &division->lanes[i]) && division->lanes[i].shared->group == division->holder;
    }
    for (unsigned int i = 0; i < division->count; i++) {
        struct running *lane = &division->lanes[i];
        if (running[i]) {
            double given = demand(division, lane) * share * step;
            lane->left -= given / head(lane)->width;
            lane->computed += given / division->whole;
        }
    }
    return step;
}

void divide(struct division *division, double until, unsigned int watched, uint64_t items,
            void (*finished)(void *context, struct running *lane, uint64_t item, double at), void *context) {
    for (;;) {
        while (finish_empty(division, finished, context)) {
        }
        for (unsigned int i = 0; i < division->count; i++) {
            if (division->lanes[i].lane == watched && division->lanes[i].done >= items) {
                return;
            }
        }
        bool others;
        if (division->now >= until || !choose_group(division, &others)) {
            return;
        }
        double most = until - division->now;
        double step = run_holder(division, others ? smaller(most, division->slice_left) : most);
        division->now += step;
        division->slice_left = others ? division->slice_left - step : division->slice;
    }
}
