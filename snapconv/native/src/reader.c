/* The machine that reads a pickle: opcodes to a stack of values, dictionaries with an action to columns. */

#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "machine.h"
#include "whole_events.h"

enum {
    MAX_MARKS = 1 << 20,
    MAX_TUPLE = 3,
    MAX_INTEGER_BYTES = 9,
    COUNTED_BYTES = 240, /* at once, by numbers of 8 bits; vectors leave no rest of it */
    CHUNK_BYTES = 1 << 24, /* these three as in plain_pickle.py, which refuses the same files */
    MIN_CONTAINER_BYTES = 4,
    FEW_CONTAINERS = 1000000
};

int32_t snapconv_abi(void) { return SNAPCONV_ABI; }

reader *snapconv_reader_new(uint64_t seed) {
    reader *r = calloc(1, sizeof *r);
    if (r != NULL && (!rest_init(&r->rest, seed) || !runs_init(&r->runs, seed) ||
                      !stacks_init(&r->stacks, seed))) {
        snapconv_reader_free(r);
        return NULL;
    }
    return r;
}

static void free_machine(reader *r) {
    free(r->meanings);
    free(r->stack);
    free(r->marks);
    free(r->memo);
    runs_free(&r->runs);
    r->meanings = NULL;
    r->stack = NULL;
    r->marks = NULL;
    r->memo = NULL;
}

void snapconv_reader_free(reader *r) {
    if (r != NULL) {
        free_machine(r);
        rest_free(&r->rest);
        stacks_free(&r->stacks);
        events_free(&r->events);
        free(r);
    }
}

int32_t snapconv_reader_define(reader *r, const uint8_t *text, uint32_t n_bytes, int32_t field, int32_t action,
                               int32_t is_oom) {
    uint32_t id = text_id(r, text, n_bytes);
    if (id == NO_ID) {
        return NO_MEMORY;
    }
    meaning *known = r->meanings + id; /* one word may be both: annotate, say */
    if (field) {
        known->field = (uint8_t)field;
    }
    if (action) {
        known->action = (uint8_t)action;
        known->is_oom = is_oom != 0;
    }
    return MORE;
}

static int push_plain(reader *r, int tag, int64_t number) {
    return push(r, (value){.tag = (uint8_t)tag, .memo = NO_MEMO, .number = number});
}

static int push_mark(reader *r) {
    if (r->n_marks >= MAX_MARKS) {
        return ODD;
    }
    if (!reserve((void **)&r->marks, &r->n_marks_max, r->n_marks + 1, sizeof(size_t))) {
        return NO_MEMORY;
    }
    r->marks[r->n_marks++] = r->n_stack;
    return MORE;
}

/* Takes the last mark off, and gives where its items begin; -1 without a mark or what stands before it. */
static int64_t pop_mark(reader *r, size_t n_before) {
    if (r->n_marks == 0) {
        return -1;
    }
    size_t first = r->marks[--r->n_marks];
    return first >= fence(r) + n_before ? (int64_t)first : -1;
}

/* Puts the value on top into the memo. Picklers number their entries one by one; any other index is odd. */
static int put_memo(reader *r, uint64_t index) {
    if (index != r->n_memo || r->n_memo >= NO_MEMO || r->n_stack == fence(r)) {
        return ODD;
    }
    value *top = r->stack + r->n_stack - 1;
    bool may_grow = top->tag == TAG_LIST || top->tag == TAG_DICT || top->tag == TAG_NEW_LIST ||
                    top->tag == TAG_NEW_DICT;
    if (top->tag < TAG_TEXT || (may_grow && (top->is_copy || top->memo != NO_MEMO))) {
        return ODD;
    }
    if (!reserve((void **)&r->memo, &r->n_memo_max, r->n_memo + 1, sizeof(memo_entry))) {
        return NO_MEMORY;
    }
    bool is_run = top->tag == TAG_EVENTS || top->tag == TAG_TRACE;
    r->memo[r->n_memo] = (memo_entry){top->tag, 0, is_run ? 0 : (uint32_t)top->number};
    if (may_grow) {
        top->memo = (uint32_t)r->n_memo;
    }
    r->n_memo++;
    return MORE;
}

