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

static inline uint64_t word_at(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word;
}

static inline uint64_t with_word(uint64_t h, const uint8_t *bytes) {
    h = (h ^ word_at(bytes)) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ (h >> 29);
}

/* In two lanes, since each step waits for the one before. */
static inline uint64_t hash_bytes(uint64_t seed, const uint8_t *bytes, size_t n) {
    uint64_t one = seed ^ n, two = ~seed, last = 0;
    size_t at = 0;
    for (; n - at >= 16; at += 16) {
        one = with_word(one, bytes + at);
        two = with_word(two, bytes + at + 8);
    }
    if (n - at >= 8) {
        one = with_word(one, bytes + at);
    }
    if (n >= 8) {
        last = word_at(bytes + n - 8); /* some of them once more */
    } else {
        for (size_t i = 0; i < n; i++) {
            last |= (uint64_t)bytes[i] << (8 * i);
        }
    }
    return mixed(one ^ mixed(two ^ last));
}

#endif
