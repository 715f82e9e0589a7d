/* What both ways of reading do with the machine's state: texts, rows and stacks of frames. */
#include "machine.h"

enum {
    MAX_VALUES = 1 << 22, /* on the stack: 64 MiB; torch's C++ writer puts a whole list there */
    MAX_TEXT = 4096 /* characters of a frame's text, as in stack_table.py */
};

/* Bytes of the beginning of a text: of so many characters, or all. */
static uint32_t bytes_of(const uint8_t *text, uint32_t n_bytes, uint32_t n_characters) {
    for (uint32_t i = 0, n = 0; i < n_bytes; i++) {
        n += (text[i] & 0xc0) != 0x80;
        if (n > n_characters) {
            return i;
        }
    }
    return n_bytes;
}

/* Texts that are new mean nothing. */
uint32_t text_id(reader *r, const uint8_t *text, uint32_t n_bytes) {
    uint32_t n_before = r->rest.n_statements;
    uint32_t id = rest_text(&r->rest, text, n_bytes);
    if (id == NO_ID || !reserve((void **)&r->meanings, &r->n_meanings_max, (size_t)id + 1, sizeof(meaning))) {
        return NO_ID;
    }
    if (id == n_before) {
        uint32_t n_cut = n_bytes > MAX_TEXT ? bytes_of(text, n_bytes, MAX_TEXT) : n_bytes;
        uint32_t cut = n_cut < n_bytes ? text_id(r, text, n_cut) : id;
        if (cut == NO_ID) {
            return NO_ID;
        }
        r->meanings[id] = (meaning){0, 0, 0, cut};
    }
    return id;
}

SELDOM int push_with_room(reader *r, value v) {
    if (r->n_stack >= MAX_VALUES) {
        return ODD;
    }
    if (!reserve((void **)&r->stack, &r->n_stack_max, r->n_stack + 1, sizeof(value))) {
        return NO_MEMORY;
    }
    r->stack[r->n_stack++] = v;
    return MORE;
}

int push_row(reader *r) {
    int64_t row = (int64_t)r->events.n - 1;
    if (row >= UINT32_MAX - 1) {
        return ODD;
    }
    value *before = r->n_stack > fence(r) ? r->stack + r->n_stack - 1 : NULL;
    if (before != NULL && before->tag == TAG_EVENTS && before->number + before->memo == row) {
        before->memo++;
        return MORE;
    }
    return push(r, (value){.tag = TAG_EVENTS, .memo = 1, .number = row});
}

uint32_t close_stack(reader *r) {
    size_t n_before = r->stacks.n;
    uint32_t stack = stacks_close(&r->stacks, r->rest.n_statements);
    return r->stacks.n > n_before && rest_stack(&r->rest, stack) == NO_ID ? NO_ID : stack;
}

bool settle_frames(reader *r, const value *key, value *list) {
    if (list->tag == TAG_NEW_LIST && r->meanings[key->number].field == FIELD_FRAMES) {
        *list = (value){.tag = TAG_STACK, .memo = NO_MEMO, .number = close_stack(r)};
    }
    return list->tag != TAG_STACK || list->number != NO_ID;
}

/* The stack that a run is; NO_ID where not all of it are frames. */
static uint32_t stack_of_run(reader *r, const uint8_t *bytes, size_t n) {
    size_t n_frames = 0;
    for (size_t at = 0; at < n; at += reference_bytes(bytes[at])) {
        uint64_t index = reference(bytes + at);
        bool is_frame = index < r->n_memo && r->memo[index].tag == TAG_FRAME && n_frames++ < MAX_FRAMES;
        if (!is_frame || !stacks_push(&r->stacks, r->memo[index].id)) {
            stacks_cancel(&r->stacks);
            return NO_ID;
        }
    }
    return close_stack(r);
}

/* The run that these bytes begin with, kept for the next time if it is new; NO_RUN where there is none. */
static uint32_t find_run(reader *r, const uint8_t *bytes, size_t n) {
    size_t n_run = run_length(bytes, n);
    uint32_t run = n_run ? runs_find(&r->runs, bytes, n_run) : NO_RUN;
    if (n_run == 0 || run != NO_RUN) {
        return run;
    }
    uint32_t stack = stack_of_run(r, bytes, n_run);
    return stack == NO_ID ? NO_RUN : runs_add(&r->runs, bytes, n_run, stack);
}

uint32_t known_run(reader *r, const uint8_t *after_mark, size_t n) {
    uint32_t run = runs_expected(&r->runs, after_mark, n);
    if (run == NO_RUN) {
        run = find_run(r, after_mark, n);
    }
    if (run != NO_RUN) {
        runs_came(&r->runs, run);
    }
    return run;
}
