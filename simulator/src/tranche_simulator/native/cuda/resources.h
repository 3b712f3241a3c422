/* What ends with a context: its memory and, of whatever else programs make in it, everything. */
#ifndef TRANCHE_CUDA_RESOURCES_H
#define TRANCHE_CUDA_RESOURCES_H

#include "contexts.h"

void resources_free(CUcontext context);

#endif
