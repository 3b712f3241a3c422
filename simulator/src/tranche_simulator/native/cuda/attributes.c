#include "driver.h"

/* Device attributes by the driver's numbers. */
enum {
    MAX_THREADS_PER_BLOCK = 1,
    MAX_BLOCK_DIM_X = 2,
    MAX_BLOCK_DIM_Y = 3,
    MAX_BLOCK_DIM_Z = 4,
    MAX_GRID_DIM_X = 5,
    MAX_GRID_DIM_Y = 6,
    MAX_GRID_DIM_Z = 7,
    MAX_SHARED_MEMORY_PER_BLOCK = 8,
    TOTAL_CONSTANT_MEMORY = 9,
    WARP_SIZE = 10,
    MAX_PITCH = 11,
    MAX_REGISTERS_PER_BLOCK = 12,
    CLOCK_RATE = 13,
    TEXTURE_ALIGNMENT = 14,
    GPU_OVERLAP = 15,
    MULTIPROCESSOR_COUNT = 16,
    CAN_MAP_HOST_MEMORY = 19,
    COMPUTE_MODE = 20,
    SURFACE_ALIGNMENT = 30,
    CONCURRENT_KERNELS = 31,
    ECC_ENABLED = 32,
    PCI_BUS_ID = 33,
    PCI_DEVICE_ID = 34,
    MEMORY_CLOCK_RATE = 36,
    MEMORY_BUS_WIDTH = 37,
    L2_CACHE_SIZE = 38,
    MAX_THREADS_PER_MULTIPROCESSOR = 39,
    ASYNC_ENGINE_COUNT = 40,
    UNIFIED_ADDRESSING = 41,
    PCI_DOMAIN_ID = 50,
    TEXTURE_PITCH_ALIGNMENT = 51,
    CAPABILITY_MAJOR = 75,
    CAPABILITY_MINOR = 76,
    STREAM_PRIORITIES_SUPPORTED = 78,
    GLOBAL_L1_CACHE_SUPPORTED = 79,
    LOCAL_L1_CACHE_SUPPORTED = 80,
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
    MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
    MANAGED_MEMORY = 83,
    CONCURRENT_MANAGED_ACCESS = 89,
    COMPUTE_PREEMPTION_SUPPORTED = 90,
    CAN_USE_HOST_POINTER = 91,
    COOPERATIVE_LAUNCH = 95,
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    HOST_REGISTER_SUPPORTED = 99,
    VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    POSIX_HANDLES_SUPPORTED = 103,
    MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
    RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
    MEMORY_POOLS_SUPPORTED = 115,
    MEMORY_POOL_HANDLE_TYPES = 119,
    UNIFIED_FUNCTION_POINTERS = 129,
    MPS_ENABLED = 133,
    HOST_NUMA_ID = 134,
    ATTRIBUTE_COUNT = 158,
};

static int multiprocessors_of(const struct cuda_device *device) {
    unsigned int left = device->seat.multiprocessors;
    return (int)(left != 0 && left < device->multiprocessors ? left : device->multiprocessors);
}

static int compute_mode_of(const struct cuda_device *device) {
    struct gpu_state state;
    gpu_read(driver.m, device->place.gpu, &state);
    return state.compute_mode;
}

/* KiB of shared memory of a multiprocessor, by compute capability. */
static int shared_kib(const struct board *board) {
    switch (board->cc_major * 10 + board->cc_minor) {
    case 75:
        return 64;
    case 80:
        return 164;
    case 86:
    case 89:
    case 120:
        return 100;
    default:
        return 228;
    }
}

static int threads_per_multiprocessor(const struct board *board) {
    int capability = board->cc_major * 10 + board->cc_minor;
    return capability == 75 ? 1024 : capability == 86 || capability == 89 || capability == 120 ? 1536 : 2048;
}

