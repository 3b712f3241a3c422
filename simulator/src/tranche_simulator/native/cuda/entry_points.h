/* Functions by name, as cuGetProcAddress finds them. */
#ifndef TRANCHE_CUDA_ENTRY_POINTS_H
#define TRANCHE_CUDA_ENTRY_POINTS_H

#include "cuda_abi.h"

/* `status` is one of CU_GET_PROC_ADDRESS_*. */
CUresult entry_point_named(const char *name, void **function, int version, int *status);

/* The functions that are there and not simulated, up to a row without a name; generated from unsupported_symbols.txt. */
struct unsupported_entry {
    const char *name;
    CUresult (*function)(void);
};
extern const struct unsupported_entry unsupported_entries[];

/* What such a function answers. */
CUresult unsupported_call(const char *function);

#endif
