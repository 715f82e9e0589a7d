/* The rules are those of allocator/expandable_segments.py. */

#include "expandable_segments.h"

#define UNLIMITED_ADDRESS_SPACE (INT64_C(1) << 40)

/* The addresses of a segment: torch reserves 9/8 of the memory. */
static int64_t reserved_size(const model *m, int64_t granule) {
    return round_up(m->capacity == NO_LIMIT ? UNLIMITED_ADDRESS_SPACE : m->capacity * 9 / 8, granule);
}

/* Whether the free and unmapped blocks from a first one on add up to a size. */
static bool is_large_enough(const block *first, int64_t size) {
    int64_t n_bytes = 0;
    for (const block *b = first; b != NULL && !is_active(b); b = b->after) {
        n_bytes += b->size;
        if (n_bytes >= size) {
            return true;
        }
    }
    return false;
}

/* The lowest run of free and unmapped blocks for a size, or new addresses. */
static block *candidate(model *m, uint32_t lane_number, int64_t size) {
    const lane *l = m->lanes + lane_number;
    for (block *hole = blocks_first(&l->unmapped); hole != NULL; hole = blocks_next(hole)) {
        block *first = hole->before != NULL && !is_active(hole->before) ? hole->before : hole;
        if (is_large_enough(first, size)) {
            return first;
        }
    }
    int64_t granule = page_size(&m->settings, l->is_small), n_bytes = reserved_size(m, granule);
    if (n_bytes < size) {
        return NULL;
    }
    const reservation *space = model_reserve(m, model_take_addresses(m, n_bytes), n_bytes, granule);
    block *b = space == NULL ? NULL : model_block(m, space->addr, n_bytes, lane_number, space);
    if (b != NULL) {
        b->is_mapped = false;
        model_insert(m, b);
    }
    return b;
}

/* Backs the first bytes of a hole, rounded up to pages, and merges its neighbours. */
static bool map_pages(model *m, block *hole, int64_t size) {
    int64_t n_bytes = round_up(size, hole->space->page_size);
    if (!has_room(m, n_bytes)) {
        return false;
    }
    model_discard(m, hole);
    if (n_bytes < hole->size) {
        block *rest = model_cut_back(m, hole, n_bytes);
        if (rest == NULL) {
            return false;
        }
        model_insert(m, rest);
    }
    hole->is_mapped = true;
    model_rejoin(m, hole);
    count_memory(m, n_bytes, true);
    return m->status == MORE;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

block *expandable_allocate(model *m, uint32_t lane_number, int64_t size) {
    block *b = candidate(m, lane_number, size);
    if (b == NULL || (!b->is_mapped && !map_pages(m, b, least(b->size, size)))) {
        return NULL;
    }
    while (b->size < size) {
        block *hole = b->after;
        if (hole == NULL || !map_pages(m, hole, least(size - b->size, hole->size))) {
            return NULL;
        }
        b = hole;
    }
    model_discard(m, b);
    return b;
}

/* Turns the whole pages inside a free block into a hole; the ragged ends stay free. */
static bool unmap_pages(model *m, block *b) {
    int64_t base = b->space->addr, granule = b->space->page_size;
    int64_t start = base + round_up(b->addr - base, granule);
    int64_t end = base + (b->addr - base + b->size) / granule * granule;
    if (start >= end) {
        return false;
    }
    model_discard(m, b);
    if (start > b->addr) {
        block *front = model_cut_front(m, b, start - b->addr);
        if (front == NULL) {
            return false;
        }
        model_insert(m, front);
    }
    if (b->size > end - start) {
        block *back = model_cut_back(m, b, end - start);
        if (back == NULL) {
            return false;
        }
        model_insert(m, back);
    }
    b->is_mapped = false;
    model_rejoin(m, b);
    m->ledger.reserved -= end - start;
    return true;
}

void expandable_release(model *m, block *b) {
    if (unmap_pages(m, b) && is_whole_segment(b) && m->status == MORE) {
        const reservation *space = b->space;
        model_discard(m, b);
        model_drop(m, b);
        model_give_back(m, space->addr, space->size);
    }
}

static block *last_of(block *b) {
    while (b->after != NULL) {
        b = b->after;
    }
    return b;
}

static int64_t end_of(block *range) {
    const block *last = last_of(range);
    return last->addr + last->size;
}

/* Ranges that are taken as parts of one segment; fits: each has whole pages of its pool's size. */
typedef struct {
    block **ranges;
    size_t n;
    bool fits;
    int64_t end; /* of the last range */
} group;

static bool has_whole_pages(const model *m, const block *first, int64_t end) {
    return (end - first->addr) % page_size(&m->settings, m->lanes[first->lane].is_small) == 0;
}

static int64_t page_size_of(const model *m, const group *g) {
    return g->fits ? page_size(&m->settings, m->lanes[g->ranges[0]->lane].is_small) : SMALL_SEGMENT_BYTES;
}

/* Ranges of one pool and stream are one segment if they are whole pages apart, in addresses that torch reserves. */
static bool is_same_segment(const model *m, const group *g, block *next) {
    const block *first = g->ranges[0];
    int64_t granule = page_size_of(m, g);
    return first->lane == next->lane && (next->addr - first->addr) % granule == 0 &&
           end_of(next) - first->addr <= reserved_size(m, granule);
}

/* Links a range with a hole behind it, up to an address. */
static void add_hole(model *m, block *last, int64_t end, const reservation *space) {
    int64_t start = last->addr + last->size;
    if (end > start) {
        block *hole = model_block(m, start, end - start, last->lane, space);
        if (hole != NULL) {
            hole->is_mapped = false;
            hole->before = last;
            last->after = hole;
            model_insert(m, hole);
        }
    }
}

/* next: where the next segment begins, NO_LIMIT where none does. */
static void reserve_around(model *m, const group *g, int64_t next) {
    int64_t granule = page_size_of(m, g), addr = g->ranges[0]->addr, size = reserved_size(m, granule);
    size = size > g->end - addr ? size : g->end - addr;
    if (next != NO_LIMIT) {
        size = least(size, (next - addr) / granule * granule);
    }
    const reservation *space = model_reserve(m, addr, size, granule);
    for (size_t i = 0; i < g->n && space != NULL && m->status == MORE; i++) {
        for (block *b = g->ranges[i]; b != NULL; b = b->after) {
            b->space = space;
        }
        block *following = i + 1 < g->n ? g->ranges[i + 1] : NULL;
        add_hole(m, last_of(g->ranges[i]), following != NULL ? following->addr : addr + size, space);
        if (following != NULL) {
            block *last = last_of(g->ranges[i]);
            last->after = following;
            following->before = last;
        }
    }
}

void expandable_adopt(model *m, block **ranges, size_t n) {
    for (size_t i = 0; i < n && m->status == MORE;) {
        group g = {ranges + i, 1, has_whole_pages(m, ranges[i], end_of(ranges[i])), end_of(ranges[i])};
        while (i + g.n < n && is_same_segment(m, &g, ranges[i + g.n])) {
            block *added = ranges[i + g.n++];
            g.end = end_of(added);
            g.fits = g.fits && has_whole_pages(m, added, g.end);
        }
        i += g.n;
        reserve_around(m, &g, i < n ? ranges[i]->addr : NO_LIMIT);
    }
}
