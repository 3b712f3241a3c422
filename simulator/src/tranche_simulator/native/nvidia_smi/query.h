/* CSV output of --query-gpu and --query-compute-apps. */
#ifndef TRANCHE_NVIDIA_SMI_QUERY_H
#define TRANCHE_NVIDIA_SMI_QUERY_H

#include "smi.h"

enum { QUERY_VALUE_SIZE = 288 };

typedef struct {
    bool header, units;
} QueryFormat;

/* false, with the sentence printed, when --format does not name csv. */
bool query_format(const char *text, QueryFormat *format);
int query_unknown_field(const char *name);
void query_print_heading(const char *name, const char *unit, unsigned column);
void query_print_value(const char *value, const char *unit, unsigned column, const QueryFormat *format);
/* What stands in place of a value that the driver refuses. */
void query_refusal(nvmlReturn_t result, char value[QUERY_VALUE_SIZE]);
void query_timestamp(char value[QUERY_VALUE_SIZE]);

#endif