/* Events are rows: one that stands in two places is odd. */
static int get_memo(reader *r, uint64_t index) {
    if (index >= r->n_memo) {
        return ODD;
    }
    memo_entry *entry = r->memo + index;
    if (entry->tag >= TAG_EVENTS) {
        return ODD;
    }
    if (entry->tag >= TAG_DICT) {
        entry->was_read = 1;
    }
    return push(r, (value){.tag = entry->tag, .is_copy = 1, .memo = NO_MEMO, .number = entry->id});
}

/* Whether a container may be filled further: it is the one on which the file's memo has no other eye. */
static bool may_grow(const reader *r, const value *v) {
    return !v->is_copy && (v->memo == NO_MEMO || !r->memo[v->memo].was_read);
}

/* Makes a new container what its first items show; the memo learns it too. */
static void settle(reader *r, value *container, int tag, int64_t number) {
    if (container->memo != NO_MEMO) {
        r->memo[container->memo].tag = (uint8_t)tag;
        r->memo[container->memo].id = tag >= TAG_EVENTS ? 0 : (uint32_t)number;
    }
    container->tag = (uint8_t)tag;
    container->number = number;
}

/* Whether a value can stand in a list of the rest; the twin reads frames and stacks that are in unusual places. */
static bool is_item(const value *v) { return v->tag != TAG_EVENTS && v->tag != TAG_FRAME && v->tag != TAG_STACK; }

static bool are_items(const value *items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!is_item(items + i)) {
            return false;
        }
    }
    return true;
}

/* Gives values the form that they have in a dictionary of the rest; false where one can be in none. */
static bool to_rest(const reader *r, value *pairs, size_t n) {
    for (size_t i = 0; i < n; i += 2) {
        value *v = pairs + i + 1;
        if (v->tag == TAG_STACK && r->meanings[pairs[i].number].field == FIELD_FRAMES) {
            v->number = (int64_t)r->stacks.stacks[v->number].memo;
        } else if (!is_item(v)) {
            return false;
        }
    }
    return true;
}

static bool are_frames(const value *items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (items[i].tag != TAG_FRAME) {
            return false;
        }
    }
    return true;
}

static uint32_t stack_of(reader *r, const value *frames, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!stacks_push(&r->stacks, (uint32_t)frames[i].number)) {
            return NO_ID;
        }
    }
    return close_stack(r);
}

static int first_items(reader *r, value *list, const value *items, size_t n) {
    if (n == 1 && items->tag == TAG_EVENTS) {
        uint32_t n_events = items->memo;
        settle(r, list, TAG_TRACE, items->number);
        list->memo = n_events;
        return MORE;
    }
    bool is_stack = n <= MAX_FRAMES && are_frames(items, n);
    if (!is_stack && !are_items(items, n)) {
        return ODD;
    }
    uint32_t id = is_stack ? stack_of(r, items, n) : rest_new(&r->rest, ']', items, n, 'e');
    if (id == NO_ID) {
        return ODD;
    }
    settle(r, list, is_stack ? TAG_STACK : TAG_LIST, id);
    return MORE;
}

static int more_items(reader *r, value *list, const value *items, size_t n) {
    if (list->tag == TAG_TRACE) {
        bool follows = n == 1 && items->tag == TAG_EVENTS && items->number == list->number + list->memo;
        if (!follows || list->memo > UINT32_MAX - items->memo) {
            return ODD;
        }
        list->memo += items->memo;
        return MORE;
    }
    if (list->tag != TAG_LIST || !may_grow(r, list) || !are_items(items, n)) {
        return ODD;
    }
    return rest_grow(&r->rest, (uint32_t)list->number, items, n, 'e') ? MORE : NO_MEMORY;
}

/* Appends the items from first on to the list below them. */
static int fill_list(reader *r, size_t first) {
    size_t n = r->n_stack - first;
    value *list = r->stack + first - 1;
    int status = MORE;
    if (n) {
        bool is_new = list->tag == TAG_NEW_LIST && may_grow(r, list);
        status = is_new ? first_items(r, list, list + 1, n) : more_items(r, list, list + 1, n);
    }
    r->n_stack = first;
    return status;
}

