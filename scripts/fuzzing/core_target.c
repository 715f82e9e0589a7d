/* What libFuzzer calls: the first byte chooses reading or replaying, and in which pieces; the others are the input. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../snapconv/native/src/core.h"
#include "words.h" /* FIELD_WORDS, ACTION_WORDS and OOM, which scripts/fuzz_native takes out of the Python */

enum { MAX_EVENTS = 4096, EVENT_BYTES = 6 };

static const char *const FIELDS[] = {FIELD_WORDS};
static const char *const ACTIONS[] = {ACTION_WORDS};
enum { N_FIELD_WORDS = sizeof FIELDS / sizeof *FIELDS, N_ACTIONS = sizeof ACTIONS / sizeof *ACTIONS };

static void must(int holds) {
    if (!holds) {
        abort();
    }
}

static uint64_t with_bytes(uint64_t sum, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        sum = (sum ^ ((const uint8_t *)bytes)[i]) * UINT64_C(1099511628211);
    }
    return sum;
}

/* Every byte of the result has to be there, and every index has to lead somewhere. Gives a sum of all bytes. */
static uint64_t check_result(const reader *r) {
    snapconv_events found;
    snapconv_reader_events(r, &found);
    must(found.rest[0] == 0x80 && found.rest[found.n_rest_bytes - 1] == '.');
    uint64_t n_statements = 0;
    for (uint64_t i = 0; i < found.n_rest_bytes; i++) {
        n_statements += found.rest[i] == 0x94;
    }
    uint64_t sum = with_bytes(found.n_events, found.rest, found.n_rest_bytes);
    for (int column = 0; column < N_COLUMNS; column++) {
        const uint8_t *at = found.columns[column];
        size_t n_bytes = column < COLUMN_ADDR ? 1 : column < COLUMN_FRAMES ? 8 : 4;
        sum = with_bytes(sum, at, at == NULL ? 0 : found.n_events * n_bytes);
        for (size_t i = 0; at != NULL && column >= COLUMN_FRAMES && i < found.n_events; i++) {
            int32_t id = ((const int32_t *)found.columns[column])[i];
            must(id >= -1 && (id < 0 || (uint64_t)id < (column == COLUMN_FRAMES ? found.n_stacks : n_statements)));
        }
    }
    for (uint64_t i = 0; i < found.n_frames; i++) {
        const snapconv_frame *frame = found.frames + i;
        must(frame->name < n_statements && frame->filename < n_statements && frame->line <= INT32_MAX);
        sum = with_bytes(sum, frame, sizeof *frame);
    }
    for (uint64_t i = 0, at = 0; i < found.n_stacks; i++) {
        must(found.stacks[i].end >= at && found.stacks[i].memo < n_statements);
        for (; at < found.stacks[i].end; at++) {
            must(found.frame_ids[at] >= 0 && (uint64_t)found.frame_ids[at] < found.n_frames);
            sum = with_bytes(sum, found.frame_ids + at, sizeof *found.frame_ids);
        }
    }
    for (uint64_t i = 0; i < found.n_unknown; i++) {
        must(found.unknown[i].text < n_statements && found.unknown[i].count);
    }
    return sum;
}

/* Gives the sum of what was read, or else the status. */
static uint64_t read_bytes(const uint8_t *data, size_t n, size_t n_at_once) {
    reader *r = snapconv_reader_new(1);
    must(r != NULL);
    for (int i = 0; i < N_FIELD_WORDS; i++) {
        must(snapconv_reader_define(r, (const uint8_t *)FIELDS[i], (uint32_t)strlen(FIELDS[i]), i + 1, 0, 0) == MORE);
    }
    for (int i = 0; i < N_ACTIONS; i++) {
        const char *word = ACTIONS[i];
        must(snapconv_reader_define(r, (const uint8_t *)word, (uint32_t)strlen(word), 0, i + 1, i + 1 == OOM) == MORE);
    }
    int status = MORE;
    size_t at = 0, n_open = n_at_once;
    while (status == MORE && at < n) {
        size_t n_now = n_open < n - at ? n_open : n - at;
        uint8_t *window = malloc(n_now); /* its own, so that one byte beyond it is seen */
        must(window != NULL);
        memcpy(window, data + at, n_now);
        int64_t n_taken = 0;
        status = snapconv_reader_feed(r, window, (int64_t)n_now, &n_taken);
        free(window);
        must(n_taken >= 0 && (size_t)n_taken <= n_now);
        if (status == MORE && n_taken == 0 && n_now == n - at) {
            break;
        }
        n_open = n_taken == 0 ? n_open * 2 : n_at_once;
        at += (size_t)n_taken;
    }
    uint64_t sum = status == DONE ? check_result(r) : (uint64_t)status;
    snapconv_reader_free(r);
    return sum;
}

