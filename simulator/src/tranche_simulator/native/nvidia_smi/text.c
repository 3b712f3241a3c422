/* Arguments, numbers and the sentences about bad arguments. */
#include "smi.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool smi_split(SmiList *list, const char *text) {
    list->count = 0;
    if (strlen(text) >= sizeof list->text) return false;
    strcpy(list->text, text);
    char *rest = NULL;
    for (char *item = strtok_r(list->text, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        if (list->count == SMI_MAX_LIST) return false;
        while (*item == ' ') item++;
        list->items[list->count++] = item;
    }
    return list->count > 0;
}

bool smi_number(const char *text, unsigned *value) {
    if (*text < '0' || *text > '9') return false;
    char *end = NULL;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (errno || *end || number > UINT_MAX) return false;
    *value = (unsigned)number;
    return true;
}

bool smi_selects(const SmiList *ids, unsigned id) {
    if (!ids) return true;
    for (unsigned i = 0; i < ids->count; i++) {
        unsigned wanted;
        if (smi_number(ids->items[i], &wanted) && wanted == id) return true;
    }
    return false;
}

unsigned long long smi_mib(unsigned long long bytes) { return bytes >> 20; }

int smi_exit_code(nvmlReturn_t result) { return (int)result < SMI_EXIT_OTHER ? (int)result : SMI_EXIT_OTHER; }

int smi_bad_option(const char *option) {
    printf("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h' for help.\n", option);
    return SMI_EXIT_USAGE;
}

int smi_missing_value(const char *option) {
    printf("ERROR: Option %s is missing its value. Please run 'nvidia-smi -h' for help.\n", option);
    return SMI_EXIT_USAGE;
}

int smi_bad_combination(void) {
    printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
    return SMI_EXIT_USAGE;
}

void smi_rule(unsigned width) {
    putchar('+');
    for (unsigned i = 0; i < width; i++) putchar('-');
    puts("+");
}

const char *smi_value(int argc, char **argv, int *at, const char *name) {
    size_t length = strlen(name);
    if (strncmp(argv[*at], name, length) != 0) return NULL;
    if (argv[*at][length] == '=') return argv[*at] + length + 1;
    return argv[*at][length] == '\0' && *at + 1 < argc ? argv[++*at] : NULL;
}
