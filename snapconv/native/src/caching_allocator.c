#include "caching_allocator.h"

#include "expandable_segments.h"

/* The first block that is large enough, among expandable ones that with the least once its segment has grown. */
static block *best_candidate(const model *m, uint32_t lane_number, int64_t size) {
    block *best = blocks_fit(&m->lanes[lane_number].mapped, size);
    if (best == NULL || best->space == NULL) {
        return best;
    }
    if (!m->settings.is_expandable) {
        while (best != NULL && best->space != NULL) {
            best = blocks_next(best);
        }
        return best;
    }
    block *next = blocks_next(best);
    for (; next != NULL && best->space != NULL; next = blocks_next(next)) {
        const block *hole = next->after, *best_hole = best->after;
        int64_t grown = next->size + (hole != NULL && !hole->is_mapped ? hole->size : 0);
        int64_t best_grown = best->size + (best_hole != NULL && !best_hole->is_mapped ? best_hole->size : 0);
        if (grown >= best_grown) {
            break;
        }
        best = next;
    }
    return best;
}

/* Takes the best free block out of its pool, if one may serve. */
static block *best_fit(model *m, uint32_t lane_number, int64_t size) {
    const model_settings *s = &m->settings;
    if (s->garbage_bytes != NO_LIMIT) {
        m->lanes[m->lanes[lane_number].first].n_searches++;
    }
    block *b = best_candidate(m, lane_number, size);
    if (b == NULL) {
        return NULL;
    }
    /* A block of max_split_size or more is kept for requests of that size, and not for much smaller ones. */
    bool is_kept = is_oversize(s, size) ? b->size >= size + s->max_non_split_rounding : is_oversize(s, b->size);
    if (is_kept) {
        return NULL;
    }
    model_discard(m, b);
    return b;
}

/* Gives an unsplit segment back to the device. */
static void release_segment(model *m, block *b) {
    model_discard(m, b);
    model_give_back(m, b->addr, b->size);
    m->ledger.reserved -= b->size;
    model_drop(m, b);
}

/* Gives back the unsplit segments of a list that are at least of average age; the others stay in it. */
static size_t release_old(model *m, size_t n, int64_t n_searches, int64_t *n_bytes) {
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += n_searches - m->list[i]->gc_base;
    }
    double average = (double)sum / (double)n;
    size_t n_left = 0;
    for (size_t i = 0; i < n; i++) {
        block *b = m->list[i];
        if (b->space == NULL && (double)(n_searches - b->gc_base) >= average) {
            *n_bytes += b->size;
            release_segment(m, b);
        } else {
            m->list[n_left++] = b;
        }
    }
    return n_left;
}

/* Gives back the oldest free segments of the large default pool above the threshold. */
static void collect_garbage(model *m) {
    int64_t excess = m->settings.garbage_bytes == NO_LIMIT ? 0 : m->ledger.reserved - m->settings.garbage_bytes;
    size_t first = m->default_first[false], n = 0;
    if (excess <= 0 || first == m->n_lanes) {
        return;
    }
    size_t n_free = free_blocks_of(m, first);
    for (size_t i = 0; i < n_free; i++) {
        if (is_whole_segment(m->list[i])) {
            m->list[n++] = m->list[i];
        }
    }
    int64_t n_bytes = 0;
    while (n > 0 && n_bytes < excess) {
        size_t n_left = release_old(m, n, m->lanes[first].n_searches, &n_bytes);
        if (n_left == n) {
            break;
        }
        n = n_left;
    }
}

/* Gives back oversize blocks: the smallest that is enough, else the largest ones until they are enough together. */
static bool release_oversize(model *m, uint32_t lane_number, int64_t size) {
    int64_t limit = m->settings.max_split_size, min_bytes = size > limit ? size : limit, n_bytes = 0;
    if (limit == NO_LIMIT) {
        return false;
    }
    const block_set *set = &m->lanes[lane_number].mapped;
    block *b = blocks_fit(set, min_bytes);
    if (b != NULL && b->space == NULL) {
        n_bytes = is_whole_segment(b) ? b->size : 0;
        if (n_bytes) {
            release_segment(m, b);
        }
        return n_bytes >= min_bytes;
    }
    b = b != NULL ? blocks_before(b) : blocks_last(set);
    while (b != NULL && b->size >= limit && n_bytes < min_bytes) {
        block *before = blocks_before(b);
        if (b->space == NULL && is_whole_segment(b)) {
            n_bytes += b->size;
            release_segment(m, b);
        }
        b = before;
    }
    return n_bytes >= min_bytes;
}

