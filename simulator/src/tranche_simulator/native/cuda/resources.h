/* What ends with a context: its memory, and everything else that programs make in it. */
#ifndef TRANCHE_CUDA_RESOURCES_H
#define TRANCHE_CUDA_RESOURCES_H

#include "contexts.h"

void resources_free(CUcontext context);

#endif
