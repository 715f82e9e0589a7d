/* The allocator model: its blocks, their pools, its counters. What it does with them is in caching_allocator.h and
 * expandable_segments.h.
 *
 * Where status is no longer MORE, a result means nothing, and the model is only good to be freed.
 */
#ifndef SNAPCONV_MODEL_H
#define SNAPCONV_MODEL_H

#include "address_space.h"
#include "core.h"
#include "free_blocks.h"
#include "model_settings.h"

/* The free blocks of one pool and one stream. Lanes of one pool follow one another, by stream. */
typedef struct {
    block_set mapped, unmapped;
    int64_t pool; /* twice its number, and 1 more where it is the large one of two */
    int64_t n_searches; /* in the pool; counted in its first lane alone */
    size_t first; /* lane of the pool */
    bool is_small;
} lane;

typedef struct {
    int64_t requested, allocated, active, reserved, max_allocated, max_reserved, n_segment_allocs, n_segment_maps;
} ledger;

struct chunk;

typedef struct {
    int status;
    model_settings settings;
    int64_t capacity; /* NO_LIMIT: it never runs out */
    ledger ledger;
    lane *lanes;
    size_t n_lanes;
    size_t default_first[2]; /* the first lane of the large default pool, and of the small one; n_lanes: none */
    address_space addresses;
    reservation *reservations;
    block *first_pending, *last_pending;
    block **block_of; /* each allocation, by row */
    struct chunk *chunks;
    block *spare; /* blocks that are not in use, by after */
    block **list; /* room for free blocks, see free_blocks_of */
    size_t n_list;
    uint32_t random;
} model;

void model_free(model *m);

/* A block that no neighbour knows; NULL where memory does not suffice, as for the two cuts. */
block *model_block(model *m, int64_t addr, int64_t size, uint32_t lane, const reservation *space);
/* Splits off the first bytes of a block, which keeps the rest. */
block *model_cut_front(model *m, block *b, int64_t size);
/* Splits off the bytes behind the first ones, which the block keeps. */
block *model_cut_back(model *m, block *b, int64_t size);
void model_drop(model *m, block *b);

void model_insert(model *m, block *b);
void model_discard(model *m, block *b);
/* Merges the free neighbours into a block, and puts it into its pool. */
void model_rejoin(model *m, block *b);

/* Puts the free blocks of all lanes of a pool, given by the first, into m->list, in torch's order of freeing them. */
size_t free_blocks_of(model *m, size_t first_lane);

const reservation *model_reserve(model *m, int64_t addr, int64_t size, int64_t granule);
int64_t model_take_addresses(model *m, int64_t n_bytes);
void model_give_back(model *m, int64_t addr, int64_t n_bytes);

static inline bool has_room(const model *m, int64_t n_bytes) {
    return m->ledger.reserved + n_bytes <= m->capacity;
}

/* Counts a segment, or pages, that the device has given. */
void count_memory(model *m, int64_t n_bytes, bool is_mapped);
/* Counts a block that is active, and no longer allocated. */
void count_pending(model *m, int64_t block_bytes, int64_t requested);
/* Counts a block that was given out. */
void count_block(model *m, int64_t block_bytes, int64_t requested);

#endif
