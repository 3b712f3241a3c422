/* Control groups of version 2, by the numbers that the kernel gives them: the same in every mount and every namespace. */
#ifndef TRANCHE_MEMORY_GROUPS_H
#define TRANCHE_MEMORY_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#define GROUP_MAX_DEPTH 12u

/* A group and those above it, itself first; the rest is 0. More than GROUP_MAX_DEPTH are not known. */
struct group_chain {
    uint64_t groups[GROUP_MAX_DEPTH];
};

/* The group of a folder; false when that is no control group of version 2. */
bool group_of_folder(const char *path, struct group_chain *chain);
/* The group of this process; all 0 if no hierarchy of version 2 is mounted. */
void group_of_process(struct group_chain *chain);

#endif