/* What a new dictionary is, by its keys; a frame has plain values. */
static int kind_of(const reader *r, const value *pairs, size_t n) {
    int kind = TAG_DICT;
    bool is_plain = true;
    for (size_t i = 0; i < n; i += 2) {
        int field = r->meanings[pairs[i].number].field;
        if (field == FIELD_ACTION) {
            return TAG_EVENTS;
        }
        if (field == FIELD_FILENAME) {
            kind = TAG_FRAME;
        }
        is_plain = is_plain && pairs[i + 1].tag <= TAG_TEXT;
    }
    return is_plain ? kind : TAG_DICT;
}

static int add_event(reader *r, size_t first) {
    value *dict = r->stack + first - 1;
    event found;
    event_begin(&found);
    int status = MORE;
    for (size_t i = first; i < r->n_stack && status == MORE; i += 2) {
        status = event_set(&found, (uint32_t)r->stack[i].number, r->stack + i + 1, r->meanings);
    }
    if (status == MORE) {
        status = events_add(&r->events, &found);
    }
    if (status != MORE) {
        return status;
    }
    settle(r, dict, TAG_EVENTS, 0);
    r->n_stack = first - 1;
    return push_row(r);
}

/* The memo index of a frame's text, NO_ID for a value that is none. */
static uint32_t frame_text(reader *r, const value *v) {
    if (v->tag == TAG_NONE) {
        return text_id(r, (const uint8_t *)"", 0);
    }
    return v->tag == TAG_TEXT ? r->meanings[v->number].cut : NO_ID;
}

/* Makes the dictionary below its pairs a frame. CPython 3.13 reports unknown lines as -1, which torch's unsigned field
 * shows as 2^64 - 1. */
static int add_frame(reader *r, size_t first) {
    value *dict = r->stack + first - 1, *pairs = dict + 1, none = {.tag = TAG_NONE};
    snapconv_frame frame = {frame_text(r, &none), NO_ID, 0};
    for (size_t i = 0, n = r->n_stack - first; i < n; i += 2) {
        const value *v = pairs + i + 1;
        switch (r->meanings[pairs[i].number].field) {
        case FIELD_NAME:
            frame.name = frame_text(r, v);
            break;
        case FIELD_FILENAME:
            frame.filename = frame_text(r, v);
            break;
        case FIELD_LINE:
            if (v->tag != TAG_NONE && (v->tag < TAG_INT || v->tag > TAG_ULONG)) {
                return ODD;
            }
            bool is_usable = v->tag != TAG_ULONG && v->number > 0 && v->number <= INT32_MAX;
            frame.line = is_usable ? (uint32_t)v->number : 0;
            break;
        default:
            break;
        }
    }
    if (frame.name == NO_ID || frame.filename == NO_ID) {
        return ODD;
    }
    uint32_t id = stacks_frame(&r->stacks, frame);
    if (id == NO_ID) {
        return ODD;
    }
    settle(r, dict, TAG_FRAME, id);
    r->n_stack = first;
    return MORE;
}

/* Sets the pairs from first on in the dictionary below them. */
static int fill_dict(reader *r, size_t first) {
    size_t n = r->n_stack - first;
    value *dict = r->stack + first - 1, *pairs = dict + 1;
    if (dict->tag != TAG_NEW_DICT && dict->tag != TAG_DICT) {
        return ODD;
    }
    if (n == 0) {
        return MORE;
    }
    if (n % 2 || !may_grow(r, dict)) {
        return ODD;
    }
    for (size_t i = 0; i < n; i += 2) {
        if (pairs[i].tag != TAG_TEXT || !settle_frames(r, pairs + i, pairs + i + 1)) {
            return ODD;
        }
    }
    int kind = dict->tag == TAG_NEW_DICT ? kind_of(r, pairs, n) : TAG_DICT;
    if (kind == TAG_EVENTS) {
        return add_event(r, first);
    }
    if (kind == TAG_FRAME) {
        return add_frame(r, first);
    }
    if (!to_rest(r, pairs, n)) {
        return ODD;
    }
    if (dict->tag == TAG_NEW_DICT) {
        uint32_t id = rest_new(&r->rest, '}', pairs, n, 'u');
        if (id == NO_ID) {
            return ODD;
        }
        settle(r, dict, TAG_DICT, id);
    } else if (!rest_grow(&r->rest, (uint32_t)dict->number, pairs, n, 'u')) {
        return NO_MEMORY;
    }
    r->n_stack = first;
    return MORE;
}

