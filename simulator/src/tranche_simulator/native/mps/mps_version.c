#include "mps/mps_version.h"

#include <stdlib.h>

#include "system.h"

int mps_version(void) { return simulated_cuda_version(); }

int mps_driver(void) { return atoi(simulated_driver_version()); }

bool mps_has_limits(void) { return mps_driver() >= 495; }

bool mps_heeds_uuids(void) { return mps_driver() >= 570; }