typedef struct {
    int8_t kind[MAX_EVENTS];
    uint8_t is_release[MAX_EVENTS];
    int64_t addr[MAX_EVENTS], size[MAX_EVENTS], rounded[MAX_EVENTS], least[MAX_EVENTS], bytes[MAX_EVENTS];
    int64_t rows[5][MAX_EVENTS];
} history;

static int64_t small_address(uint8_t low, uint8_t high) { return ((int64_t)high << 12 | (int64_t)low << 4) - 64; }

static size_t fill_history(history *h, const uint8_t *data, size_t n) {
    size_t n_events = n / EVENT_BYTES < MAX_EVENTS ? n / EVENT_BYTES : MAX_EVENTS;
    for (size_t i = 0; i < n_events; i++) {
        const uint8_t *at = data + i * EVENT_BYTES;
        h->kind[i] = (int8_t)(at[0] % 9);
        h->is_release[i] = at[0] & 0x80;
        h->addr[i] = small_address(at[1], at[2]);
        h->size[i] = (int64_t)at[3] << (at[4] % 24);
        h->rounded[i] = (h->size[i] + 511) / 512 * 512;
        h->least[i] = at[5] & 1 ? 512 : (int64_t)1 << 62;
    }
    return n_events;
}

static void pair(history *h, size_t n_events) {
    int64_t counts[3];
    pairing *p = snapconv_pairing_new(1, h->is_release, h->rows[0], h->rows[1], h->rows[2], h->rows[3], h->rows[4]);
    must(p != NULL);
    size_t half = n_events / 2;
    if (snapconv_pairing_add(p, 0, (int64_t)half, h->kind, h->addr) == MORE &&
        snapconv_pairing_add(p, (int64_t)half, (int64_t)(n_events - half), h->kind + half, h->addr + half) == MORE) {
        snapconv_pairing_finish(p, counts);
        must(counts[0] >= 0 && (size_t)counts[0] <= n_events && counts[1] >= 0 && counts[2] >= 0);
        for (int64_t row = 0; row < counts[0]; row++) {
            for (int k = 0; k < 4; k++) {
                must(h->rows[k][row] >= -1 && h->rows[k][row] < (int64_t)n_events);
            }
        }
    }
    snapconv_pairing_free(p);
}

static void walk_back(history *h, size_t n_events, const uint8_t *data) {
    int64_t addr[4], n_bytes[4], block[4], zero[4] = {0, 0, 1, 1};
    uint8_t is_expandable[4];
    for (int i = 0; i < 4; i++) {
        addr[i] = (int64_t)i << 20;
        n_bytes[i] = (int64_t)(data[i] + 1) << 12;
        is_expandable[i] = data[i] & 1;
        block[i] = addr[zero[i]] + (int64_t)data[i] * (i + 1) * 16;
    }
    walk *w = snapconv_walk_new(4, addr, n_bytes, is_expandable, data[0] % 5, zero, block);
    if (w == NULL) {
        return;
    }
    if (snapconv_walk_undo(w, (int64_t)n_events, h->kind, h->addr, h->size, h->rounded, h->least, h->bytes) == MORE) {
        int64_t n = snapconv_walk_least_space(w, NULL, NULL);
        must(n >= 0 && (size_t)n <= n_events && snapconv_walk_conflicts(w) >= 0);
        must(snapconv_walk_least_space(w, h->rows[0], h->rows[1]) == n);
    }
    snapconv_walk_free(w);
}

enum { N_ROWS = 64, N_LIVE = 4, N_FAILED = 8 };

/* Sizes around those at which the rules change, whole or not. */
static int64_t size_of(uint8_t scale, uint8_t rest) {
    return ((int64_t)1 << scale % 27) + (int64_t)rest * (rest & 1 ? 512 : 1);
}

static void set_rows(snapconv_rows *rows, int64_t *size, int64_t *requested, int32_t *lane, const uint8_t *data) {
    static const int64_t POOLS[] = {0, 0, 1, 1, 2, 3};
    static int8_t is_served[N_FAILED];
    for (int i = 0; i < N_ROWS + N_FAILED; i++) {
        requested[i] = size_of(data[i % 7], (uint8_t)(data[i % 5] * i));
        size[i] = (requested[i] + 511) / 512 * 512;
        lane[i] = (int32_t)(data[i % 3] + i) % 2 + (size[i] > 1 << 20 ? 2 : 0) + (data[6] % 31 == 0 ? 4 : 0);
    }
    *rows = (snapconv_rows){N_ROWS, N_FAILED, size, requested, lane, 6, POOLS, is_served};
}