/* A snapshot's tuples are pairs of small numbers; the scan in Python calls any other odd, too. */
static int make_tuple(reader *r, size_t first) {
    size_t n = r->n_stack - first;
    if (n == 0 || n > MAX_TUPLE) {
        return ODD;
    }
    for (size_t i = first; i < r->n_stack; i++) {
        if (r->stack[i].tag > TAG_INT) {
            return ODD;
        }
    }
    uint32_t id = rest_tuple(&r->rest, r->stack + first, n);
    if (id == NO_ID) {
        return ODD;
    }
    r->n_stack = first;
    return push_plain(r, TAG_TUPLE, id);
}

static int read_text(reader *r, const uint8_t *text, uint64_t n_bytes) {
    if (n_bytes > UINT32_MAX / 2) {
        return ODD;
    }
    uint32_t id = text_id(r, text, (uint32_t)n_bytes);
    return id == NO_ID ? ODD : push_plain(r, TAG_TEXT, id);
}

/* LONG1: signed bytes, the lowest first; 64 bits at most, with or without a sign. */
static int read_long(reader *r, const uint8_t *bytes, int n_bytes) {
    if (n_bytes > MAX_INTEGER_BYTES) {
        return ODD;
    }
    if (n_bytes == MAX_INTEGER_BYTES) {
        bool is_unsigned = bytes[8] == 0 && bytes[7] & 0x80;
        return is_unsigned ? push_plain(r, TAG_ULONG, (int64_t)load_bytes(bytes, 8)) : ODD;
    }
    uint64_t number = load_bytes(bytes, n_bytes);
    if (n_bytes && n_bytes < 8 && bytes[n_bytes - 1] & 0x80) {
        number |= UINT64_MAX << (8 * n_bytes);
    }
    return push_plain(r, TAG_LONG, (int64_t)number);
}

static int read_frame(reader *r, uint64_t end_of_head, uint64_t n_bytes) {
    if (n_bytes > INT64_MAX - end_of_head) {
        return ODD;
    }
    if (end_of_head + n_bytes > r->frame_end) {
        r->frame_end = end_of_head + n_bytes;
    }
    return MORE;
}

/* Ends the stream: one value is left, no frame goes on. The memo of the file is of no more use. */
static int stop(reader *r, uint64_t end) {
    if (r->n_stack != 1 || r->n_marks || r->frame_end > end || r->stack[0].tag >= TAG_EVENTS || !is_item(r->stack)) {
        return ODD;
    }
    if (!rest_finish(&r->rest, r->stack)) {
        return NO_MEMORY;
    }
    free_machine(r);
    return DONE;
}

/* Bytes of an opcode with its fixed argument or the length of its argument; 0: a reference, or in no snapshot. */
static const uint8_t HEAD_BYTES[256] = {
    ['('] = 1, ['}'] = 1, [']'] = 1, ['u'] = 1, ['s'] = 1, ['e'] = 1, ['a'] = 1, ['t'] = 1, ['N'] = 1, ['.'] = 1,
    [0x85] = 1, [0x86] = 1, [0x87] = 1, [0x88] = 1, [0x89] = 1, [0x94] = 1,
    [0x80] = 2, ['K'] = 2, ['q'] = 2, [0x8c] = 2, [0x8a] = 2,
    ['M'] = 3,
    ['J'] = 5, ['r'] = 5, ['X'] = 5,
    [0x95] = 9, ['G'] = 9, [0x8d] = 9,
};

/* Bytes of the length of an argument that has one: as many bytes as it says follow the head of the token. */
static const uint8_t LENGTH_BYTES[256] = {[0x8c] = 1, [0x8a] = 1, ['X'] = 4, [0x8d] = 8};

static int fill_from_mark(reader *r, int (*fill)(reader *, size_t)) {
    int64_t first = pop_mark(r, 1);
    return first < 0 ? ODD : fill(r, (size_t)first);
}

