#include "session.h"

/* A board's traits besides its cuts: how it sees the host's memory, and spare rows of its own memory. */

enum { ADDRESSING_NONE = 0, ADDRESSING_HMM = 1, ADDRESSING_ATS = 2 };

typedef struct {
    unsigned int version;
    unsigned int value;
} addressing_mode;

/* Through the processor's page tables where the GPU is one chip with it, else through the kernel's (HMM). */
NVML_API nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, addressing_mode *mode) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(mode != NULL);
    if (mode->version != NVML_STRUCT_VERSION(addressing_mode, 1u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    mode->value = target.board->coherent ? ADDRESSING_ATS : ADDRESSING_HMM;
    return NVML_SUCCESS;
}

/* No row of a simulated memory was ever replaced. Older families retire pages instead. */
NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failed) {
    struct target target;
    ENTER_GPU(device, &target);
    REQUIRE(correctable != NULL && uncorrectable != NULL && pending != NULL && failed != NULL);
    if (!target.board->family->row_remapping) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *correctable = *uncorrectable = *pending = *failed = 0;
    return NVML_SUCCESS;
}
