#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "identity.h"
#include "mig_devices.h"

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    const struct session *session;
    ENTER(&session);
    REQUIRE(count != NULL);
    *count = session->view.count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

/* Hands out a handle: a GPU that fell off the bus gives none. */
static nvmlReturn_t give_handle(const char *function, const struct session *session, const struct device_place *place,
                                nvmlDevice_t *device) {
    nvmlReturn_t result = fault_check(session->m, function, place->gpu);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (atomic_load(&session->m->state->gpus[place->gpu].lost) != 0) {
        return NVML_ERROR_GPU_IS_LOST;
    }
    *device = place->is_mig ? mig_handle(place->gpu, place->gi, place->ci) : device_handle(place->gpu);
    return NVML_SUCCESS;
}

static nvmlReturn_t handle_by_index(const char *function, unsigned int index, nvmlDevice_t *device) {
    const struct session *session;
    nvmlReturn_t result = session_of_call(&session);
    if (result != NVML_SUCCESS) {
        return result;
    }
    REQUIRE(device != NULL && index < session->view.count);
    struct device_place place = {.gpu = session->view.gpus[index]};
    return give_handle(function, session, &place, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return handle_by_index(__func__, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    return handle_by_index(__func__, index, device);
}

static nvmlReturn_t handle_by_uuid(const char *function, const char *uuid, nvmlDevice_t *device) {
    const struct session *session;
    nvmlReturn_t result = session_of_call(&session);
    if (result != NVML_SUCCESS) {
        return result;
    }
    REQUIRE(device != NULL && uuid != NULL && uuid[0] != '\0');
    struct device_place place;
    if (!find_by_uuid(session->m, uuid, &place) || !session->view.visible[place.gpu]) {
        return NVML_ERROR_NOT_FOUND;
    }
    if (place.is_mig) {
        struct gpu_state state;
        gpu_read(session->m, place.gpu, &state);
        if (!view_shows_mig(&session->view, place.gpu, place.gi, &state.gis[place.gi], place.ci)) {
            return NVML_ERROR_NOT_FOUND;
        }
    }
    return give_handle(function, session, &place, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return handle_by_uuid(__func__, uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *device) {
    enum { TYPE_TEXT = 1 };
    REQUIRE(uuid != NULL);
    if (uuid->version != NVML_STRUCT_VERSION(nvmlUUID_v1_t, 1u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (uuid->type != TYPE_TEXT) {
        return NVML_ERROR_NOT_SUPPORTED; /* the 16 raw bytes do not tell a GPU from a MIG device */
    }
    return handle_by_uuid(__func__, uuid->value.str, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    const struct session *session;
    nvmlReturn_t result = session_of_call(&session);
    if (result != NVML_SUCCESS) {
        return result;
    }
    REQUIRE(device != NULL && serial != NULL);
    for (unsigned int i = 0; i < session->view.count; i++) {
        struct device_place place = {.gpu = session->view.gpus[i]};
        if (strcmp(session->m->state->gpus[place.gpu].serial, serial) == 0) {
            return give_handle(__func__, session, &place, device);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* "domain:bus:device.function" in hexadecimal; the domain and the function (always 0) may be left out. */
static bool parse_bus_id(const char *text, unsigned int *domain, unsigned int *bus, unsigned int *slot) {
    unsigned long parts[3];
    unsigned int count = 0;
    char *end = NULL;
    do {
        if (count == 3 || !isxdigit((unsigned char)*text)) {
            return false;
        }
        parts[count++] = strtoul(text, &end, 16);
        text = end + 1;
    } while (*end == ':');
    if (count < 2 || (*end != '\0' && strcmp(end, ".0") != 0)) {
        return false;
    }
    *domain = count == 3 ? (unsigned int)parts[0] : 0;
    *bus = (unsigned int)parts[count - 2];
    *slot = (unsigned int)parts[count - 1];
    return true;
}

static nvmlReturn_t handle_by_bus_id(const char *function, const char *bus_id, nvmlDevice_t *device) {
    const struct session *session;
    nvmlReturn_t result = session_of_call(&session);
    if (result != NVML_SUCCESS) {
        return result;
    }
    unsigned int domain, bus, slot;
    REQUIRE(device != NULL && bus_id != NULL && parse_bus_id(bus_id, &domain, &bus, &slot));
    for (unsigned int i = 0; i < session->view.count; i++) {
        struct device_place place = {.gpu = session->view.gpus[i]};
        const struct gpu_record *record = &session->m->state->gpus[place.gpu];
        if (record->pci_domain == domain && record->pci_bus == bus && record->pci_device == slot) {
            return give_handle(function, session, &place, device);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *busId, nvmlDevice_t *device) {
    return handle_by_bus_id(__func__, busId, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *busId, nvmlDevice_t *device) {
    return handle_by_bus_id(__func__, busId, device);
}

/* A GPU's index among the visible ones, a MIG device's among those of its GPU. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(index != NULL);
    if (target.place.is_mig) {
        unsigned int gi, ci;
        for (unsigned int i = 0; mig_device_at(&target.state, i, target.view, target.place.gpu, &gi, &ci); i++) {
            if (gi == target.place.gi && ci == target.place.ci) {
                *index = i;
                return NVML_SUCCESS;
            }
        }
        return NVML_ERROR_NOT_FOUND;
    }
    for (unsigned int i = 0; i < target.view->count; i++) {
        if (target.view->gpus[i] == target.place.gpu) {
            *index = i;
        }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    struct target target;
    ENTER_DEVICE(device, &target);
    if (!target.place.is_mig) {
        return give_text(name, length, target.record->name);
    }
    char text[2 * TRANCHE_SIM_NAME_SIZE];
    snprintf(text, sizeof text, "%s MIG %s", target.record->name, target.ci_profile->name);
    return give_text(name, length, text);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    struct target target;
    ENTER_DEVICE(device, &target);
    if (!target.place.is_mig) {
        return give_text(uuid, length, target.record->uuid);
    }
    char text[64];
    identify_mig(target.record->uuid, target.place.gi, target.ci->start, text, sizeof text);
    return give_text(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    struct target target;
    ENTER_GPU(device, &target);
    return give_text(serial, length, target.record->serial);
}

/* The number of /dev/nvidiaN: the index on the machine, regardless of visibility. */
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(minor != NULL);
    *minor = target.place.gpu;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned int *moduleId) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(moduleId != NULL);
    *moduleId = target.place.gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *boardId) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(boardId != NULL);
    *boardId = target.record->pci_bus << 8 | target.record->pci_device;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *partNumber, unsigned int length) {
    struct target target;
    ENTER_GPU(device, &target);
    char text[40];
    snprintf(text, sizeof text, "900-SIM-%04X-000", target.record->pci_device_id >> 16);
    return give_text(partNumber, length, text);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    struct target target;
    ENTER_GPU(device, &target);
    return give_text(version, length, "00.00.00.00.00");
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(brand != NULL);
    *brand = target.board->brand;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(architecture != NULL);
    *architecture = target.board->family->architecture;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    struct target target;
    ENTER_DEVICE(device, &target);
    REQUIRE(major != NULL && minor != NULL);
    *major = target.board->cc_major;
    *minor = target.board->cc_minor;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(cores != NULL);
    *cores = (unsigned int)target.board->multiprocessors * target.board->cores_per_multiprocessor;
    return NVML_SUCCESS;
}

static nvmlReturn_t pci_info(const struct target *target, nvmlPciInfo_t *pci) {
    REQUIRE(pci != NULL);
    const struct gpu_record *record = target->record;
    memset(pci, 0, sizeof *pci);
    pci->domain = record->pci_domain;
    pci->bus = record->pci_bus;
    pci->device = record->pci_device;
    pci->pciDeviceId = record->pci_device_id;
    pci->pciSubSystemId = board_pci_ids(target->board, record->pci_device_id).subsystem;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", record->pci_domain & 0xFFFFu,
             record->pci_bus & 0xFFu, record->pci_device & 0xFFu);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", record->pci_domain, record->pci_bus,
             record->pci_device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    struct target target;
    ENTER_GPU(device, &target);
    return pci_info(&target, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    struct target target;
    ENTER_GPU(device, &target);
    nvmlReturn_t result = pci_info(&target, pci);
    if (result == NVML_SUCCESS) {
        memset(pci->busId, 0, 16); /* reserved words before version 3 */
    }
    return result;
}

/* The first version ends before the subsystem id. */
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    struct target target;
    ENTER_GPU(device, &target);
    nvmlPciInfo_t full;
    REQUIRE(pci != NULL);
    pci_info(&target, &full);
    memcpy(pci, &full, offsetof(nvmlPciInfo_t, pciSubSystemId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(pci != NULL);
    if (pci->version != NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    nvmlPciInfo_t info;
    pci_info(&target, &info);
    unsigned int class_code = board_pci_ids(target.board, info.pciDeviceId).class_code;
    *pci = (nvmlPciInfoExt_v1_t){
        .version = pci->version,
        .domain = info.domain,
        .bus = info.bus,
        .device = info.device,
        .pciDeviceId = info.pciDeviceId,
        .pciSubSystemId = info.pciSubSystemId,
        .baseClass = class_code >> 16,
        .subClass = (class_code >> 8) & 0xFFu,
    };
    memcpy(pci->busId, info.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}
