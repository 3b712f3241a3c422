#include "modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "account.h"
#include "streams.h"

static CUmodule all;

CUfunction function_of_handle(CUfunction handle) {
    for (CUmodule module = all; module != NULL; module = module->next) {
        for (CUfunction function = module->functions; function != NULL; function = function->next) {
            if (function == handle) {
                return function;
            }
        }
    }
    return NULL;
}

static bool is_known(CUmodule handle) {
    CUmodule module = all;
    while (module != NULL && module != handle) {
        module = module->next;
    }
    return module != NULL && handle != NULL;
}

static void unload(CUmodule module) {
    for (CUmodule *place = &all; *place != NULL; place = &(*place)->next) {
        if (*place == module) {
            *place = module->next;
            break;
        }
    }
    account_give(module->context->device, module->size);
    functions_free(module->functions);
    free(module);
}

void modules_free(CUcontext context) {
    for (CUmodule module = all, next; module != NULL; module = next) {
        next = module->next;
        if (module->context == context) {
            unload(module);
        }
    }
}

/* A module takes as much of the device's memory as its text is long. */
static CUresult load(CUmodule *loaded, const char *image) {
    REQUIRE_VALUE(loaded != NULL && image != NULL);
    static const unsigned char FAT_BINARY[4] = {0x50, 0xED, 0x55, 0xBA};
    if (memcmp(image, "\177ELF", 4) == 0 || memcmp(image, FAT_BINARY, 4) == 0) {
        return CUDA_ERROR_INVALID_IMAGE; /* machine code: nothing here could run it */
    }
    CUmodule module = calloc(1, sizeof *module);
    if (module == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->context = context_current();
    module->size = strlen(image) + 1;
    CUresult result = ptx_read(image, &module->functions);
    if (result == CUDA_SUCCESS) {
        result = account_take(module->context->device, module->size);
    }
    if (result != CUDA_SUCCESS) {
        functions_free(module->functions);
        free(module);
        return result;
    }
    for (CUfunction function = module->functions; function != NULL; function = function->next) {
        function->module = module;
    }
    module->next = all;
    all = module;
    *loaded = module;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER_CONTEXT();
    return load(module, image);
}

/* The options of its compiler make no difference. */
CUDA_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options,
                                     void **values) {
    (void)count;
    (void)options;
    (void)values;
    ENTER_CONTEXT();
    return load(module, image);
}

CUDA_API CUresult cuModuleLoad(CUmodule *module, const char *path) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(path != NULL);
    enum { LARGEST = 1 << 24 };
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    char *text = calloc(1, LARGEST + 1);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (text != NULL) {
        size_t length = fread(text, 1, LARGEST, file);
        result = length >= 4 ? load(module, text) : CUDA_ERROR_INVALID_IMAGE;
        free(text);
    }
    fclose(file);
    return result;
}

CUDA_API CUresult cuModuleUnload(CUmodule module) {
    ENTER_CONTEXT();
    if (!is_known(module)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = context_drain(module->context);
    if (result == CUDA_SUCCESS) {
        unload(module);
    }
    return result;
}

CUDA_API CUresult cuModuleGetFunction(CUfunction *found, CUmodule module, const char *name) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(found != NULL && name != NULL);
    if (!is_known(module)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (CUfunction function = module->functions; function != NULL; function = function->next) {
        if (strcmp(function->name, name) == 0) {
            *found = function;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUDA_API CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module) {
    ENTER_CONTEXT();
    REQUIRE_VALUE(count != NULL && is_known(module));
    *count = 0;
    for (CUfunction function = module->functions; function != NULL; function = function->next) {
        (*count)++;
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleGetLoadingMode(int *mode) {
    enum { LAZY = 2 };
    REQUIRE_VALUE(mode != NULL);
    *mode = LAZY;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetModule(CUmodule *module, CUfunction handle) {
    ENTER_CONTEXT();
    CUfunction function = function_of_handle(handle);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    REQUIRE_VALUE(module != NULL);
    *module = function->module;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetName(const char **name, CUfunction handle) {
    ENTER_CONTEXT();
    CUfunction function = function_of_handle(handle);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    REQUIRE_VALUE(name != NULL);
    *name = function->name;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size) {
    ENTER_CONTEXT();
    CUfunction function = function_of_handle(handle);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    REQUIRE_VALUE(offset != NULL && index < function->parameters);
    *offset = function->layout[index].offset;
    if (size != NULL) {
        *size = function->layout[index].size;
    }
    return CUDA_SUCCESS;
}

/* Attributes by the driver's numbers; those that are not here are 0. */
CUDA_API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle) {
    enum { MAX_THREADS = 0, REGISTERS = 4, PTX_VERSION = 5, BINARY_VERSION = 6, ATTRIBUTE_COUNT = 18 };
    ENTER_CONTEXT();
    if (function_of_handle(handle) == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    REQUIRE_VALUE(value != NULL && attribute >= 0 && attribute < ATTRIBUTE_COUNT);
    const struct board *board = context_current()->device->board;
    int capability = board->cc_major * 10 + board->cc_minor;
    *value = attribute == MAX_THREADS   ? 1024
             : attribute == REGISTERS   ? 32
             : attribute == PTX_VERSION || attribute == BINARY_VERSION ? capability
                                                                         : 0;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
    (void)attribute;
    (void)value;
    ENTER_CONTEXT();
    return function_of_handle(handle) == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncSetCacheConfig(CUfunction handle, int config) {
    (void)config;
    ENTER_CONTEXT();
    return function_of_handle(handle) == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
