#include <stdio.h>
#include <string.h>

#include "driver.h"

#define REQUIRE_DEVICE(ordinal, device)                      \
    const struct cuda_device *device = device_at(ordinal);   \
    if (device == NULL) {                                    \
        return CUDA_ERROR_INVALID_DEVICE;                    \
    }

CUDA_API CUresult cuDeviceGetCount(int *count) {
    ENTER_DRIVER();
    REQUIRE_VALUE(count != NULL);
    *count = (int)driver.device_count;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(device != NULL);
    if (device_at(ordinal) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(name != NULL && length > 0);
    REQUIRE_DEVICE(ordinal, device);
    snprintf(name, (size_t)length, "%s", device->name);
    return CUDA_SUCCESS;
}

/* A MIG device's own UUID. */
CUDA_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(uuid != NULL);
    REQUIRE_DEVICE(ordinal, device);
    *uuid = device->id;
    return CUDA_SUCCESS;
}

/* The GPU's UUID, of a MIG device too. */
CUDA_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(uuid != NULL);
    REQUIRE_DEVICE(ordinal, device);
    *uuid = uuid_bytes(driver.m->state->gpus[device->place.gpu].uuid);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(bytes != NULL);
    REQUIRE_DEVICE(ordinal, device);
    *bytes = device->memory;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(major != NULL && minor != NULL);
    REQUIRE_DEVICE(ordinal, device);
    *major = device->board->cc_major;
    *minor = device->board->cc_minor;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(text != NULL && length > 0);
    REQUIRE_DEVICE(ordinal, device);
    const struct gpu_record *record = &driver.m->state->gpus[device->place.gpu];
    snprintf(text, (size_t)length, "%04X:%02X:%02X.0", record->pci_domain, record->pci_bus, record->pci_device);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetByPCIBusId(CUdevice *found, const char *text) {
    ENTER_DRIVER();
    unsigned int domain, bus, slot;
    REQUIRE_VALUE(found != NULL && text != NULL);
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        REQUIRE_VALUE(sscanf(text, "%x:%x", &bus, &slot) == 2);
    }
    for (unsigned int i = 0; i < driver.device_count; i++) {
        const struct gpu_record *record = &driver.m->state->gpus[driver.devices[i].place.gpu];
        if (record->pci_domain == domain && record->pci_bus == bus && record->pci_device == slot) {
            *found = (CUdevice)i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUDA_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer_ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(can != NULL);
    REQUIRE_DEVICE(ordinal, device);
    REQUIRE_DEVICE(peer_ordinal, peer);
    *can = device != peer && device->board->nvlinks > 0 && peer->board->nvlinks > 0;
    return CUDA_SUCCESS;
}
