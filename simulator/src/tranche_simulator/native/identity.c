#include "identity.h"

#include <stdio.h>
#include <string.h>

static uint32_t rotate(uint32_t word, unsigned int bits) { return (word << bits) | (word >> (32u - bits)); }

static void sha1_block(uint32_t h[5], const uint8_t *block) {
    uint32_t w[80];
    for (unsigned int t = 0; t < 16; t++) {
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 |
               block[4 * t + 3];
    }
    for (unsigned int t = 16; t < 80; t++) {
        w[t] = rotate(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    }
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (unsigned int t = 0; t < 80; t++) {
        uint32_t f, k;
        if (t < 20) {
            f = (b & c) | (~b & d);
            k = 0x5A827999u;
        } else if (t < 40) {
            f = b ^ c ^ d;
            k = 0x6ED9EBA1u;
        } else if (t < 60) {
            f = (b & c) | (b & d) | (c & d);
            k = 0x8F1BBCDCu;
        } else {
            f = b ^ c ^ d;
            k = 0xCA62C1D6u;
        }
        uint32_t next = rotate(a, 5) + f + e + k + w[t];
        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = next;
    }
    h[0] += a;
    h[1] += b;
    h[2] += c;
    h[3] += d;
    h[4] += e;
}

void sha1(const void *data, size_t length, uint8_t digest[SHA1_SIZE]) {
    const uint8_t *bytes = data;
    uint32_t h[5] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u};
    size_t whole = length / 64 * 64;
    for (size_t offset = 0; offset < whole; offset += 64) {
        sha1_block(h, bytes + offset);
    }
    uint8_t tail[128] = {0};
    size_t rest = length - whole;
    memcpy(tail, bytes + whole, rest);
    tail[rest] = 0x80;
    size_t padded = rest < 56 ? 64 : 128;
    uint64_t bits = (uint64_t)length * 8;
    for (unsigned int i = 0; i < 8; i++) {
        tail[padded - 1 - i] = (uint8_t)(bits >> (8 * i));
    }
    for (size_t offset = 0; offset < padded; offset += 64) {
        sha1_block(h, tail + offset);
    }
    for (unsigned int i = 0; i < 5; i++) {
        for (unsigned int byte = 0; byte < 4; byte++) {
            digest[4 * i + byte] = (uint8_t)(h[i] >> (24 - 8 * byte));
        }
    }
}

static void print_uuid(const char *prefix, const uint8_t id[16], char *uuid, size_t size) {
    snprintf(uuid, size, "%s%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix, id[0], id[1],
             id[2], id[3], id[4], id[5], id[6], id[7], id[8], id[9], id[10], id[11], id[12], id[13], id[14], id[15]);
}

void identify_gpu(uint64_t seed, const char *machine_name, unsigned int gpu, char *uuid, size_t uuid_size, char *serial,
                  size_t serial_size) {
    char text[256];
    int length = snprintf(text, sizeof text, "tranche simulator %llu %s gpu %u", (unsigned long long)seed, machine_name,
                          gpu);
    uint8_t digest[SHA1_SIZE];
    sha1(text, (size_t)length, digest);
    print_uuid("GPU-", digest, uuid, uuid_size);
    uint64_t number = 0;
    for (unsigned int i = 0; i < 8; i++) {
        number = number << 8 | digest[12 + i];
    }
    snprintf(serial, serial_size, "16%011llu", (unsigned long long)(number % 100000000000ull));
}

void identify_mig(const char *gpu_uuid, unsigned int gpu_instance, unsigned int compute_start, char *uuid,
                  size_t uuid_size) {
    char text[192];
    int length = snprintf(text, sizeof text, "%s/%u/%u", gpu_uuid, gpu_instance, compute_start);
    uint8_t id[SHA1_SIZE];
    sha1(text, (size_t)length, id);
    id[6] = (uint8_t)((id[6] & 0x0Fu) | 0x50u);
    id[8] = (uint8_t)((id[8] & 0x3Fu) | 0x80u);
    print_uuid("MIG-", id, uuid, uuid_size);
}
