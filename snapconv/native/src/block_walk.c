/* Undoes the events of a device from the last to the first, and reads each block's size off its neighbours.
 *
 * The rules are those of replay/block_sizes.py, which has a list of addresses per segment. Here one set has them
 * all, which is the same as long as every address is inside its segment: whatever else is met is odd.
 */

#include <stdlib.h>
#include <string.h>

#include "address_set.h"
#include "buffer.h"
#include "core.h"

enum { ALLOC = 1, RELEASE = 3, SEGMENT_ALLOC = 4, SEGMENT_FREE = 5, SEGMENT_MAP = 6, SEGMENT_UNMAP = 7 };
enum { NO_SPACE = -1 };

typedef struct {
    int64_t start, end;
    bool is_expandable;
} segment;

struct walk {
    segment *segments; /* sorted, none empty, apart from each other */
    size_t n, n_max;
    address_set live;
    int64_t n_conflicts;
};

void snapconv_walk_free(walk *w) {
    if (w != NULL) {
        free(w->segments);
        set_free(&w->live);
        free(w);
    }
}

/* Where the first segment that begins after an address stands; found without a branch, as in address_set.c. */
static size_t count_starts(const walk *w, int64_t addr) {
    size_t low = 0, n = w->n;
    while (n > 0) {
        size_t half = (n + 1) / 2;
        low = w->segments[low + half - 1].start <= addr ? low + half : low;
        n -= half;
    }
    return low;
}

static segment *segment_of(const walk *w, int64_t addr) {
    size_t n = count_starts(w, addr);
    return n && addr < w->segments[n - 1].end ? w->segments + n - 1 : NULL;
}

static bool add_segments(walk *w, int64_t n, const int64_t *addr, const int64_t *n_bytes,
                         const uint8_t *is_expandable) {
    if (!reserve((void **)&w->segments, &w->n_max, (size_t)n + 1, sizeof(segment))) {
        return false;
    }
    for (int64_t i = 0; i < n; i++) {
        if (n_bytes[i] <= 0 || (i && addr[i] < w->segments[i - 1].end)) {
            return false;
        }
        w->segments[w->n++] = (segment){addr[i], addr[i] + n_bytes[i], is_expandable[i] != 0};
    }
    return true;
}

static bool add_blocks(walk *w, int64_t n, const int64_t *block_segment, const int64_t *block_addr) {
    for (int64_t i = 0; i < n; i++) {
        const segment *s = w->segments + block_segment[i];
        bool is_inside = s->start <= block_addr[i] && block_addr[i] < s->end;
        position p = set_find(&w->live, block_addr[i]);
        if (!is_inside || set_has(&w->live, p) || !set_insert(&w->live, p, block_addr[i], NO_SPACE)) {
            return false; /* they come sorted: what is not beyond the last one stands there twice */
        }
    }
    return true;
}

walk *snapconv_walk_new(int64_t n_segments, const int64_t *addr, const int64_t *n_bytes,
                        const uint8_t *is_expandable, int64_t n_blocks, const int64_t *block_segment,
                        const int64_t *block_addr) {
    walk *w = calloc(1, sizeof *w);
    if (w != NULL && (!add_segments(w, n_segments, addr, n_bytes, is_expandable) ||
                      !add_blocks(w, n_blocks, block_segment, block_addr))) {
        snapconv_walk_free(w);
        return NULL;
    }
    return w;
}

/* The block had what lies up to its next neighbour if the allocator would not have split that. */
static int64_t undo_alloc(walk *w, int64_t addr, int64_t rounded, int64_t least_remainder) {
    const segment *s = segment_of(w, addr);
    if (s == NULL) {
        w->n_conflicts++;
        return rounded;
    }
    position p = set_find(&w->live, addr);
    bool is_live = set_has(&w->live, p) && set_addr(&w->live, p) == addr;
    position next = is_live ? set_next(&w->live, p) : p;
    bool has_next = set_has(&w->live, next) && set_addr(&w->live, next) < s->end;
    int64_t space = (has_next ? set_addr(&w->live, next) : s->end) - addr;
    if (is_live) {
        set_remove(&w->live, p);
    } else {
        w->n_conflicts++;
    }
    if (space < rounded) {
        w->n_conflicts++;
    }
    return rounded <= space && space - rounded < least_remainder ? space : rounded;
}