/* The memory before the calls: in segments that lie as the data say, or of blocks that are placed anew. */
static int32_t begin(replay *r, const uint8_t *data) {
    snapconv_segment segments[N_LIVE];
    snapconv_live live[N_LIVE];
    int32_t lane[N_LIVE];
    int64_t addr = 0;
    for (int i = 0; i < N_LIVE; i++) {
        int64_t n_bytes = (int64_t)(data[i] % 8 + 1) << 21;
        segments[i] = (snapconv_segment){addr, n_bytes, data[i] % 4, i >= data[5] % 5};
        int64_t live_bytes = size_of(data[i + 2], 1) / 512 * 512;
        live[i] = (snapconv_live){addr + (int64_t)data[i + 1] * 512, live_bytes, i, i, data[i] >> 7};
        lane[i] = data[i] % 4;
        addr += n_bytes + (data[i] & 16 ? (int64_t)1 << 21 : 0);
    }
    if (data[6] & 1) {
        return snapconv_replay_place(r, N_LIVE, live, lane);
    }
    return snapconv_replay_adopt(r, N_LIVE, segments, N_LIVE, live);
}

static void replay_calls(history *h, size_t n_events, const uint8_t *data) {
    int64_t size[N_ROWS + N_FAILED], requested[N_ROWS + N_FAILED], figures[N_FIGURES];
    int32_t lane[N_ROWS + N_FAILED];
    snapconv_rows rows;
    set_rows(&rows, size, requested, lane, data);
    int64_t limit = data[2] & 1 ? INT64_MAX : (int64_t)(data[2] + 1) << 20;
    int64_t settings[N_REPLAY_SETTINGS] = {0};
    settings[REPLAY_MAX_SPLIT_SIZE] = data[0] & 1 ? INT64_MAX : (int64_t)(data[0] + 20) << 20;
    settings[REPLAY_MAX_NON_SPLIT_ROUNDING] = (int64_t)20 << 20;
    settings[REPLAY_LARGE_SEGMENT] = (int64_t)(data[1] % 2 + 1) * 20 << 20;
    settings[REPLAY_IS_EXPANDABLE] = data[1] & 4;
    settings[REPLAY_CAPACITY] = data[3] & 1 ? INT64_MAX : (int64_t)data[3] << 21;
    settings[REPLAY_LIMIT] = limit;
    settings[REPLAY_GARBAGE_BYTES] = limit == INT64_MAX || data[4] & 1 ? INT64_MAX : limit / 2;
    settings[REPLAY_IS_CHECK] = data[4] & 2;
    settings[REPLAY_FIRST_ADDRESS] = (int64_t)1 << 50;
    replay *r = snapconv_replay_new(settings, &rows, data[5]);
    must(r != NULL);
    for (size_t i = 0; i < n_events; i++) {
        h->kind[i] %= 7;
        h->rows[0][i] = h->size[i] % N_ROWS;
        h->rows[1][i] = (int64_t)i;
    }
    size_t half = n_events / 2;
    int64_t *row = h->rows[0], *event = h->rows[1], n = (int64_t)n_events, n_first = (int64_t)half;
    if (begin(r, data) == MORE && snapconv_replay_make(r, n_first, h->kind, row, event, h->rounded, n) == MORE) {
        snapconv_replay_make(r, n - n_first, h->kind + half, row + half, event + half, h->rounded, n);
        snapconv_replay_figures(r, figures);
        must(figures[FIGURE_MAX_RESERVED] >= figures[FIGURE_RESERVED] && figures[FIGURE_N_REPEATED] <= N_FAILED);
    }
    snapconv_replay_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const size_t PIECES[] = {1 << 18, 1, 3, 256};
    if (n < 8) {
        return 0;
    }
    if (data[0] % 8) {
        /* In small pieces, events are read token by token. */
        must(read_bytes(data + 1, n - 1, PIECES[data[0] % 4]) == read_bytes(data + 1, n - 1, PIECES[0]));
        return 0;
    }
    static history h;
    size_t n_events = fill_history(&h, data + 8, n - 8);
    pair(&h, n_events);
    walk_back(&h, n_events, data + 1);
    replay_calls(&h, n_events, data + 1);
    return 0;
}

#ifdef ALONE
/* Without libFuzzer: run every file that is named, such as the kept corpus. */
int main(int argc, char **argv) {
    static uint8_t data[1 << 22];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        must(file != NULL);
        size_t n = fread(data, 1, sizeof data, file);
        fclose(file);
        LLVMFuzzerTestOneInput(data, n);
    }
    printf("%d inputs\n", argc - 1);
    return 0;
}
#endif
