/* Which release of the driver a machine has, and what follows from it. */
#ifndef TRANCHE_DRIVER_RELEASE_H
#define TRANCHE_DRIVER_RELEASE_H

#include <stddef.h>

#include "state.h"

#define DRIVER_VERSION_SIZE 32

/* Each takes NULL for the machine that TRANCHE_SIM_STATE names, or for no machine. */

/* "580.95.05" */
void driver_version(const machine *m, char version[DRIVER_VERSION_SIZE]);
/* 580 */
unsigned int driver_release(const machine *m);
/* The newest CUDA that the driver serves, as cuDriverGetVersion counts: 13000. */
int driver_cuda(const machine *m);

/* The number by which the state knows a version; 0 for what is none. */
uint64_t driver_number(const char *version);

#endif
