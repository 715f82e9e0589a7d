/* Makes the calls of a trace to the allocator model; the rules are those of hypotheses/trial.py. */

#include <stdlib.h>
#include <string.h>

#include "caching_allocator.h"
#include "core.h"
#include "expandable_segments.h"

enum operation { MALLOC, FREE, REQUEST_FREE, COMPLETE_FREE, EMPTY_CACHE, DEVICE_IS_FULL, FAILED_MALLOC };
enum { NO_ROW = -1, NO_EVENT = -1 };

struct replay {
    model model;
    snapconv_rows rows;
    int64_t capacity; /* that of the trial; a check sets another for some calls */
    bool is_check;
    bool is_full;
    int64_t figures[N_FIGURES];
};

static inline bool is_size(int64_t n_bytes) { return n_bytes > 0 && n_bytes <= MOST_BYTES; }
static inline bool is_request(int64_t n_bytes) { return n_bytes >= -MOST_BYTES && n_bytes <= MOST_BYTES; }
static inline bool is_limit(int64_t n_bytes) { return n_bytes == NO_LIMIT || (n_bytes >= 0 && n_bytes <= MOST_BYTES); }

static bool set_up(replay *r, const int64_t *settings) {
    model *m = &r->model;
    const snapconv_rows *rows = &r->rows;
    m->settings = (model_settings){settings[REPLAY_MAX_SPLIT_SIZE], settings[REPLAY_MAX_NON_SPLIT_ROUNDING],
                                   settings[REPLAY_LARGE_SEGMENT],  settings[REPLAY_IS_EXPANDABLE] != 0,
                                   settings[REPLAY_LIMIT],          settings[REPLAY_GARBAGE_BYTES]};
    m->capacity = r->capacity = settings[REPLAY_CAPACITY];
    m->addresses.end = settings[REPLAY_FIRST_ADDRESS];
    r->is_check = settings[REPLAY_IS_CHECK] != 0;
    r->figures[FIGURE_DIFFERS_AT] = NO_EVENT;
    if (settings[REPLAY_MAX_NON_SPLIT_ROUNDING] > MOST_SUM || !is_size(m->settings.large_segment) ||
        !is_limit(m->capacity) || !is_limit(m->settings.limit) || rows->n_lanes > UINT32_MAX) {
        m->status = ODD;
    }
    m->lanes = calloc((size_t)rows->n_lanes + 1, sizeof *m->lanes);
    m->block_of = calloc((size_t)rows->n_rows + 1, sizeof *m->block_of);
    if (m->lanes == NULL || m->block_of == NULL) {
        return false;
    }
    m->n_lanes = (size_t)rows->n_lanes;
    m->default_first[false] = m->default_first[true] = m->n_lanes;
    for (size_t i = m->n_lanes; i-- > 0;) {
        int64_t pool = rows->lane_pool[i];
        bool is_small = pool % 2 == 0;
        m->lanes[i].pool = pool;
        m->lanes[i].is_small = is_small;
        if (pool / 2 == settings[REPLAY_DEFAULT_POOL]) {
            m->default_first[is_small] = i;
        }
    }
    for (size_t i = 0; i < m->n_lanes; i++) {
        m->lanes[i].first = i && m->lanes[i - 1].pool == m->lanes[i].pool ? m->lanes[i - 1].first : i;
    }
    return true;
}

replay *snapconv_replay_new(const int64_t settings[N_REPLAY_SETTINGS], const snapconv_rows *rows, uint64_t seed) {
    replay *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return NULL;
    }
    r->rows = *rows;
    r->model.status = MORE;
    r->model.random = (uint32_t)seed | 1; /* never 0, which stays 0 */
    if (!set_up(r, settings)) {
        snapconv_replay_free(r);
        return NULL;
    }
    return r;
}

void snapconv_replay_free(replay *r) {
    if (r != NULL) {
        model_free(&r->model);
        free(r);
    }
}

