/* Reads a whole event at once, from its bytes to the values of a row, without the machine's stack. Nearly all events
 * of a file can be read so. */

#include "whole_events.h"

/* The most bytes of a key with its value, without the contents of texts and lists; a reader may look at so many. */
enum { PAIR_BYTES = 16, MAX_INTEGER_BYTES = 8 };

/* Bytes of the token that puts the value before it into the memo, at the next index; 0: it is another. */
static size_t memo_token(const reader *r, const uint8_t *at) {
    if (at[0] == 0x94) {
        return 1;
    }
    if (at[0] == 'q') {
        return at[1] == r->n_memo ? 2 : 0;
    }
    return at[0] == 'r' && load_bytes(at + 1, 4) == r->n_memo ? 5 : 0;
}

static bool keep(reader *r, int tag, uint32_t id) {
    if (r->n_memo >= NO_MEMO || !reserve((void **)&r->memo, &r->n_memo_max, r->n_memo + 1, sizeof(memo_entry))) {
        return false;
    }
    r->memo[r->n_memo++] = (memo_entry){(uint8_t)tag, 0, id};
    return true;
}

/* Keeps a value where a token says so; gives the bytes of it and of what stood before, 0 where that fails. */
static size_t kept(reader *r, const uint8_t *at, size_t n_before, const value *v) {
    size_t n = memo_token(r, at + n_before);
    return n == 0 || keep(r, v->tag, (uint32_t)v->number) ? n_before + n : 0;
}

/* A text, the length of which has so many bytes. */
static size_t read_text(reader *r, const uint8_t *at, size_t n, int n_length, value *v) {
    uint64_t n_bytes = load_bytes(at + 1, n_length), n_token = 1 + (uint64_t)n_length + n_bytes;
    if (n_bytes > UINT32_MAX / 2 || n < n_token + PAIR_BYTES) {
        return 0;
    }
    uint32_t id = text_id(r, at + 1 + n_length, (uint32_t)n_bytes);
    *v = (value){.tag = TAG_TEXT, .number = id};
    return id == NO_ID ? 0 : kept(r, at, (size_t)n_token, v);
}

/* A list that has no items yet, or that of frames which were seen before. */
static size_t read_list(reader *r, const uint8_t *at, size_t n, value *v) {
    size_t n_memo = memo_token(r, at + 1), start = 1 + n_memo;
    *v = (value){.tag = TAG_NEW_LIST};
    if (at[start] == '(') {
        uint32_t run = known_run(r, at + start + 1, n - start - 1);
        if (run == NO_RUN) {
            return 0;
        }
        *v = (value){.tag = TAG_STACK, .number = r->runs.runs[run].stack};
        start += 2 + (size_t)r->runs.runs[run].n_bytes;
    }
    return n_memo == 0 || keep(r, v->tag, (uint32_t)v->number) ? start : 0;
}

static size_t read_reference(reader *r, const uint8_t *at, value *v) {
    uint64_t index = reference(at);
    if (index >= r->n_memo || r->memo[index].tag >= TAG_EVENTS) {
        return 0;
    }
    memo_entry *entry = r->memo + index;
    entry->was_read |= entry->tag >= TAG_DICT;
    *v = (value){.tag = entry->tag, .is_copy = 1, .number = entry->id};
    return reference_bytes(at[0]);
}

static size_t read_integer(value *v, int tag, int64_t number, size_t n_bytes) {
    *v = (value){.tag = (uint8_t)tag, .number = number};
    return n_bytes;
}

/* LONG1 of up to 64 bits with a sign. */
static size_t read_long(const uint8_t *at, value *v) {
    int n_bytes = at[1], n_unused = 64 - 8 * n_bytes;
    if (n_bytes == 0 || n_bytes > MAX_INTEGER_BYTES) {
        return 0;
    }
    int64_t number = (int64_t)(load_bytes(at + 2, 8) << n_unused) >> n_unused;
    return read_integer(v, TAG_LONG, number, 2 + (size_t)n_bytes);
}

/* A value, with what puts it into the memo; gives its bytes, 0 where it is unusual. */
static inline size_t read_value(reader *r, const uint8_t *at, size_t n, value *v) {
    switch (at[0]) {
    case 'h':
    case 'j': return read_reference(r, at, v);
    case 0x8a: return read_long(at, v);
    case 'K': return read_integer(v, TAG_INT, at[1], 2);
    case 'M': return read_integer(v, TAG_INT, (int64_t)load_bytes(at + 1, 2), 3);
    case 'J': return read_integer(v, TAG_INT, (int32_t)load_bytes(at + 1, 4), 5);
    case 'N': return read_integer(v, TAG_NONE, 0, 1);
    case ']': return read_list(r, at, n, v);
    case 0x8c: return read_text(r, at, n, 1, v);
    case 'X': return read_text(r, at, n, 4, v);
    default: return 0;
    }
}

/* The pairs up to the end of the dictionary; gives their bytes, 0 where one is unusual or not here. */
static size_t read_pairs(reader *r, const uint8_t *bytes, size_t n, event *found) {
    size_t at = 0;
    while (n - at > 2 * PAIR_BYTES) {
        const uint8_t *token = bytes + at;
        if (token[0] == 'u' && at) {
            return at + 1;
        }
        value key, v;
        size_t n_key = reference_bytes(token[0]) ? read_reference(r, token, &key) : 0;
        if (n_key == 0 || key.tag != TAG_TEXT || (at == 0 && r->meanings[key.number].field != FIELD_ACTION)) {
            return 0;
        }
        size_t n_value = read_value(r, token + n_key, n - at - n_key, &v);
        bool is_there = n_value && (v.tag != TAG_NEW_LIST || settle_frames(r, &key, &v));
        if (!is_there || event_set(found, (uint32_t)key.number, &v, r->meanings) != MORE) {
            return 0;
        }
        at += n_key + n_value;
    }
    return 0;
}

size_t read_event(reader *r, const uint8_t *bytes, size_t n, int *status) {
    size_t n_memo_before = r->n_memo, start = 1;
    if (n < 2 * PAIR_BYTES) {
        return 0;
    }
    event found;
    event_begin(&found);
    size_t n_memo_token = memo_token(r, bytes + 1);
    start += n_memo_token;
    if (bytes[start] != '(' || (n_memo_token && !keep(r, TAG_EVENTS, 0))) {
        return 0;
    }
    size_t n_pairs = read_pairs(r, bytes + start + 1, n - start - 1, &found);
    if (n_pairs == 0) {
        r->n_memo = n_memo_before; /* texts and stacks are found again, with the same indices */
        return 0;
    }
    *status = events_add(&r->events, &found);
    if (*status == MORE) {
        *status = push_row(r);
    }
    return start + 1 + n_pairs;
}
