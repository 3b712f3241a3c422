/* Functions by name, as cuGetProcAddress finds them. */
#ifndef TRANCHE_CUDA_ENTRY_POINTS_H
#define TRANCHE_CUDA_ENTRY_POINTS_H

#include "cuda_abi.h"

/* `status` is one of CU_GET_PROC_ADDRESS_*. */
CUresult entry_point_named(const char *name, void **function, int version, int *status);

#endif