static bool is_lane(const replay *r, int32_t lane) { return lane >= 0 && lane < r->rows.n_lanes; }

static bool is_row(const replay *r, int64_t row) { return row >= 0 && row < r->rows.n_rows; }

/* Links a block, of a segment that is taken over, behind the last one. */
static block *link_block(model *m, block *last, int64_t addr, int64_t size, uint32_t lane) {
    block *b = model_block(m, addr, size, lane, NULL);
    if (b != NULL && last != NULL) {
        b->before = last;
        last->after = b;
    }
    return b;
}

/* Gives the first block of a segment, with *n_taken more of the live ones in it; NULL where they are odd. */
static block *adopt_segment(replay *r, const snapconv_segment *s, const snapconv_live *live, int64_t n_live) {
    model *m = &r->model;
    block *first = NULL, *last = NULL;
    int64_t addr = s->addr, end = s->addr + s->size;
    for (int64_t i = 0; i <= n_live; i++) {
        int64_t next = i < n_live ? live[i].addr : end;
        if (next < addr || next > end) {
            m->status = ODD;
            return NULL;
        }
        if (next > addr) {
            last = link_block(m, last, addr, next - addr, (uint32_t)s->lane);
            first = first != NULL ? first : last;
        }
        if (i == n_live || m->status != MORE) {
            break;
        }
        bool is_valid = is_size(live[i].size) && is_row(r, live[i].row);
        if (!is_valid || !is_request(r->rows.requested[live[i].row])) {
            m->status = ODD;
            return NULL;
        }
        last = link_block(m, last, next, live[i].size, (uint32_t)s->lane);
        if (last == NULL) {
            return NULL;
        }
        first = first != NULL ? first : last;
        last->row = live[i].row;
        last->requested = r->rows.requested[live[i].row];
        last->is_allocated = !live[i].is_pending;
        last->is_pending = live[i].is_pending != 0;
        addr = next + live[i].size;
    }
    return m->status == MORE ? first : NULL;
}

/* Counts the blocks of a segment, and puts the free ones into their pool. */
static void take_over(replay *r, block *first, int64_t end) {
    model *m = &r->model;
    for (block *b = first; b != NULL && b->addr < end && m->status == MORE; b = b->after) {
        if (!b->is_mapped) {
            break; /* the hole behind the segment */
        }
        m->ledger.reserved += b->size;
        if (!is_active(b)) {
            model_insert(m, b);
            continue;
        }
        m->block_of[b->row] = b;
        r->rows.size[b->row] = b->size;
        if (b->is_allocated) {
            count_block(m, b->size, b->requested);
        } else {
            count_pending(m, b->size, b->requested);
            allocator_wait(m, b);
        }
    }
}

