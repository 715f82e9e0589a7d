/* The allocator's settings, and the size rules that depend on nothing else; those of allocator_settings.py. */
#ifndef SNAPCONV_MODEL_SETTINGS_H
#define SNAPCONV_MODEL_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#define MIB INT64_C(1048576)
#define NO_LIMIT INT64_MAX

/* Larger sizes than any memory are odd, so that no sum of some is beyond 64 bits. */
#define MOST_BYTES (INT64_C(1) << 51)
#define MOST_SUM (INT64_C(1) << 61)

enum { MIN_BLOCK_BYTES = 512 };
#define SMALL_REQUEST_BYTES (1 * MIB)
#define SMALL_SEGMENT_BYTES (2 * MIB)
#define MIN_OWN_SEGMENT_BYTES (10 * MIB)
#define SEGMENT_GRANULE_BYTES (2 * MIB)

typedef struct {
    int64_t max_split_size; /* NO_LIMIT: none, as for the next but two */
    int64_t max_non_split_rounding;
    int64_t large_segment;
    bool is_expandable;
    int64_t limit; /* what set_per_process_memory_fraction leaves */
    int64_t garbage_bytes; /* reserved bytes above which garbage is collected; NO_LIMIT: it never is */
} model_settings;

static inline int64_t round_up(int64_t n_bytes, int64_t granule) {
    return (n_bytes + granule - 1) / granule * granule;
}

static inline bool is_oversize(const model_settings *s, int64_t n_bytes) { return n_bytes >= s->max_split_size; }

/* The size of the cudaMalloc that serves a rounded request (get_allocation_size). */
static inline int64_t segment_size(const model_settings *s, int64_t block_bytes) {
    if (block_bytes <= SMALL_REQUEST_BYTES) {
        return SMALL_SEGMENT_BYTES;
    }
    return block_bytes < MIN_OWN_SEGMENT_BYTES ? s->large_segment : round_up(block_bytes, SEGMENT_GRANULE_BYTES);
}

/* The granule in which an expandable segment of such a pool grows. */
static inline int64_t page_size(const model_settings *s, bool is_small) {
    return is_small ? SMALL_SEGMENT_BYTES : s->large_segment;
}

/* Whether the rest of a free block is cut off and kept. */
static inline bool should_split(const model_settings *s, int64_t free_bytes, int64_t block_bytes, bool is_small) {
    int64_t remaining = free_bytes - block_bytes;
    if (is_small || s->is_expandable) {
        return remaining >= MIN_BLOCK_BYTES;
    }
    return !is_oversize(s, block_bytes) && remaining > SMALL_REQUEST_BYTES;
}

#endif
