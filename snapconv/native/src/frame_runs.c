#include "frame_runs.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 26, MAX_HISTORY = 1 << 22 };

bool runs_init(frame_runs *f, uint64_t seed) {
    *f = (frame_runs){0};
    return table_init(&f->by_bytes, seed);
}

void runs_free(frame_runs *f) {
    buffer_free(&f->bytes);
    table_free(&f->by_bytes);
    free(f->runs);
    free(f->history);
    *f = (frame_runs){0};
}

size_t run_length(const uint8_t *bytes, size_t n) {
    size_t at = 0;
    while (at < n) {
        if (bytes[at] == 'h') {
            at += 2;
        } else if (bytes[at] == 'j') {
            at += 5;
        } else {
            return bytes[at] == 'e' ? at : 0;
        }
    }
    return 0;
}

uint32_t runs_expected(const frame_runs *f, const uint8_t *bytes, size_t n) {
    if (f->expected >= f->n_history) {
        return NO_RUN;
    }
    uint32_t expected = f->history[f->expected];
    const frame_run *run = f->runs + expected;
    bool is_same = run->n_bytes < n && bytes[run->n_bytes] == 'e' &&
                   memcmp(f->bytes.bytes + run->offset, bytes, run->n_bytes) == 0;
    return is_same ? expected : NO_RUN;
}

uint32_t runs_find(frame_runs *f, const uint8_t *bytes, size_t n) {
    const interned *place = table_find(&f->by_bytes, &f->bytes, bytes, n);
    return place != NULL && place->is_used ? place->id : NO_RUN;
}

uint32_t runs_add(frame_runs *f, const uint8_t *bytes, size_t n, uint32_t stack) {
    interned *place = table_find(&f->by_bytes, &f->bytes, bytes, n);
    if (place == NULL || f->bytes.n > MAX_BYTES || !buffer_reserve(&f->bytes, n) ||
        !reserve((void **)&f->runs, &f->n_max, f->n + 1, sizeof(frame_run))) {
        return NO_RUN;
    }
    memcpy(f->bytes.bytes + f->bytes.n, bytes, n);
    table_use(&f->by_bytes, place, f->bytes.n, n, (uint32_t)f->n);
    f->runs[f->n] = (frame_run){f->bytes.n, (uint32_t)n, stack, UINT32_MAX};
    f->bytes.n += n;
    return (uint32_t)f->n++;
}

void runs_came(frame_runs *f, uint32_t run) {
    bool was_expected = f->expected < f->n_history && f->history[f->expected] == run;
    f->expected = was_expected ? f->expected + 1 : f->runs[run].after;
    /* Where the history ends, what came within it is still expected again. */
    if (f->n_history < MAX_HISTORY &&
        reserve((void **)&f->history, &f->n_history_max, f->n_history + 1, sizeof(uint32_t))) {
        f->history[f->n_history++] = run;
        f->runs[run].after = (uint32_t)f->n_history;
    }
}
