#include <stdlib.h>

#include "launches.h"

/* Graphs of kernels: a launch runs them one after the other, each after those it depends on. */

enum node_kind { NODE_KERNEL = 0, NODE_EMPTY = 5 }; /* as the driver numbers them */

struct CUgraphNode_st {
    enum node_kind kind;
    struct launch launch;
    CUgraphNode next;
};

struct CUgraph_st {
    CUgraphNode nodes, *end; /* in the order in which they were added: a node depends on older ones only */
    size_t count;
    CUgraph next;
};

struct CUgraphExec_st {
    struct launch *launches;
    size_t count;
    CUgraphExec next;
};

static CUgraph graphs;
static CUgraphExec executables;

static bool is_graph(CUgraph handle) {
    CUgraph graph = graphs;
    while (graph != NULL && graph != handle) {
        graph = graph->next;
    }
    return graph != NULL;
}

static bool is_executable(CUgraphExec handle) {
    CUgraphExec executable = executables;
    while (executable != NULL && executable != handle) {
        executable = executable->next;
    }
    return executable != NULL;
}

CUDA_API CUresult cuGraphCreate(CUgraph *created, unsigned int flags) {
    ENTER_DRIVER();
    REQUIRE_VALUE(created != NULL && flags == 0);
    CUgraph graph = calloc(1, sizeof *graph);
    if (graph == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    graph->end = &graph->nodes;
    graph->next = graphs;
    graphs = graph;
    *created = graph;
    return CUDA_SUCCESS;
}

static CUresult add(CUgraph graph, enum node_kind kind, const struct launch *launch, CUgraphNode *added) {
    CUgraphNode node = calloc(1, sizeof *node);
    if (node == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    node->kind = kind;
    if (launch != NULL) {
        node->launch = *launch;
    }
    *graph->end = node;
    graph->end = &node->next;
    graph->count++;
    *added = node;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *added, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                          const CUDA_KERNEL_NODE_PARAMS *parameters) {
    (void)dependencies;
    (void)count;
    ENTER_CONTEXT();
    REQUIRE_VALUE(added != NULL && is_graph(graph) && parameters != NULL);
    const unsigned int grid[] = {parameters->gridDimX, parameters->gridDimY, parameters->gridDimZ};
    const unsigned int block[] = {parameters->blockDimX, parameters->blockDimY, parameters->blockDimZ};
    struct launch launch;
    CUresult result =
        launch_prepare(parameters->func, grid, block, parameters->kernelParams, parameters->extra, &launch);
    return result == CUDA_SUCCESS ? add(graph, NODE_KERNEL, &launch, added) : result;
}

CUDA_API CUresult cuGraphAddEmptyNode(CUgraphNode *added, CUgraph graph, const CUgraphNode *dependencies, size_t count) {
    (void)dependencies;
    (void)count;
    ENTER_DRIVER();
    REQUIRE_VALUE(added != NULL && is_graph(graph));
    return add(graph, NODE_EMPTY, NULL, added);
}

CUDA_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER_DRIVER();
    REQUIRE_VALUE(is_graph(graph) && count != NULL);
    size_t room = nodes != NULL ? *count : 0, given = 0;
    for (CUgraphNode node = graph->nodes; node != NULL && given < room; node = node->next) {
        nodes[given++] = node;
    }
    *count = nodes != NULL ? given : graph->count;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphNodeGetType(CUgraphNode node, int *kind) {
    ENTER_DRIVER();
    REQUIRE_VALUE(node != NULL && kind != NULL);
    *kind = (int)node->kind;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
    (void)flags;
    ENTER_CONTEXT();
    REQUIRE_VALUE(made != NULL && is_graph(graph));
    CUgraphExec executable = calloc(1, sizeof *executable);
    struct launch *launches = calloc(graph->count + 1, sizeof *launches);
    if (executable == NULL || launches == NULL) {
        free(executable);
        free(launches);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    executable->launches = launches;
    for (CUgraphNode node = graph->nodes; node != NULL; node = node->next) {
        if (node->kind == NODE_KERNEL) {
            launches[executable->count++] = node->launch;
        }
    }
    executable->next = executables;
    executables = executable;
    *made = executable;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
    ENTER_CONTEXT();
    return !is_executable(executable) || stream_of_handle(stream) == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
    ENTER_CONTEXT();
    CUstream stream = stream_of_handle(handle);
    if (!is_executable(executable) || stream == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < executable->count && result == CUDA_SUCCESS; i++) {
        bool loaded = function_of_handle(executable->launches[i].function) != NULL;
        result = loaded ? launch_put(&executable->launches[i], stream) : CUDA_ERROR_INVALID_HANDLE;
    }
    return result;
}

CUDA_API CUresult cuGraphExecDestroy(CUgraphExec executable) {
    ENTER_DRIVER();
    for (CUgraphExec *place = &executables; *place != NULL; place = &(*place)->next) {
        if (*place == executable) {
            *place = executable->next;
            free(executable->launches);
            free(executable);
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGraphDestroy(CUgraph graph) {
    ENTER_DRIVER();
    for (CUgraph *place = &graphs; *place != NULL; place = &(*place)->next) {
        if (*place == graph) {
            *place = graph->next;
            for (CUgraphNode node = graph->nodes, next; node != NULL; node = next) {
                next = node->next;
                free(node);
            }
            free(graph);
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}
