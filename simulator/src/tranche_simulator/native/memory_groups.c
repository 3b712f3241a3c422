#define _GNU_SOURCE
#include "memory_groups.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>

static const long CGROUP2_MAGIC = 0x63677270;

static bool is_group(const char *path, struct stat *status) {
    struct statfs system;
    return statfs(path, &system) == 0 && (long)system.f_type == CGROUP2_MAGIC && stat(path, status) == 0 &&
           S_ISDIR(status->st_mode);
}

bool group_of_folder(const char *path, struct group_chain *chain) {
    struct stat status;
    char place[PATH_MAX];
    memset(chain, 0, sizeof *chain);
    if (!is_group(path, &status) || snprintf(place, sizeof place, "%s", path) >= (int)sizeof place) {
        return false;
    }
    dev_t hierarchy = status.st_dev;
    for (unsigned int depth = 0; depth < GROUP_MAX_DEPTH; depth++) {
        ino_t group = status.st_ino;
        chain->groups[depth] = group;
        if (strlen(place) + sizeof "/.." > sizeof place) {
            break;
        }
        strcat(place, "/..");
        if (!is_group(place, &status) || status.st_dev != hierarchy || status.st_ino == group) {
            break;
        }
    }
    return true;
}

/* "0::/path" in /proc/self/cgroup. */
static bool own_path(char path[PATH_MAX]) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    bool found = false;
    char line[PATH_MAX + 8];
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = '\0';
            found = snprintf(path, PATH_MAX, "%s", line + 3) < PATH_MAX;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

/* The folder of the process's group in one line of /proc/self/mountinfo: "... root mount-point ... - cgroup2 ...". */
static bool folder_in(const char *line, const char *path, char folder[PATH_MAX]) {
    char root[PATH_MAX], place[PATH_MAX];
    if (strstr(line, " - cgroup2 ") == NULL || sscanf(line, "%*d %*d %*s %4095s %4095s", root, place) != 2) {
        return false;
    }
    size_t hidden = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(path, root, hidden) != 0) {
        return false;
    }
    return snprintf(folder, PATH_MAX, "%s%s", place, path + hidden) < PATH_MAX;
}

void group_of_process(struct group_chain *chain) {
    char path[PATH_MAX], folder[PATH_MAX];
    memset(chain, 0, sizeof *chain);
    FILE *file = own_path(path) ? fopen("/proc/self/mountinfo", "re") : NULL;
    char line[2 * PATH_MAX];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (folder_in(line, path, folder) && group_of_folder(folder, chain)) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}
