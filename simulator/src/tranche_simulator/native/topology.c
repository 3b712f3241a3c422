#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "session.h"

enum { BITS_PER_WORD = 8 * sizeof(unsigned long) };
enum { NVLINK_DEVICE_SWITCH = 2 };
enum { FIELD_NVLINK_LINK_COUNT = 91 };
enum { VALUE_UNSIGNED_INT = 1 };

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(node != NULL);
    *node = target.record->numa_node;
    return NVML_SUCCESS;
}

/* Which host processors are near is the host's business, not the simulated machine's: all of them. */
static nvmlReturn_t all_cpus(unsigned int words, unsigned long *set) {
    REQUIRE(set != NULL && words > 0);
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    memset(set, 0, words * sizeof *set);
    for (long cpu = 0; cpu < cpus && (unsigned long)cpu < (unsigned long)words * BITS_PER_WORD; cpu++) {
        set[cpu / BITS_PER_WORD] |= 1ul << (cpu % BITS_PER_WORD);
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set) {
    struct target target;
    ENTER_DEVICE(device, &target);
    return all_cpus(words, set);
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                 unsigned int scope) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(scope < 2);
    return all_cpus(words, set);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *nodes,
                                         unsigned int scope) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(nodes != NULL && words > 0 && scope < 2);
    memset(nodes, 0, words * sizeof *nodes);
    if (target.record->numa_node < words * BITS_PER_WORD) {
        nodes[target.record->numa_node / BITS_PER_WORD] |= 1ul << (target.record->numa_node % BITS_PER_WORD);
    }
    return NVML_SUCCESS;
}

static unsigned int level_between(const struct gpu_record *one, const struct gpu_record *other) {
    if (one == other) {
        return NVML_TOPOLOGY_INTERNAL;
    }
    return one->numa_node == other->numa_node ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned int *level) {
    struct target first;
    struct target second;
    ENTER_GPU(one, &first);
    ENTER_GPU(other, &second);
    REQUIRE(level != NULL);
    *level = level_between(first.record, second.record);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level, unsigned int *count,
                                              nvmlDevice_t *devices) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(count != NULL);
    unsigned int room = devices != NULL ? *count : 0;
    *count = 0;
    for (unsigned int i = 0; i < target.view->count; i++) {
        unsigned int gpu = target.view->gpus[i];
        if (gpu == target.place.gpu || level_between(target.record, &target.m->state->gpus[gpu]) != level) {
            continue;
        }
        if (*count < room) {
            devices[*count] = device_handle(gpu);
        }
        (*count)++;
    }
    return devices != NULL && *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices) {
    const struct session *session;
    ENTER(&session);
    (void)cpu; /* every processor is near every GPU, see all_cpus */
    REQUIRE(count != NULL);
    unsigned int room = devices != NULL ? *count : 0;
    *count = session->view.count;
    for (unsigned int i = 0; i < *count && i < room; i++) {
        devices[i] = device_handle(session->view.gpus[i]);
    }
    return devices != NULL && *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned int capability,
                                    unsigned int *status) {
    enum { CAPABILITY_COUNT = 6, STATUS_OK = 0, STATUS_DISABLED_BY_MIG = 5 };
    struct target first;
    struct target second;
    ENTER_GPU(one, &first);
    ENTER_GPU(other, &second);
    REQUIRE(status != NULL && capability < CAPABILITY_COUNT);
    bool mig = first.state.mig_current || second.state.mig_current;
    *status = mig ? STATUS_DISABLED_BY_MIG : STATUS_OK;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *same) {
    struct target first;
    struct target second;
    ENTER_GPU(one, &first);
    ENTER_GPU(other, &second);
    REQUIRE(same != NULL);
    *same = first.record == second.record;
    return NVML_SUCCESS;
}

/* NVLink runs between the GPUs of a machine that has several, over switches. MIG mode turns it off. */
static unsigned int links_of(const struct target *target) {
    return target->m->state->gpu_count > 1 ? target->board->nvlinks : 0;
}

static nvmlReturn_t enter_link(const char *function, nvmlDevice_t device, unsigned int link, struct target *target) {
    nvmlReturn_t result = enter_gpu(function, device, target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (target->board->nvlinks == 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    return link < target->board->nvlinks ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active) {
    struct target target;
    nvmlReturn_t result = enter_link(__func__, device, link, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    REQUIRE(active != NULL);
    *active = link < links_of(&target) && !target.state.mig_current ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *type) {
    struct target target;
    nvmlReturn_t result = enter_link(__func__, device, link, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    REQUIRE(type != NULL);
    *type = NVLINK_DEVICE_SWITCH;
    return NVML_SUCCESS;
}

/* Field values are read one by one; only the number of NVLinks is simulated. */
NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(values != NULL && count > 0);
    for (int i = 0; i < count; i++) {
        bool links = values[i].fieldId == FIELD_NVLINK_LINK_COUNT && !target.place.is_mig;
        values[i].timestamp = 0;
        values[i].latencyUsec = 0;
        values[i].valueType = VALUE_UNSIGNED_INT;
        values[i].nvmlReturn = links ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[i].value.ullVal = 0;
        values[i].value.uiVal = links ? links_of(&target) : 0;
    }
    return NVML_SUCCESS;
}

#define PCIE_READING(function, reading)                                         \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *value);   \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *value) {           \
        struct target target;                                                   \
        ENTER_GPU(device, &target);                                             \
        REQUIRE(value != NULL);                                                 \
        *value = (reading);                                                     \
        return NVML_SUCCESS;                                                    \
    }

PCIE_READING(nvmlDeviceGetCurrPcieLinkGeneration, target.board->pcie_generation)
PCIE_READING(nvmlDeviceGetMaxPcieLinkGeneration, target.board->pcie_generation)
PCIE_READING(nvmlDeviceGetGpuMaxPcieLinkGeneration, target.board->pcie_generation)
PCIE_READING(nvmlDeviceGetCurrPcieLinkWidth, 16)
PCIE_READING(nvmlDeviceGetMaxPcieLinkWidth, 16)
PCIE_READING(nvmlDeviceGetPcieReplayCounter, 0)

/* Not a member of an NVLink fabric that spans machines. */
NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(info != NULL);
    memset(info, 0, sizeof *info);
    return NVML_SUCCESS;
}
