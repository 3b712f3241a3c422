/* The files of MIG capabilities, which the driver shows under /proc/driver/nvidia/capabilities. */
#ifndef TRANCHE_CAPABILITY_FILES_H
#define TRANCHE_CAPABILITY_FILES_H

#include "state.h"

#define CAPABILITIES_FOLDER "capabilities"

/* Makes the folder `capabilities` beside the state file show the instances of one GPU; does nothing if that folder
 * does not exist. The caller holds the GPU's lock. Not atomic: a process killed here leaves files for the next change to fix. */
void capability_files_update(const machine *m, unsigned int gpu, const struct gpu_state *state);

#endif
