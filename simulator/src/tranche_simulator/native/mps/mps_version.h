/* What the driver's release decides about MPS. */
#ifndef TRANCHE_MPS_VERSION_H
#define TRANCHE_MPS_VERSION_H

#include <stdbool.h>

/* CUDA's version as a number: 13000. */
int mps_version(void);
/* The driver's main number: 580. */
int mps_driver(void);
/* The commands and the variable for limits of pinned memory came with 495. */
bool mps_has_limits(void);
/* Keys by UUID were ignored at first. Which release heeds them is not documented. */
bool mps_heeds_uuids(void);

#endif
