/* Byte strings that are found again: a table of places in a buffer, with a number for each. */
#ifndef SNAPCONV_INTERNING_H
#define SNAPCONV_INTERNING_H

#include "buffer.h"

#define NO_ID UINT32_MAX

typedef struct {
    uint64_t offset; /* of its bytes in the buffer */
    uint32_t n_bytes;
    uint32_t hash;
    uint32_t id;
    bool is_used; /* else the place is free */
} interned;

typedef struct {
    interned *places;
    size_t n_places; /* a power of two */
    size_t n_used;
    uint64_t seed;
} intern_table;

bool table_init(intern_table *t, uint64_t seed);
void table_free(intern_table *t);
/* The place of n bytes: a known one, or else a free one with their hash. It holds until the next call. NULL where
 * memory or probes run out. */
interned *table_find(intern_table *t, const buffer *known, const uint8_t *bytes, size_t n);
void table_use(intern_table *t, interned *place, uint64_t offset, size_t n, uint32_t id);

#endif
