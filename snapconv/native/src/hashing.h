/* Seeded hashes. They may be attacked all the same: every table counts its probes and gives up. */
#ifndef SNAPCONV_HASHING_H
#define SNAPCONV_HASHING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MAX_PROBES = 512 };

static inline uint64_t mixed(uint64_t h) {
    h *= UINT64_C(0x9E3779B97F4A7C15);
    h ^= h >> 29;
    h *= UINT64_C(0xBF58476D1CE4E5B9);
    return h ^ (h >> 32);
}

static inline uint64_t hash_bytes(uint64_t seed, const uint8_t *bytes, size_t n) {
    uint64_t h = seed ^ n;
    uint64_t word;
    for (; n >= 8; bytes += 8, n -= 8) {
        memcpy(&word, bytes, 8);
        h = (h ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 29;
    }
    word = 0;
    for (size_t i = 0; i < n; i++) {
        word |= (uint64_t)bytes[i] << (8 * i);
    }
    return mixed(h ^ word);
}

#endif