static int undo_release(walk *w, int64_t addr) {
    const segment *s = segment_of(w, addr);
    if (s == NULL) {
        w->n_conflicts++;
        return MORE;
    }
    position p = set_find(&w->live, addr), before;
    bool has_next = set_has(&w->live, p) && set_addr(&w->live, p) < s->end;
    int64_t next = has_next ? set_addr(&w->live, p) : s->end;
    if (next == addr) {
        w->n_conflicts++;
        return MORE;
    }
    if (set_before(&w->live, p, &before) && set_addr(&w->live, before) >= s->start) {
        int64_t *space = set_space(&w->live, before), gap = addr - set_addr(&w->live, before);
        if (gap < *space) {
            *space = gap;
        }
    }
    return set_insert(&w->live, p, addr, next - addr) ? MORE : NO_MEMORY;
}

/* Puts n segments in the place of some others. */
static bool replace(walk *w, size_t first, size_t n_old, const segment *put, size_t n) {
    if (!reserve((void **)&w->segments, &w->n_max, w->n + n, sizeof(segment))) {
        return false;
    }
    segment *at = w->segments + first;
    memmove(at + n, at + n_old, (w->n - first - n_old) * sizeof(segment));
    if (n) {
        memcpy(at, put, n * sizeof(segment));
    }
    w->n = w->n - n_old + n;
    return true;
}

/* Removes a range that was mapped by the undone event; the rest of its segment stays. */
static int take_away(walk *w, int64_t start, int64_t end) {
    size_t n_starts = count_starts(w, start);
    if (n_starts == 0 || end > w->segments[n_starts - 1].end) {
        w->n_conflicts++;
        return MORE;
    }
    position p = set_find(&w->live, start);
    if (set_has(&w->live, p) && set_addr(&w->live, p) < end) {
        return ODD; /* live blocks outside every segment */
    }
    segment old = w->segments[n_starts - 1], kept[2];
    size_t n = 0;
    if (old.start < start) {
        kept[n++] = (segment){old.start, start, old.is_expandable};
    }
    if (end < old.end) {
        kept[n++] = (segment){end, old.end, old.is_expandable};
    }
    return replace(w, n_starts - 1, 1, kept, n) ? MORE : NO_MEMORY;
}

/* Adds a range that the undone event had released, joined to its expandable neighbours. */
static int give_back(walk *w, int64_t start, int64_t end, bool is_expandable) {
    size_t place = count_starts(w, start), first = place, last = place;
    const segment *before = place ? w->segments + place - 1 : NULL;
    const segment *after = place < w->n ? w->segments + place : NULL;
    if ((before && before->end > start) || (after && after->start < end)) {
        w->n_conflicts++;
        return MORE;
    }
    segment made = {start, end, is_expandable};
    if (is_expandable && before && before->end == start && before->is_expandable) {
        first--;
        made.start = before->start;
    }
    if (is_expandable && after && after->start == end && after->is_expandable) {
        last++;
        made.end = after->end;
    }
    return replace(w, first, last - first, &made, 1) ? MORE : NO_MEMORY;
}

static int undo_segment(walk *w, int kind, int64_t addr, int64_t size) {
    if (size <= 0) {
        return ODD;
    }
    bool grew = kind == SEGMENT_ALLOC || kind == SEGMENT_MAP;
    return grew ? take_away(w, addr, addr + size) : give_back(w, addr, addr + size, kind == SEGMENT_UNMAP);
}

int32_t snapconv_walk_undo(walk *w, int64_t n_events, const int8_t *kind, const int64_t *addr,
                           const int64_t *size, const int64_t *rounded, const int64_t *least_remainder,
                           int64_t *block_bytes) {
    int status = MORE;
    for (int64_t i = n_events - 1; i >= 0 && status == MORE; i--) {
        switch (kind[i]) {
        case ALLOC:
            block_bytes[i] = undo_alloc(w, addr[i], rounded[i], least_remainder[i]);
            break;
        case RELEASE:
            status = undo_release(w, addr[i]);
            break;
        case SEGMENT_ALLOC:
        case SEGMENT_FREE:
        case SEGMENT_MAP:
        case SEGMENT_UNMAP:
            status = undo_segment(w, kind[i], addr[i], size[i]);
            break;
        default:
            break;
        }
    }
    return status;
}

int64_t snapconv_walk_conflicts(const walk *w) { return w->n_conflicts; }

/* Fills two columns of the addresses of blocks that were released and not met as allocs; both may be NULL. */
int64_t snapconv_walk_least_space(const walk *w, int64_t *addr, int64_t *space) {
    int64_t n = 0;
    for (size_t i = 0; i < w->live.n_leaves; i++) {
        const leaf *l = w->live.leaves[i];
        for (size_t k = 0; k < l->n; k++) {
            if (l->space[k] == NO_SPACE) {
                continue;
            }
            if (addr != NULL && space != NULL) {
                addr[n] = l->addr[k];
                space[n] = l->space[k];
            }
            n++;
        }
    }
    return n;
}
