#include "address_space.h"

#include <string.h>

#include "buffer.h"
#include "model_settings.h"

static void remove_gap(address_space *s, size_t at) {
    s->n--;
    memmove(s->gaps + at, s->gaps + at + 1, (s->n - at) * sizeof *s->gaps);
}

int64_t space_take(address_space *s, int64_t n_bytes) {
    int64_t size = round_up(n_bytes, SEGMENT_GRANULE_BYTES);
    for (size_t i = 0; i < s->n; i++) {
        int64_t addr = s->gaps[i].start;
        if (s->gaps[i].end - addr >= size) {
            s->gaps[i].start += size;
            if (s->gaps[i].start == s->gaps[i].end) {
                remove_gap(s, i);
            }
            return addr;
        }
    }
    s->end += size;
    return s->end - size;
}

bool space_give_back(address_space *s, int64_t addr, int64_t n_bytes) {
    int64_t end = addr + round_up(n_bytes, SEGMENT_GRANULE_BYTES);
    size_t at = 0;
    for (size_t n = s->n; n > 0;) { /* the first gap that begins behind the address */
        size_t half = (n + 1) / 2;
        at = s->gaps[at + half - 1].start <= addr ? at + half : at;
        n -= half;
    }
    gap *before = at ? s->gaps + at - 1 : NULL, *after = at < s->n ? s->gaps + at : NULL;
    if ((before != NULL && before->end > addr) || (after != NULL && after->start < end)) {
        return true;
    }
    bool joins_before = before != NULL && before->end == addr, joins_after = after != NULL && after->start == end;
    if (joins_before) {
        before->end = joins_after ? after->end : end;
        if (joins_after) {
            remove_gap(s, at);
        }
        return true;
    }
    if (joins_after) {
        after->start = addr;
        return true;
    }
    if (!reserve((void **)&s->gaps, &s->n_max, s->n + 1, sizeof *s->gaps)) {
        return false;
    }
    memmove(s->gaps + at + 1, s->gaps + at, (s->n - at) * sizeof *s->gaps);
    s->gaps[at] = (gap){addr, end};
    s->n++;
    return true;
}
