/* Blocks of the allocator model, and sets of them in the order in which the allocator chooses. */
#ifndef SNAPCONV_FREE_BLOCKS_H
#define SNAPCONV_FREE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The addresses that one expandable segment may grow in. */
typedef struct reservation {
    int64_t addr, size, page_size;
    struct reservation *next; /* of all that there are */
} reservation;

/* A piece of a segment. One that is not mapped is a hole: addresses without memory. */
typedef struct block {
    int64_t addr, size;
    struct block *left, *right, *up; /* in its set, while it is free */
    uint32_t priority;
    uint32_t lane; /* its pool and stream */
    bool is_mapped, is_allocated, is_pending;
    struct block *before, *after; /* its neighbours in the segment */
    const reservation *space; /* NULL: of an ordinary segment */
    int64_t requested;
    int64_t row; /* of its allocation, -1: of none */
    int64_t gc_base; /* the searches in its pool until it became free: its age counts from there */
    struct block *earlier, *later; /* among the pending frees */
} block;

/* A search tree by size and address, of holes by address alone. Priorities are random, and keep it flat: each block's
 * is no higher than that of the block above it.
 */
typedef struct {
    block *root;
} block_set;

static inline bool is_active(const block *b) { return b->is_allocated || b->is_pending; }
static inline bool is_whole_segment(const block *b) { return b->before == NULL && b->after == NULL; }

/* False where the set has another of that size and address, as in a file that contradicts itself: it is there too. */
bool blocks_insert(block_set *set, block *b);
void blocks_remove(block_set *set, block *b);
/* The smallest with so many bytes or more, the lowest of equals; NULL where there is none, as for the next four. */
block *blocks_fit(const block_set *set, int64_t n_bytes);
block *blocks_first(const block_set *set);
block *blocks_last(const block_set *set);
block *blocks_next(block *b);
block *blocks_before(block *b);

#endif