static int fill_last(reader *r, size_t n_items, int (*fill)(reader *, size_t)) {
    if (r->n_stack < fence(r) + n_items + 1) {
        return ODD;
    }
    const value *last = r->stack + r->n_stack - 1;
    bool is_one = last->tag != TAG_EVENTS || last->memo == 1; /* else only a mark shows where they begin */
    return is_one ? fill(r, r->n_stack - n_items) : ODD;
}

static int tuple_of_last(reader *r, size_t n) {
    return r->n_stack >= fence(r) + n ? make_tuple(r, r->n_stack - n) : ODD;
}

static int tuple_from_mark(reader *r) {
    int64_t first = pop_mark(r, 0);
    return first < 0 ? ODD : make_tuple(r, (size_t)first);
}

/* Does what one token says that is no reference; at is whole, and offset is where it stands in the file. */
static int run(reader *r, const uint8_t *at, uint64_t offset, uint64_t n_bytes) {
    switch (at[0]) {
    case '(': return push_mark(r);
    case '}': return push_plain(r, TAG_NEW_DICT, 0);
    case ']': return push_plain(r, TAG_NEW_LIST, 0);
    case 'u': return fill_from_mark(r, fill_dict);
    case 's': return fill_last(r, 2, fill_dict);
    case 'e': return fill_from_mark(r, fill_list);
    case 'a': return fill_last(r, 1, fill_list);
    case 't': return tuple_from_mark(r);
    case 0x85: return tuple_of_last(r, 1);
    case 0x86: return tuple_of_last(r, 2);
    case 0x87: return tuple_of_last(r, 3);
    case 'N': return push_plain(r, TAG_NONE, 0);
    case 0x88: return push_plain(r, TAG_TRUE, 1);
    case 0x89: return push_plain(r, TAG_FALSE, 0);
    case 'K': return push_plain(r, TAG_INT, at[1]);
    case 'M': return push_plain(r, TAG_INT, (int64_t)load_bytes(at + 1, 2));
    case 'J': return push_plain(r, TAG_INT, (int32_t)load_bytes(at + 1, 4));
    case 'G': return push_plain(r, TAG_FLOAT, (int64_t)load_bytes(at + 1, 8));
    case 0x8a: return read_long(r, at + 2, at[1]);
    case 0x8c: return read_text(r, at + 2, n_bytes - 2);
    case 'X': return read_text(r, at + 5, n_bytes - 5);
    case 0x8d: return read_text(r, at + 9, n_bytes - 9);
    case 'q': return put_memo(r, at[1]);
    case 'r': return put_memo(r, load_bytes(at + 1, 4));
    case 0x94: return put_memo(r, r->n_memo);
    case 0x95: return read_frame(r, offset + 9, load_bytes(at + 1, 8));
    case 0x80: return offset == 0 && at[1] >= 2 && at[1] <= 5 ? MORE : ODD;
    case '.': return stop(r, offset + 1);
    default: return ODD;
    }
}

/* Fills a new list from a run of references, whose bytes were seen before: then it is the same stack, since an entry
 * of the memo that is a frame stays one. Gives how many bytes that took, 0 where the list has to be made token by
 * token. */
static size_t fill_known_list(reader *r, const uint8_t *after_mark, size_t n) {
    if (r->n_stack == fence(r)) {
        return 0;
    }
    value *list = r->stack + r->n_stack - 1;
    if (list->tag != TAG_NEW_LIST || !may_grow(r, list)) {
        return 0;
    }
    uint32_t run = known_run(r, after_mark, n);
    if (run == NO_RUN) {
        return 0;
    }
    settle(r, r->stack + r->n_stack - 1, TAG_STACK, r->runs.runs[run].stack);
    return r->runs.runs[run].n_bytes + 1;
}

static uint64_t count_containers(const uint8_t *bytes, size_t n) {
    uint64_t total = 0;
    while (n) {
        uint8_t found = 0;
        size_t n_now = n < COUNTED_BYTES ? n : COUNTED_BYTES;
        for (size_t i = 0; i < n_now; i++) {
            found = (uint8_t)(found + ((bytes[i] == ']') | (bytes[i] == '}') | (bytes[i] == 0x8f)));
        }
        total += found;
        bytes += n_now;
        n -= n_now;
    }
    return total;
}

