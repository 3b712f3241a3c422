#include "account.h"

#include "clients.h"
#include "memory_limits.h"

/* A context's own memory grows with the multiprocessors it may use: room for local memory, stacks and heaps. An H200 with 580.159
 * showed 527 MiB for its 132; as a client of MPS 514 MiB, and 145 MiB for 32. */
enum { CONTEXT_BASE_KIB = 40 << 10, CONTEXT_KIB_PER_MULTIPROCESSOR = 3779 };

static uint64_t context_bytes(const struct cuda_device *device) {
    uint64_t set = atomic_load(&driver.m->state->context_bytes);
    if (set != 0) {
        return set;
    }
    unsigned int usable = device->multiprocessors;
    if (device->seat.multiprocessors != 0 && device->seat.multiprocessors < usable) {
        usable = device->seat.multiprocessors;
    }
    return (uint64_t)(CONTEXT_BASE_KIB + CONTEXT_KIB_PER_MULTIPROCESSOR * usable) >> 10 << 20; /* whole MiB */
}

static uint64_t whole_units(uint64_t bytes) {
    return (bytes + CUDA_ALLOCATION_UNIT - 1) / CUDA_ALLOCATION_UNIT * CUDA_ALLOCATION_UNIT;
}

static uint64_t held(const struct cuda_device *device) {
    return device->context_bytes + device->large_bytes + whole_units(device->small_bytes);
}

static bool is_small(uint64_t bytes) { return bytes <= CUDA_ALLOCATION_UNIT / 2; }

/* Makes the machine hold what the device says it holds, if there is room. */
static CUresult settle(struct cuda_device *device) {
    uint64_t wanted = held(device);
    uint64_t limit = device->seat.memory_limit;
    uint64_t present = atomic_load(&driver.m->state->clients[device->client].memory_bytes);
    if (wanted > present && limit != 0 && wanted > limit) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (wanted == present) {
        return CUDA_SUCCESS;
    }
    switch (client_resize(driver.m, device->client, wanted)) {
    case NVML_SUCCESS:
        return CUDA_SUCCESS;
    case NVML_ERROR_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return CUDA_ERROR_UNKNOWN;
    }
}

static CUresult explain_attach(nvmlReturn_t code) {
    switch (code) {
    case NVML_SUCCESS:
        return CUDA_SUCCESS;
    case NVML_ERROR_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case NVML_ERROR_NO_PERMISSION:
        return CUDA_ERROR_OPERATING_SYSTEM;
    case NVML_ERROR_GPU_IS_LOST:
        return CUDA_ERROR_UNKNOWN;
    default: /* the instance is gone, or the GPU is in another mode */
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
}

/* The compute mode is of the whole GPU, and rules out others that use it directly; MPS clients come through their server. */
static bool mode_allows(const struct cuda_device *device) {
    struct gpu_state state;
    gpu_read(driver.m, device->place.gpu, &state);
    if (state.compute_mode == NVML_COMPUTEMODE_PROHIBITED) {
        return false;
    }
    if (state.compute_mode != NVML_COMPUTEMODE_EXCLUSIVE_PROCESS || device->seat.server != 0) {
        return true;
    }
    struct usage usage;
    usage_of(driver.m, device->place.gpu, device->place.gi, device->place.ci, &usage);
    return usage.clients == 0;
}

static CUresult first_context(struct cuda_device *device) {
    CUresult result = mps_open(driver.mps, device->uuid, &device->seat);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t bytes = context_bytes(device);
    bool too_much = device->seat.memory_limit != 0 && bytes > device->seat.memory_limit;
    if (!mode_allows(device)) {
        result = CUDA_ERROR_DEVICE_UNAVAILABLE;
    } else if (too_much) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        struct mps_route route = {.server = device->seat.server, .client = device->seat.client};
        result = explain_attach(client_attach(driver.m, device->uuid, bytes, 0, route, &device->client));
    }
    if (result != CUDA_SUCCESS) {
        mps_close(driver.mps, device->uuid);
        device->seat = (struct mps_seat){0};
    }
    return result;
}

CUresult account_open(struct cuda_device *device, uint64_t *bytes) {
    CUresult result = CUDA_SUCCESS;
    if (device->contexts == 0) {
        result = first_context(device);
        device->context_bytes = device->small_bytes = device->large_bytes = 0;
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *bytes = context_bytes(device);
    device->context_bytes += *bytes;
    result = settle(device);
    if (result != CUDA_SUCCESS) {
        device->context_bytes -= *bytes;
        return result;
    }
    device->contexts++;
    return CUDA_SUCCESS;
}

void account_close(struct cuda_device *device, uint64_t bytes) {
    device->context_bytes -= bytes;
    if (--device->contexts > 0) {
        settle(device);
        return;
    }
    trancheSimDetach(driver.m, device->client);
    mps_close(driver.mps, device->uuid);
    device->seat = (struct mps_seat){0};
}

CUresult account_take(struct cuda_device *device, uint64_t bytes) {
    uint64_t small = device->small_bytes, large = device->large_bytes;
    if (bytes > device->memory) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (is_small(bytes)) {
        device->small_bytes += bytes;
    } else {
        device->large_bytes += whole_units(bytes);
    }
    CUresult result = settle(device);
    if (result != CUDA_SUCCESS) {
        device->small_bytes = small;
        device->large_bytes = large;
    }
    return result;
}

void account_give(struct cuda_device *device, uint64_t bytes) {
    if (is_small(bytes)) {
        device->small_bytes -= bytes;
    } else {
        device->large_bytes -= whole_units(bytes);
    }
    settle(device);
}

void account_info(const struct cuda_device *device, uint64_t *available, uint64_t *total) {
    struct usage usage;
    usage_of(driver.m, device->place.gpu, device->place.gi, NO_INSTANCE, &usage);
    *total = device->memory;
    *available = usage.memory_bytes < *total ? *total - usage.memory_bytes : 0;
    uint64_t hard, used;
    if (!device->place.is_mig &&
        limits_view(driver.m, device->place.gpu, &driver.m->state->client_groups[device->client], &hard, &used)) {
        *total = hard < *total ? hard : *total;
        uint64_t below = used < hard ? hard - used : 0;
        *available = below < *available ? below : *available;
    }
    uint64_t limit = device->seat.memory_limit, own = held(device);
    if (limit != 0) {
        uint64_t left = own < limit ? limit - own : 0;
        *available = left < *available ? left : *available;
    }
}
