/* Names that are fixed functions of what they name, so that the same slot has the same UUID again. */
#ifndef TRANCHE_IDENTITY_H
#define TRANCHE_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

#define SHA1_SIZE 20u

/* RFC 3174. */
void sha1(const void *data, size_t length, uint8_t digest[SHA1_SIZE]);

/* "GPU-..." and a 13-digit serial number, from the machine's seed and name and the GPU's index. */
void identify_gpu(uint64_t seed, const char *machine_name, unsigned int gpu, char *uuid, size_t uuid_size, char *serial,
                  size_t serial_size);

/* "MIG-..." version-5 UUID of GPU, GPU-instance id and first compute slice. */
void identify_mig(const char *gpu_uuid, unsigned int gpu_instance, unsigned int compute_start, char *uuid,
                  size_t uuid_size);

#endif