/* Counts what was taken, and closes the chunk where it ends; ODD where it is little more than containers. */
static int count_taken(reader *r, const uint8_t *bytes, size_t n, bool is_end) {
    uint64_t n_before = r->n_taken - r->chunk_start, n_left = CHUNK_BYTES - n_before;
    r->n_containers += count_containers(bytes, n < n_left ? n : (size_t)n_left);
    r->n_taken += n;
    if (!is_end && n < n_left) {
        return MORE;
    }
    uint64_t most = (n < n_left ? n_before + n : CHUNK_BYTES) / MIN_CONTAINER_BYTES;
    bool is_hollow = r->n_containers > (most > FEW_CONTAINERS ? most : FEW_CONTAINERS);
    r->chunk_start = r->n_taken;
    r->n_containers = 0;
    return is_hollow ? ODD : MORE;
}

/* Runs whole tokens until the bytes, the chunk or the stream end; *n_done says how far. */
static int run_tokens(reader *r, const uint8_t *bytes, size_t n, size_t n_most, size_t *n_done) {
    int status = MORE;
    size_t at = 0;
    while (status == MORE && at < n_most) {
        const uint8_t *token = bytes + at;
        size_t n_event = *token == '}' ? read_event(r, token, n_most - at, &status) : 0;
        if (n_event) {
            at += n_event;
            continue;
        }
        size_t n_head = HEAD_BYTES[*token], n_left = n - at, n_reference = reference_bytes(*token);
        if (n_reference) { /* nearly half of all tokens */
            if (n_left < n_reference) {
                break;
            }
            status = get_memo(r, reference(token));
            at += n_reference;
            continue;
        }
        if (n_left < n_head) {
            break;
        }
        uint64_t n_argument = 0;
        if (LENGTH_BYTES[*token]) {
            n_argument = load_bytes(token + 1, LENGTH_BYTES[*token]);
            if (n_left - n_head < n_argument) {
                break;
            }
        }
        size_t n_list = *token == '(' ? fill_known_list(r, token + 1, n_most - at - 1) : 0;
        if (n_list) {
            at += 1 + n_list;
            continue;
        }
        status = run(r, token, r->n_taken + at, n_head + n_argument);
        at += n_head + (size_t)n_argument;
    }
    *n_done = at;
    return status;
}

int32_t snapconv_reader_feed(reader *r, const uint8_t *bytes, int64_t n_bytes, int64_t *n_taken) {
    size_t n = n_bytes > 0 ? (size_t)n_bytes : 0, start = 0;
    int status = MORE;
    while (status == MORE && start < n) {
        uint64_t n_most = r->chunk_start + CHUNK_BYTES - r->n_taken;
        size_t at = 0, n_here = n - start;
        status = run_tokens(r, bytes + start, n_here, n_most < n_here ? (size_t)n_most : n_here, &at);
        if (at == 0) {
            break;
        }
        if (status == MORE || status == DONE) {
            int counted = count_taken(r, bytes + start, at, status == DONE);
            status = counted == MORE ? status : counted;
        }
        start += at;
    }
    *n_taken = (int64_t)start;
    return status;
}

void snapconv_reader_events(const reader *r, snapconv_events *found) {
    *found = (snapconv_events){
        .n_events = r->events.n,
        .n_rest_bytes = r->rest.out.n,
        .rest = r->rest.out.bytes,
        .n_unknown = r->events.n_unknown,
        .unknown = r->events.unknown,
        .n_frames = r->stacks.by_frame.n_used,
        .frames = (const snapconv_frame *)r->stacks.frames.bytes,
        .n_stacks = r->stacks.n,
        .stacks = r->stacks.stacks,
        .frame_ids = (const int32_t *)r->stacks.frame_ids.bytes,
    };
    for (int i = 0; i < N_COLUMNS; i++) {
        found->columns[i] = r->events.columns[i];
    }
}

void snapconv_reader_drop_rest(reader *r) {
    free_machine(r);
    rest_free(&r->rest);
    stacks_free(&r->stacks);
}
