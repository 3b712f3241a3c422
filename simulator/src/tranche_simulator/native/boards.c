#include "boards.h"

#include <stddef.h>
#include <string.h>

const struct board *board_find(const char *key) {
    for (unsigned int i = 0; i < board_table_size; i++) {
        if (strcmp(board_table[i].key, key) == 0) {
            return &board_table[i];
        }
    }
    return NULL;
}

const struct gi_profile *board_profile_by_id(const struct board *board, unsigned int id) {
    for (unsigned int i = 0; i < board->gi_count; i++) {
        if (board->gis[i].id == id) {
            return &board->gis[i];
        }
    }
    return NULL;
}

const struct gi_profile *board_profile_by_enum(const struct board *board, unsigned int value) {
    for (unsigned int i = 0; i < board->gi_count; i++) {
        if (board->gis[i].enum_value == value) {
            return &board->gis[i];
        }
    }
    return NULL;
}

const struct ci_profile *gi_profile_ci(const struct gi_profile *profile, unsigned int id) {
    for (unsigned int i = 0; i < profile->ci_count; i++) {
        if (profile->cis[i].id == id) {
            return &profile->cis[i];
        }
    }
    return NULL;
}

struct pci_ids board_pci_ids(const struct board *board, uint32_t device) {
    for (unsigned int i = 0; i < board->pci_count; i++) {
        if (board->pci[i].device == device) {
            return board->pci[i];
        }
    }
    return (struct pci_ids){.device = device, .subsystem = 0x10DEu, .class_code = 0x030200u};
}
