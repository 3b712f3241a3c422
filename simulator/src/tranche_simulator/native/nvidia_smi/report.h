/* nvidia-smi -q: one section after another, each a heading and lines `name : value` in one column. */
#ifndef TRANCHE_NVIDIA_SMI_REPORT_H
#define TRANCHE_NVIDIA_SMI_REPORT_H

#include "smi.h"

/* `depth` counts four spaces each. */
void report_heading(unsigned depth, const char *name);
void report_text(unsigned depth, const char *name, const char *value);
/* The number with its unit; N/A when the call that read it failed. */
void report_number(unsigned depth, const char *name, nvmlReturn_t result, unsigned long long value, const char *unit);
void report_enabled(unsigned depth, const char *name, nvmlReturn_t result, unsigned state);

/* report_state.c: what changes from moment to moment, and can be asked for alone with -d. */
void report_memory(const SmiGpu *gpu);
void report_compute_mode(const SmiGpu *gpu);
void report_utilization(const SmiGpu *gpu);
void report_ecc(const SmiGpu *gpu);
void report_remapped_rows(const SmiGpu *gpu);
void report_temperature(const SmiGpu *gpu);
void report_power(const SmiGpu *gpu);
void report_clocks(const SmiGpu *gpu);
void report_processes(const SmiGpu *gpu);
void report_mig_devices(const SmiGpu *gpu);

#endif
