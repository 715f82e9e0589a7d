#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "buffer.h"

enum { CHUNK_BLOCKS = 512 };

struct chunk {
    struct chunk *next;
    block blocks[CHUNK_BLOCKS];
};

void model_free(model *m) {
    while (m->chunks != NULL) {
        struct chunk *next = m->chunks->next;
        free(m->chunks);
        m->chunks = next;
    }
    while (m->reservations != NULL) {
        reservation *next = m->reservations->next;
        free(m->reservations);
        m->reservations = next;
    }
    free(m->addresses.gaps);
    free(m->lanes);
    free(m->block_of);
    free(m->list);
}

SELDOM static bool add_chunk(model *m) {
    struct chunk *c = malloc(sizeof *c);
    if (c == NULL) {
        m->status = NO_MEMORY;
        return false;
    }
    c->next = m->chunks;
    m->chunks = c;
    for (size_t i = 0; i < CHUNK_BLOCKS; i++) {
        c->blocks[i].after = m->spare;
        m->spare = c->blocks + i;
    }
    return true;
}

static uint32_t random_number(model *m) {
    m->random ^= m->random << 13;
    m->random ^= m->random >> 17;
    m->random ^= m->random << 5;
    return m->random;
}

block *model_block(model *m, int64_t addr, int64_t size, uint32_t lane, const reservation *space) {
    if (m->spare == NULL && !add_chunk(m)) {
        return NULL;
    }
    block *b = m->spare;
    m->spare = b->after;
    memset(b, 0, sizeof *b);
    b->addr = addr;
    b->size = size;
    b->lane = lane;
    b->space = space;
    b->priority = random_number(m);
    b->is_mapped = true;
    b->row = -1;
    return b;
}

void model_drop(model *m, block *b) {
    b->after = m->spare;
    m->spare = b;
}

static void link_between(block *b, block *before, block *after) {
    b->before = before;
    b->after = after;
    if (before != NULL) {
        before->after = b;
    }
    if (after != NULL) {
        after->before = b;
    }
}

block *model_cut_front(model *m, block *b, int64_t size) {
    block *front = model_block(m, b->addr, size, b->lane, b->space);
    if (front != NULL) {
        front->is_mapped = b->is_mapped;
        link_between(front, b->before, b);
        b->addr += size;
        b->size -= size;
    }
    return front;
}

block *model_cut_back(model *m, block *b, int64_t size) {
    block *back = model_block(m, b->addr + size, b->size - size, b->lane, b->space);
    if (back != NULL) {
        back->is_mapped = b->is_mapped;
        link_between(back, b, b->after);
        b->size = size;
    }
    return back;
}

static inline block_set *set_of(model *m, const block *b) {
    lane *l = m->lanes + b->lane;
    return b->is_mapped ? &l->mapped : &l->unmapped;
}

void model_insert(model *m, block *b) {
    b->gc_base = m->lanes[m->lanes[b->lane].first].n_searches;
    if (!blocks_insert(set_of(m, b), b)) {
        m->status = ODD; /* the twin takes one of two equal blocks for the other */
    }
}

void model_discard(model *m, block *b) { blocks_remove(set_of(m, b), b); }

/* Merges a free neighbour, if both are mapped or neither is. */
static void absorb(model *m, block *b, block *neighbour) {
    if (neighbour == NULL || is_active(neighbour) || neighbour->is_mapped != b->is_mapped) {
        return;
    }
    model_discard(m, neighbour);
    if (b->before == neighbour) {
        b->addr = neighbour->addr;
        link_between(b, neighbour->before, b->after);
    } else {
        link_between(b, b->before, neighbour->after);
    }
    b->size += neighbour->size;
    model_drop(m, neighbour);
}

void model_rejoin(model *m, block *b) {
    absorb(m, b, b->before);
    absorb(m, b, b->after);
    model_insert(m, b);
}

size_t free_blocks_of(model *m, size_t first_lane) {
    size_t n = 0;
    for (size_t i = first_lane; i < m->n_lanes && m->lanes[i].first == first_lane; i++) {
        for (block *b = blocks_first(&m->lanes[i].mapped); b != NULL; b = blocks_next(b)) {
            if (!reserve((void **)&m->list, &m->n_list, n + 1, sizeof *m->list)) {
                m->status = NO_MEMORY;
                return 0;
            }
            m->list[n++] = b;
        }
    }
    return n;
}

int64_t model_take_addresses(model *m, int64_t n_bytes) {
    int64_t addr = space_take(&m->addresses, n_bytes);
    if (m->addresses.end > MOST_SUM) {
        m->status = ODD;
    }
    return addr;
}

const reservation *model_reserve(model *m, int64_t addr, int64_t size, int64_t granule) {
    reservation *space = malloc(sizeof *space);
    if (space == NULL) {
        m->status = NO_MEMORY;
        return NULL;
    }
    *space = (reservation){addr, size, granule, m->reservations};
    m->reservations = space;
    return space;
}

void model_give_back(model *m, int64_t addr, int64_t n_bytes) {
    if (!space_give_back(&m->addresses, addr, n_bytes)) {
        m->status = NO_MEMORY;
    }
}

void count_memory(model *m, int64_t n_bytes, bool is_mapped) {
    ledger *l = &m->ledger;
    l->reserved += n_bytes;
    l->max_reserved = l->reserved > l->max_reserved ? l->reserved : l->max_reserved;
    l->n_segment_maps += is_mapped;
    l->n_segment_allocs += !is_mapped;
    if (l->reserved > MOST_SUM) {
        m->status = ODD;
    }
}

void count_pending(model *m, int64_t block_bytes, int64_t requested) {
    ledger *l = &m->ledger;
    l->requested += requested;
    l->active += block_bytes;
    if (l->active > MOST_SUM || l->requested > MOST_SUM || l->requested < -MOST_SUM) {
        m->status = ODD;
    }
}

void count_block(model *m, int64_t block_bytes, int64_t requested) {
    ledger *l = &m->ledger;
    l->allocated += block_bytes;
    l->max_allocated = l->allocated > l->max_allocated ? l->allocated : l->max_allocated;
    count_pending(m, block_bytes, requested);
}
