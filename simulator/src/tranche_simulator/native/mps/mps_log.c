#define _GNU_SOURCE
#include "mps/mps_log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *writer = "Other";
static int log_descriptor = -1;
static bool on_screen;

void mps_log_open(const char *name, int descriptor, bool foreground) {
    writer = name;
    log_descriptor = descriptor;
    on_screen = foreground;
}

static void put(int descriptor, const char *line, size_t length) {
    ssize_t written = write(descriptor, line, length);
    (void)written; /* there is no way to report a full log */
}

void mps_log(const char *format, ...) {
    struct timeval now;
    struct tm local;
    gettimeofday(&now, NULL);
    localtime_r(&now.tv_sec, &local);
    char date[32], message[4096], line[4352];
    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &local);
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    int length = snprintf(line, sizeof line, "[%s.%03ld %s %5d] %s\n", date, (long)now.tv_usec / 1000, writer, (int)getpid(),
                          message);
    if (log_descriptor >= 0) {
        put(log_descriptor, line, (size_t)length);
    }
    if (on_screen) {
        put(STDERR_FILENO, line, (size_t)length);
    }
}
