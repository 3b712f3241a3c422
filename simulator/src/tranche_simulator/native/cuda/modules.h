/* Modules: PTX, read for the names of its kernels and their parameters. No instruction is executed; a kernel takes time,
 * as a comment in the text says:
 *
 *     // tranche-sim: NAME time=500us
 *     // tranche-sim: NAME time=param0*2ns
 *     // tranche-sim: NAME time=1ms fault=700
 *
 * NAME is the kernel's. The time is what it takes on a whole GPU that does nothing else: a number with ns, us, ms or s, and with
 * paramN so often as the launch's integer argument N says. A fault is the error in which it ends. Without a comment a kernel takes 10 us.
 */
#ifndef TRANCHE_CUDA_MODULES_H
#define TRANCHE_CUDA_MODULES_H

#include "contexts.h"

enum { MAX_PARAMETERS = 64, NO_PARAMETER = -1 };

struct CUfunc_st {
    CUmodule module;
    char *name;
    double nanoseconds; /* in all, or for each of `times` */
    int times;          /* parameter, or NO_PARAMETER */
    CUresult fault;     /* in which it ends */
    unsigned int parameters;
    struct {
        size_t offset;
        size_t size;
    } layout[MAX_PARAMETERS];
    CUfunction next;
};

struct CUmod_st {
    CUcontext context;
    size_t size;
    CUfunction functions;
    CUmodule next;
};

/* The kernels of a PTX text, in its order. INVALID_PTX: it is none. */
CUresult ptx_read(const char *text, CUfunction *functions);
void functions_free(CUfunction functions);

CUfunction function_of_handle(CUfunction handle);
void modules_free(CUcontext context);

#endif
