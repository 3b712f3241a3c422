#include "geometry.h"

static uint32_t span(unsigned int start, unsigned int size) { return ((1u << size) - 1u) << start; }

uint32_t grid_occupied(const struct gpu_state *state) {
    uint32_t occupied = 0;
    for (unsigned int id = 0; id < BOARD_MAX_GI_IDS; id++) {
        if (state->gis[id].live) {
            occupied |= span(state->gis[id].start, state->gis[id].size);
        }
    }
    return occupied;
}

bool gi_start_is_legal(const struct gi_profile *profile, unsigned int start) {
    for (unsigned int i = 0; i < profile->start_count; i++) {
        if (profile->starts[i] == start) {
            return true;
        }
    }
    return false;
}

bool gi_start_is_free(const struct gpu_state *state, const struct gi_profile *profile, unsigned int start) {
    return (grid_occupied(state) & span(start, profile->size)) == 0;
}

static bool excludes(const struct gi_profile *existing, const struct gi_profile *wanted) {
    bool one_media_set = (existing->media || existing->all_media) && (wanted->media || wanted->all_media);
    bool all_media_alone = (existing->all_media && !wanted->no_media) || (wanted->all_media && !existing->no_media);
    return one_media_set || all_media_alone;
}

bool gi_engines_allow(const struct board *board, const struct gpu_state *state, const struct gi_profile *profile) {
    for (unsigned int id = 0; id < BOARD_MAX_GI_IDS; id++) {
        if (state->gis[id].live && excludes(&board->gis[state->gis[id].profile], profile)) {
            return false;
        }
    }
    return true;
}

static unsigned int free_starts(uint32_t occupied, const struct gi_profile *profile) {
    unsigned int count = 0;
    for (unsigned int i = 0; i < profile->start_count; i++) {
        count += (occupied & span(profile->starts[i], profile->size)) == 0;
    }
    return count;
}

unsigned int gi_remaining_capacity(const struct board *board, const struct gpu_state *state,
                                   const struct gi_profile *profile) {
    if (!gi_engines_allow(board, state, profile)) {
        return 0;
    }
    unsigned int existing = 0;
    for (unsigned int id = 0; id < BOARD_MAX_GI_IDS; id++) {
        existing += state->gis[id].live && &board->gis[state->gis[id].profile] == profile;
    }
    if (existing >= profile->max_instances) {
        return 0;
    }
    /* Starts of one profile never overlap each other, so every free one can be filled. */
    unsigned int room = free_starts(grid_occupied(state), profile);
    unsigned int allowed = profile->max_instances - existing;
    return room < allowed ? room : allowed;
}

unsigned int gi_default_start(const struct board *board, const struct gpu_state *state,
                              const struct gi_profile *profile) {
    uint32_t occupied = grid_occupied(state);
    unsigned int best_start = ANY_START;
    unsigned int best_left = 0;
    for (unsigned int i = 0; i < profile->start_count; i++) {
        uint32_t taken = span(profile->starts[i], profile->size);
        if ((occupied & taken) != 0) {
            continue;
        }
        unsigned int left = 0;
        for (unsigned int other = 0; other < board->gi_count; other++) {
            left += free_starts(occupied | taken, &board->gis[other]);
        }
        bool better = left > best_left || (left == best_left && profile->starts[i] < best_start);
        if (best_start == ANY_START || better) {
            best_start = profile->starts[i];
            best_left = left;
        }
    }
    return best_start;
}

unsigned int gi_id_of(const struct board *board, unsigned int swapped, unsigned int start, unsigned int size) {
    for (unsigned int id = 0; id < BOARD_MAX_GI_IDS; id++) {
        const struct gi_slot *slot = &board->slots[swapped][id];
        if (slot->size == size && slot->start == start) {
            return id;
        }
    }
    return BOARD_MAX_GI_IDS;
}

static unsigned int ci_step(const struct ci_profile *ci) {
    unsigned int step = 1;
    while (step < ci->slices) {
        step *= 2;
    }
    return step;
}

unsigned int ci_placements(const struct gi_profile *profile, const struct ci_profile *ci,
                           nvmlComputeInstancePlacement_t *placements) {
    unsigned int count = 0;
    for (unsigned int start = 0; start + ci->slices <= profile->slices; start += ci_step(ci)) {
        if (placements != NULL) {
            placements[count].start = start;
            placements[count].size = ci->slices;
        }
        count++;
    }
    return count;
}

bool ci_start_is_legal(const struct gi_profile *profile, const struct ci_profile *ci, unsigned int start) {
    return start % ci_step(ci) == 0 && start < profile->slices && start + ci->slices <= profile->slices;
}

bool ci_start_is_free(const struct gi_state *gi, const struct ci_profile *ci, unsigned int start) {
    for (unsigned int id = 0; id < STATE_MAX_CIS; id++) {
        const struct ci_state *other = &gi->cis[id];
        if (other->live && start < (unsigned int)other->start + other->size && other->start < start + ci->slices) {
            return false;
        }
    }
    return true;
}

unsigned int ci_default_start(const struct gi_state *gi, const struct gi_profile *profile,
                              const struct ci_profile *ci) {
    for (unsigned int start = 0; start + ci->slices <= profile->slices; start += ci_step(ci)) {
        if (ci_start_is_free(gi, ci, start)) {
            return start;
        }
    }
    return ANY_START;
}

unsigned int ci_remaining_capacity(const struct gi_state *gi, const struct gi_profile *profile,
                                   const struct ci_profile *ci) {
    unsigned int count = 0;
    for (unsigned int start = 0; start + ci->slices <= profile->slices; start += ci_step(ci)) {
        count += ci_start_is_free(gi, ci, start);
    }
    return count;
}

bool gi_has_compute_instance(const struct gi_state *gi) {
    for (unsigned int id = 0; id < STATE_MAX_CIS; id++) {
        if (gi->cis[id].live) {
            return true;
        }
    }
    return false;
}
