/* --format=csv[,noheader][,nounits] */
#include "query.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

bool query_format(const char *text, QueryFormat *format) {
    *format = (QueryFormat){.header = true, .units = true};
    SmiList words;
    if (!text || !smi_split(&words, text)) {
        printf("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n");
        return false;
    }
    bool csv = false;
    for (unsigned i = 0; i < words.count; i++) {
        if (strcmp(words.items[i], "csv") == 0) csv = true;
        else if (strcmp(words.items[i], "noheader") == 0) format->header = false;
        else if (strcmp(words.items[i], "nounits") == 0) format->units = false;
        else {
            smi_bad_option(words.items[i]);
            return false;
        }
    }
    if (!csv) smi_bad_combination();
    return csv;
}

int query_unknown_field(const char *name) {
    printf("Field \"%s\" is not a valid field to query.\n\n", name);
    return SMI_EXIT_USAGE;
}

/* A heading keeps its unit under nounits: that is where a reader of bare numbers finds it. */
void query_print_heading(const char *name, const char *unit, unsigned column) {
    printf("%s%s", column ? ", " : "", name);
    if (unit) printf(" [%s]", unit);
}

void query_print_value(const char *value, const char *unit, unsigned column, const QueryFormat *format) {
    printf("%s%s", column ? ", " : "", value);
    if (unit && format->units && value[0] != '[') printf(" %s", unit);
}

void query_refusal(nvmlReturn_t result, char value[QUERY_VALUE_SIZE]) {
    if (result == NVML_ERROR_NOT_SUPPORTED) snprintf(value, QUERY_VALUE_SIZE, "[N/A]");
    else snprintf(value, QUERY_VALUE_SIZE, "[%s]", nvmlErrorString(result));
}

void query_timestamp(char value[QUERY_VALUE_SIZE]) {
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    size_t length = strftime(value, QUERY_VALUE_SIZE, "%Y/%m/%d %H:%M:%S", &local);
    snprintf(value + length, QUERY_VALUE_SIZE - length, ".%03ld", now.tv_nsec / 1000000);
}
