/* The release of the simulated driver. */
#ifndef TRANCHE_SYSTEM_H
#define TRANCHE_SYSTEM_H

const char *simulated_driver_version(void);
/* As cuDriverGetVersion counts: 13000. */
int simulated_cuda_version(void);

#endif