int32_t snapconv_replay_adopt(replay *r, int64_t n_segments, const snapconv_segment *segments, int64_t n_live,
                              const snapconv_live *live) {
    model *m = &r->model;
    block **firsts = calloc((size_t)n_segments + 1, sizeof *firsts);
    if (firsts == NULL) {
        return m->status = NO_MEMORY;
    }
    int64_t at = 0;
    size_t n_ordinary = 0;
    for (int64_t i = 0; i < n_segments && m->status == MORE; i++) {
        const snapconv_segment *s = segments + i;
        bool is_sorted = i == 0 || s->is_expandable > segments[i - 1].is_expandable ||
                         (s->is_expandable == segments[i - 1].is_expandable && s->addr > segments[i - 1].addr);
        if (!is_sorted || !is_size(s->size) || s->addr > MOST_SUM || s->addr < -MOST_SUM || !is_lane(r, s->lane)) {
            m->status = ODD;
            break;
        }
        int64_t n = 0;
        while (at + n < n_live && live[at + n].segment == i) {
            n++;
        }
        firsts[i] = adopt_segment(r, s, live + at, n);
        at += n;
        n_ordinary += !s->is_expandable;
    }
    if (m->status == MORE) {
        expandable_adopt(m, firsts + n_ordinary, (size_t)n_segments - n_ordinary);
    }
    for (int64_t i = 0; i < n_segments && m->status == MORE; i++) {
        take_over(r, firsts[i], segments[i].addr + segments[i].size);
    }
    free(firsts);
    m->ledger.max_reserved = m->ledger.reserved;
    if (m->ledger.reserved > MOST_SUM || at != n_live) {
        m->status = m->status == MORE ? ODD : m->status;
    }
    return m->status;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Keeps the figures of the first request that failed. */
static void fail(replay *r, int64_t event, int64_t row, int64_t size, uint32_t lane_number) {
    const model *m = &r->model;
    int64_t *f = r->figures, limit = least(m->capacity, m->settings.limit);
    if (f[FIGURE_RAN_OUT]) {
        return;
    }
    int64_t room = limit == NO_LIMIT || limit < m->ledger.reserved ? 0 : limit - m->ledger.reserved;
    int64_t lacking = segment_size(&m->settings, size) - room;
    f[FIGURE_RAN_OUT] = 1;
    f[FIGURE_FAILED_EVENT] = event;
    f[FIGURE_FAILED_ROW] = row;
    f[FIGURE_FAILED_SHORT] = lacking > 1 ? lacking : 1;
    f[FIGURE_FAILED_RESERVED] = m->ledger.reserved;
    f[FIGURE_FAILED_ALLOCATED] = m->ledger.allocated;
    for (block *b = blocks_first(&m->lanes[lane_number].mapped); b != NULL; b = blocks_next(b)) {
        f[FIGURE_FAILED_POOL_FREE] += b->size;
        f[FIGURE_FAILED_POOL_LARGEST] = b->size;
    }
}

/* Requests a block; NULL where memory runs out, or something is odd. number: behind the allocations it is a request
 * that failed in the trace.
 */
static block *take(replay *r, int64_t event, int64_t number, int32_t lane_number) {
    model *m = &r->model;
    int64_t size = r->rows.size[number], row = is_row(r, number) ? number : NO_ROW;
    if (!is_size(size) || !is_request(r->rows.requested[number]) || !is_lane(r, lane_number)) {
        m->status = ODD;
        return NULL;
    }
    block *b = allocator_take(m, (uint32_t)lane_number, size, r->rows.requested[number], row);
    if (b == NULL && m->status == MORE) {
        fail(r, event, row, size, (uint32_t)lane_number);
    }
    return b;
}

static void keep(replay *r, int64_t row, block *b) {
    r->model.block_of[row] = b;
    r->rows.size[row] = b->size;
}

int32_t snapconv_replay_place(replay *r, int64_t n_live, const snapconv_live *live, const int32_t *lane) {
    model *m = &r->model;
    for (int64_t i = 0; i < n_live && m->status == MORE; i++) {
        if (!is_row(r, live[i].row)) {
            return m->status = ODD;
        }
        block *b = take(r, NO_EVENT, live[i].row, lane[i]);
        if (b == NULL) {
            return m->status == MORE ? DONE : m->status;
        }
        keep(r, live[i].row, b);
    }
    for (int64_t i = 0; i < n_live && m->status == MORE; i++) {
        block *b = m->block_of[live[i].row];
        if (live[i].is_pending && b != NULL) {
            allocator_give_back_later(m, b);
        }
    }
    return m->status;
}

/* Requests memory; false where the replay ends here. */
static bool make_malloc(replay *r, int64_t row, int64_t event, const int64_t *reserved_after) {
    model *m = &r->model;
    bool is_full = r->is_check && r->is_full;
    if (is_full) { /* a full device had as much as the trace has reserved after the call */
        m->capacity = reserved_after[event];
    }
    block *b = take(r, event, row, r->rows.lane[row]);
    if (b == NULL) {
        r->figures[FIGURE_DIFFERS_AT] = event;
        return false;
    }
    keep(r, row, b);
    if (is_full) {
        r->is_full = false;
        m->capacity = r->capacity;
    }
    if (r->is_check && m->ledger.reserved != reserved_after[event]) {
        r->figures[FIGURE_DIFFERS_AT] = event;
        return false;
    }
    return true;
}

/* Requests what failed in the trace, and gives it back if it is served, as the trace lacks it. */
static void repeat_failed(replay *r, int64_t event, const int64_t *reserved_after) {
    model *m = &r->model;
    int64_t k = r->figures[FIGURE_N_REPEATED], number = r->rows.n_rows + k;
    if (k >= r->rows.n_failed) {
        m->status = ODD;
        return;
    }
    r->figures[FIGURE_N_REPEATED]++;
    r->rows.is_served[k] = 1;
    if (r->is_check) {
        m->capacity = reserved_after[event];
    } else if (m->capacity == NO_LIMIT && m->settings.limit == NO_LIMIT) {
        return;
    }
    block *b = take(r, event, number, r->rows.lane[number]);
    r->is_full = false;
    m->capacity = r->capacity;
    if (b == NULL) {
        r->rows.is_served[k] = 0;
    } else {
        r->figures[FIGURE_DIFFERS_AT] = event;
        allocator_give_back(m, b);
    }
}

static void make_rare(replay *r, int operation, int64_t event, block *b, const int64_t *reserved_after) {
    model *m = &r->model;
    if (operation == EMPTY_CACHE) {
        allocator_empty_cache(m);
    } else if (operation == FAILED_MALLOC) {
        repeat_failed(r, event, reserved_after);
    } else if (operation == DEVICE_IS_FULL) {
        r->is_full = r->is_check;
    } else if (operation == REQUEST_FREE && b != NULL) {
        allocator_give_back_later(m, b);
    } else if (operation == COMPLETE_FREE && b != NULL) {
        int64_t row = b->row;
        allocator_complete(m, b);
        m->block_of[row] = NULL;
    }
}

int32_t snapconv_replay_make(replay *r, int64_t n_calls, const int8_t *operation, const int64_t *row,
                             const int64_t *event, const int64_t *reserved_after, int64_t n_events) {
    model *m = &r->model;
    for (int64_t i = 0; i < n_calls && m->status == MORE; i++) {
        bool needs_row = operation[i] < EMPTY_CACHE;
        bool is_event = event[i] >= 0 && event[i] < n_events && reserved_after[event[i]] <= MOST_BYTES;
        if ((needs_row && !is_row(r, row[i])) || (r->is_check && !is_event)) {
            return m->status = ODD;
        }
        block *b = needs_row ? m->block_of[row[i]] : NULL;
        if (operation[i] == MALLOC) {
            if (!make_malloc(r, row[i], event[i], reserved_after)) {
                return m->status == MORE ? DONE : m->status;
            }
        } else if (operation[i] == FREE) {
            if (b != NULL) {
                allocator_give_back(m, b);
            }
        } else {
            make_rare(r, operation[i], event[i], b, reserved_after);
        }
    }
    return m->status;
}

void snapconv_replay_figures(const replay *r, int64_t figures[N_FIGURES]) {
    const ledger *l = &r->model.ledger;
    memcpy(figures, r->figures, sizeof r->figures);
    figures[FIGURE_REQUESTED] = l->requested;
    figures[FIGURE_ALLOCATED] = l->allocated;
    figures[FIGURE_ACTIVE] = l->active;
    figures[FIGURE_RESERVED] = l->reserved;
    figures[FIGURE_MAX_ALLOCATED] = l->max_allocated;
    figures[FIGURE_MAX_RESERVED] = l->max_reserved;
    figures[FIGURE_SEGMENT_ALLOCS] = l->n_segment_allocs;
    figures[FIGURE_SEGMENT_MAPS] = l->n_segment_maps;
}
