#include "resources.h"

#include "allocations.h"

void resources_free(CUcontext context) { allocations_free(context); }