/* 0 stands for everything that the device has not. */
static int attribute_of(const struct cuda_device *device, int attribute) {
    const struct board *board = device->board;
    const struct gpu_record *record = &driver.m->state->gpus[device->place.gpu];
    switch (attribute) {
    case MAX_THREADS_PER_BLOCK:
    case MAX_BLOCK_DIM_X:
    case MAX_BLOCK_DIM_Y:
        return 1024;
    case MAX_BLOCK_DIM_Z:
        return 64;
    case MAX_GRID_DIM_X:
    case MAX_PITCH:
        return 0x7FFFFFFF;
    case MAX_GRID_DIM_Y:
    case MAX_GRID_DIM_Z:
        return 65535;
    case MAX_SHARED_MEMORY_PER_BLOCK:
        return 48 << 10;
    case MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return (shared_kib(board) - (board->cc_major >= 8 ? 1 : 0)) << 10;
    case MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        return shared_kib(board) << 10;
    case RESERVED_SHARED_MEMORY_PER_BLOCK:
        return board->cc_major >= 8 ? 1024 : 0;
    case TOTAL_CONSTANT_MEMORY:
    case MAX_REGISTERS_PER_BLOCK:
    case MAX_REGISTERS_PER_MULTIPROCESSOR:
        return 1 << 16;
    case WARP_SIZE:
    case TEXTURE_PITCH_ALIGNMENT:
        return 32;
    case CLOCK_RATE:
        return (int)board->sm_clock_mhz * 1000;
    case MEMORY_CLOCK_RATE:
        return (int)board->memory_clock_mhz * 1000;
    case MEMORY_BUS_WIDTH:
        return (int)board->memory_bus_bits;
    case TEXTURE_ALIGNMENT:
    case SURFACE_ALIGNMENT:
        return 512;
    case MULTIPROCESSOR_COUNT:
        return multiprocessors_of(device);
    case COMPUTE_MODE:
        return compute_mode_of(device);
    case ECC_ENABLED:
        return board->ecc;
    case PCI_DOMAIN_ID:
        return (int)record->pci_domain;
    case PCI_BUS_ID:
        return (int)record->pci_bus;
    case PCI_DEVICE_ID:
        return (int)record->pci_device;
    case L2_CACHE_SIZE:
        return (board->cc_major >= 8 ? 40 : 4) << 20;
    case MAX_THREADS_PER_MULTIPROCESSOR:
        return threads_per_multiprocessor(board);
    case ASYNC_ENGINE_COUNT:
        return device->profile != NULL ? device->profile->copy_engines : 3;
    case CAPABILITY_MAJOR:
        return board->cc_major;
    case CAPABILITY_MINOR:
        return board->cc_minor;
    case MAX_BLOCKS_PER_MULTIPROCESSOR:
        return threads_per_multiprocessor(board) / 64;
    case MPS_ENABLED:
        return driver.mps != NULL;
    case HOST_NUMA_ID:
        return (int)record->numa_node;
    case GPU_OVERLAP:
    case CAN_MAP_HOST_MEMORY:
    case CONCURRENT_KERNELS:
    case UNIFIED_ADDRESSING:
    case STREAM_PRIORITIES_SUPPORTED:
    case GLOBAL_L1_CACHE_SUPPORTED:
    case LOCAL_L1_CACHE_SUPPORTED:
    case MANAGED_MEMORY:
    case CONCURRENT_MANAGED_ACCESS:
    case COMPUTE_PREEMPTION_SUPPORTED:
    case CAN_USE_HOST_POINTER:
    case COOPERATIVE_LAUNCH:
    case HOST_REGISTER_SUPPORTED:
    case VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case POSIX_HANDLES_SUPPORTED:
    case MEMORY_POOLS_SUPPORTED:
    case MEMORY_POOL_HANDLE_TYPES:
    case UNIFIED_FUNCTION_POINTERS:
        return 1;
    default:
        return 0;
    }
}

CUDA_API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal) {
    ENTER_DRIVER();
    REQUIRE_VALUE(value != NULL && attribute > 0 && attribute < ATTRIBUTE_COUNT);
    const struct cuda_device *device = device_at(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *value = attribute_of(device, attribute);
    return CUDA_SUCCESS;
}
