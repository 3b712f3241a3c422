#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "modules.h"

static const double DEFAULT_NANOSECONDS = 10e3;

static const char *skip_space(const char *text) {
    while (isspace((unsigned char)*text)) {
        text++;
    }
    return text;
}

static bool is_name(char letter) { return isalnum((unsigned char)letter) || letter == '_' || letter == '$'; }

static size_t name_length(const char *text) {
    size_t length = 0;
    while (is_name(text[length])) {
        length++;
    }
    return length;
}

/* Bytes of a PTX type such as ".u64". */
static size_t type_size(const char *type) {
    static const struct {
        const char *name;
        size_t size;
    } types[] = {{".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2}, {".s16", 2}, {".f16", 2}, {".b32", 4},
                 {".u32", 4}, {".s32", 4}, {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8}};
    for (unsigned int i = 0; i < sizeof types / sizeof types[0]; i++) {
        size_t length = strlen(types[i].name);
        if (strncmp(type, types[i].name, length) == 0 && !is_name(type[length])) {
            return types[i].size;
        }
    }
    return 0;
}

/* ".param .align 8 .b8 name[16]": attributes, a type, a name, perhaps a number of elements. */
static void read_parameter(CUfunction function, const char *text, const char *end) {
    size_t size = 0, alignment = 0, elements = 1;
    for (const char *at = text; at < end; at++) {
        if (*at == '.' && type_size(at) != 0) {
            size = type_size(at);
        } else if (strncmp(at, ".align", 6) == 0) {
            alignment = strtoul(at + 6, NULL, 10);
        } else if (*at == '[') {
            elements = strtoul(at + 1, NULL, 10);
        }
    }
    if (size == 0 || function->parameters == MAX_PARAMETERS) {
        return;
    }
    alignment = alignment != 0 ? alignment : size;
    size_t offset = 0;
    if (function->parameters > 0) {
        unsigned int last = function->parameters - 1;
        offset = function->layout[last].offset + function->layout[last].size;
    }
    function->layout[function->parameters].offset = (offset + alignment - 1) / alignment * alignment;
    function->layout[function->parameters].size = size * elements;
    function->parameters++;
}

static void read_parameters(CUfunction function, const char *text) {
    text = skip_space(text);
    const char *close = *text == '(' ? strchr(text, ')') : NULL;
    while (close != NULL && (text = strstr(text, ".param")) != NULL && text < close) {
        text += strlen(".param");
        const char *end = strpbrk(text, ",)");
        read_parameter(function, text, end);
        text = end;
    }
}

static double unit_nanoseconds(const char *unit) {
    return strcmp(unit, "s") == 0 ? 1e9 : strcmp(unit, "ms") == 0 ? 1e6 : strcmp(unit, "us") == 0 ? 1e3 : 1.0;
}

static void read_word(CUfunction function, const char *word) {
    int parameter;
    double number = 1.0;
    char unit[3] = "ns";
    if (sscanf(word, "time=param%d*%lf%2[a-z]", &parameter, &number, unit) >= 1) {
        function->times = parameter;
        function->nanoseconds = number * unit_nanoseconds(unit);
    } else if (sscanf(word, "time=%lf%2[a-z]", &number, unit) == 2) {
        function->times = NO_PARAMETER;
        function->nanoseconds = number * unit_nanoseconds(unit);
    } else {
        int fault;
        if (sscanf(word, "fault=%d", &fault) == 1) {
            function->fault = (CUresult)fault;
        }
    }
}

/* What comments of the text say about the kernel. */
static void read_comments(CUfunction function, const char *text) {
    static const char MARK[] = "// tranche-sim:";
    while ((text = strstr(text, MARK)) != NULL) {
        text += strlen(MARK);
        char line[256];
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        char *rest = NULL;
        const char *name = strtok_r(line, " \t\r", &rest);
        if (name == NULL || strcmp(name, function->name) != 0) {
            continue;
        }
        for (const char *word; (word = strtok_r(NULL, " \t\r", &rest)) != NULL;) {
            read_word(function, word);
        }
    }
}

static CUfunction read_function(const char *text, const char *entry) {
    const char *name = skip_space(entry + strlen(".entry"));
    size_t length = name_length(name);
    CUfunction function = length > 0 ? calloc(1, sizeof *function) : NULL;
    if (function == NULL) {
        return NULL;
    }
    function->name = strndup(name, length);
    function->nanoseconds = DEFAULT_NANOSECONDS;
    function->times = NO_PARAMETER;
    if (function->name == NULL) {
        free(function);
        return NULL;
    }
    read_parameters(function, name + length);
    read_comments(function, text);
    return function;
}

CUresult ptx_read(const char *text, CUfunction *functions) {
    *functions = NULL;
    if (strstr(text, ".version") == NULL || strstr(text, ".target") == NULL) {
        return CUDA_ERROR_INVALID_IMAGE; /* no text at all, to the driver */
    }
    CUfunction *place = functions;
    for (const char *entry = text; (entry = strstr(entry, ".entry")) != NULL; entry++) {
        CUfunction function = read_function(text, entry);
        if (function == NULL) {
            functions_free(*functions);
            *functions = NULL;
            return CUDA_ERROR_INVALID_PTX;
        }
        *place = function;
        place = &function->next;
    }
    return CUDA_SUCCESS;
}

void functions_free(CUfunction functions) {
    for (CUfunction next; functions != NULL; functions = next) {
        next = functions->next;
        free(functions->name);
        free(functions);
    }
}
