/* control.log and server.log, in the lines that the real programs write. */
#ifndef TRANCHE_MPS_LOG_H
#define TRANCHE_MPS_LOG_H

#include <stdbool.h>

/* `writer` is "Control" or "Other"; the log goes to the descriptor, and in the foreground to stderr too. */
void mps_log_open(const char *writer, int descriptor, bool foreground);
void mps_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