/* Requests memory from the device. */
static block *new_segment(model *m, uint32_t lane_number, int64_t size) {
    int64_t n_bytes = segment_size(&m->settings, size);
    if (m->settings.limit != NO_LIMIT && m->ledger.reserved + n_bytes > m->settings.limit) {
        return NULL;
    }
    if (m->settings.is_expandable) {
        return expandable_allocate(m, lane_number, size);
    }
    if (!has_room(m, n_bytes)) {
        return NULL;
    }
    block *b = model_block(m, model_take_addresses(m, n_bytes), n_bytes, lane_number, NULL);
    count_memory(m, n_bytes, false);
    return b;
}

/* Gets a new segment, at need after giving cached ones back. */
static block *grow(model *m, uint32_t lane_number, int64_t size) {
    collect_garbage(m);
    block *b = new_segment(m, lane_number, size);
    if (b == NULL && m->status == MORE && release_oversize(m, lane_number, size)) {
        b = new_segment(m, lane_number, size);
    }
    if (b == NULL && m->status == MORE) {
        allocator_empty_cache(m);
        b = new_segment(m, lane_number, size);
    }
    return b;
}

block *allocator_take(model *m, uint32_t lane_number, int64_t size, int64_t requested, int64_t row) {
    block *b = best_fit(m, lane_number, size);
    if (b == NULL) {
        b = grow(m, lane_number, size);
    }
    if (b == NULL || m->status != MORE) {
        return NULL;
    }
    if (should_split(&m->settings, b->size, size, m->lanes[lane_number].is_small)) {
        block *remainder = b;
        b = model_cut_front(m, b, size);
        if (b == NULL) {
            return NULL;
        }
        model_insert(m, remainder);
    }
    b->is_allocated = true;
    b->requested = requested;
    b->row = row;
    count_block(m, b->size, requested);
    return b;
}

static void request_free(model *m, block *b) {
    b->is_allocated = false;
    m->ledger.allocated -= b->size;
}

/* Makes a freed block available. */
static void free_block(model *m, block *b) {
    m->ledger.requested -= b->requested;
    m->ledger.active -= b->size;
    if (b->row >= 0 && m->block_of[b->row] == b) {
        m->block_of[b->row] = NULL;
    }
    model_rejoin(m, b);
}

void allocator_give_back(model *m, block *b) {
    if (b->is_pending) {
        m->status = ODD; /* freed twice */
        return;
    }
    request_free(m, b);
    free_block(m, b);
}

void allocator_give_back_later(model *m, block *b) {
    if (b->is_pending) {
        m->status = ODD;
        return;
    }
    request_free(m, b);
    allocator_wait(m, b);
}

void allocator_wait(model *m, block *b) {
    b->is_pending = true;
    b->earlier = m->last_pending;
    b->later = NULL;
    *(m->last_pending != NULL ? &m->last_pending->later : &m->first_pending) = b;
    m->last_pending = b;
}

void allocator_complete(model *m, block *b) {
    if (!b->is_pending) {
        return;
    }
    *(b->earlier != NULL ? &b->earlier->later : &m->first_pending) = b->later;
    *(b->later != NULL ? &b->later->earlier : &m->last_pending) = b->earlier;
    b->is_pending = false;
    free_block(m, b);
}

void allocator_empty_cache(model *m) {
    while (m->first_pending != NULL) {
        allocator_complete(m, m->first_pending);
    }
    for (int is_small = 0; is_small < 2 && m->status == MORE; is_small++) {
        size_t n = free_blocks_of(m, m->default_first[is_small]), n_expandable = 0;
        for (size_t i = 0; i < n; i++) {
            block *b = m->list[i];
            if (b->space != NULL) {
                m->list[n_expandable++] = b;
            } else if (is_whole_segment(b)) {
                release_segment(m, b);
            }
        }
        for (size_t i = 0; i < n_expandable && m->status == MORE; i++) {
            expandable_release(m, m->list[i]);
        }
    }
}
