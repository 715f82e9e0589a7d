/* Memory that grows. Every size is checked for overflow; a failure leaves what was there. */
#ifndef SNAPCONV_BUFFER_H
#define SNAPCONV_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is called so seldom that the function which calls it should be fast without it. */
#if defined(__GNUC__)
#define SELDOM __attribute__((noinline, cold))
#else
#define SELDOM
#endif

bool reserve_more(void **memory, size_t *n_max, size_t n, size_t element_bytes);

/* Makes room for n elements of a size in *memory, whose capacity is *n_max elements. */
static inline bool reserve(void **memory, size_t *n_max, size_t n, size_t element_bytes) {
    return n <= *n_max || reserve_more(memory, n_max, n, element_bytes);
}

typedef struct {
    uint8_t *bytes;
    size_t n;
    size_t n_max;
} buffer;

static inline bool buffer_reserve(buffer *b, size_t more) {
    if (more <= b->n_max - b->n) {
        return true;
    }
    return more <= SIZE_MAX / 2 - b->n && reserve((void **)&b->bytes, &b->n_max, b->n + more, 1);
}

void buffer_free(buffer *b);

/* Numbers are little-endian wherever bytes have them. */
static inline uint64_t load_bytes(const uint8_t *from, int n_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++) {
        value |= (uint64_t)from[i] << (8 * i);
    }
    return value;
}

static inline void store_bytes(uint8_t *to, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++) {
        to[i] = (uint8_t)(value >> (8 * i));
    }
}

#endif
