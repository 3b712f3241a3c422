/* What the driver's release decides about MPS. */
#ifndef TRANCHE_MPS_VERSION_H
#define TRANCHE_MPS_VERSION_H

#include "driver_release.h"

/* The commands and the variable for limits of pinned memory came with 495. */
static inline bool mps_has_limits(const machine *m) { return driver_release(m) >= 495; }

/* Named servers and namespaces. */
static inline bool mps_has_version_3(const machine *m) { return driver_release(m) >= 615; }

/* Keys by UUID were ignored at first. Which release heeds them is not documented. */
static inline bool mps_heeds_uuids(const machine *m) { return driver_release(m) >= 570; }

#endif
