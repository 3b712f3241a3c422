/* Parsing of the arguments that do not belong to `mig`. */
#ifndef TRANCHE_NVIDIA_SMI_OPTIONS_H
#define TRANCHE_NVIDIA_SMI_OPTIONS_H

#include "smi.h"

/* 0, or the exit code after the sentence was printed. */
int smi_parse(int argc, char **argv, SmiOptions *options);

#endif
