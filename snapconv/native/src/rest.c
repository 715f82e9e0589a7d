#include "rest.h"

#include <string.h>

enum { MAX_VALUE_BYTES = 20 };

bool rest_init(rest *r, uint64_t seed) {
    *r = (rest){0};
    if (!table_init(&r->tuples, seed) || !table_init(&r->texts, seed) || !buffer_reserve(&r->out, 2)) {
        return false;
    }
    r->out.bytes[r->out.n++] = 0x80;
    r->out.bytes[r->out.n++] = 4;
    return true;
}

void rest_free(rest *r) {
    buffer_free(&r->out);
    table_free(&r->tuples);
    table_free(&r->texts);
}

static void put(rest *r, int byte) { r->out.bytes[r->out.n++] = (uint8_t)byte; }

static void put_number(rest *r, uint64_t number, int n_bytes) {
    store_bytes(r->out.bytes + r->out.n, number, n_bytes);
    r->out.n += (size_t)n_bytes;
}

static void put_value(rest *r, const value *v) {
    switch (v->tag) {
    case TAG_NONE:
        put(r, 'N');
        break;
    case TAG_FALSE:
        put(r, 0x89);
        break;
    case TAG_TRUE:
        put(r, 0x88);
        break;
    case TAG_INT:
        put(r, 'J');
        put_number(r, (uint64_t)v->number, 4);
        break;
    case TAG_LONG:
    case TAG_ULONG:
        put(r, 0x8a);
        put(r, v->tag == TAG_LONG ? 8 : 9);
        put_number(r, (uint64_t)v->number, 8);
        if (v->tag == TAG_ULONG) {
            put(r, 0);
        }
        break;
    case TAG_FLOAT:
        put(r, 'G');
        put_number(r, (uint64_t)v->number, 8);
        break;
    case TAG_NEW_DICT:
        put(r, '}');
        break;
    case TAG_NEW_LIST:
        put(r, ']');
        break;
    case TAG_TRACE:
        put(r, ']');
        put(r, 'C');
        put(r, 16);
        put_number(r, (uint64_t)v->number, 8);
        put_number(r, v->memo, 8);
        put(r, 'a');
        break;
    default:
        put(r, 'j');
        put_number(r, (uint64_t)v->number, 4);
    }
}

static bool put_values(rest *r, const value *items, size_t n) {
    if (n > (SIZE_MAX / 4) / MAX_VALUE_BYTES || !buffer_reserve(&r->out, n * MAX_VALUE_BYTES + 16)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        put_value(r, items + i);
    }
    return true;
}

/* Puts what stands on the stack of the rest into its memo, and takes it off. */
static uint32_t close_statement(rest *r) {
    if (r->n_statements == NO_ID - 1 || !buffer_reserve(&r->out, 2)) {
        return NO_ID;
    }
    put(r, 0x94);
    put(r, '0');
    return r->n_statements++;
}

/* Closes the statement whose bytes begin at start; or removes it where there is one with the same bytes. */
static uint32_t close_interned(rest *r, size_t start) {
    size_t n = r->out.n - start;
    interned *place = table_find(&r->tuples, &r->out, r->out.bytes + start, n);
    if (place == NULL) {
        return NO_ID;
    }
    if (place->is_used) {
        r->out.n = start;
        return place->id;
    }
    uint32_t id = close_statement(r);
    if (id != NO_ID) {
        table_use(&r->tuples, place, start, n, id);
    }
    return id;
}

uint32_t rest_text(rest *r, const uint8_t *text, uint32_t n_bytes) {
    const interned *last = &r->last_text;
    if (last->is_used && last->n_bytes == n_bytes && memcmp(r->out.bytes + last->offset, text, n_bytes) == 0) {
        return last->id;
    }
    interned *place = table_find(&r->texts, &r->out, text, n_bytes);
    if (place == NULL) {
        return NO_ID;
    }
    if (place->is_used) {
        r->last_text = *place;
        return place->id;
    }
    if (!buffer_reserve(&r->out, (size_t)n_bytes + 5)) {
        return NO_ID;
    }
    put(r, 'X');
    put_number(r, n_bytes, 4);
    size_t start = r->out.n;
    if (n_bytes) {
        memcpy(r->out.bytes + start, text, n_bytes);
    }
    r->out.n += n_bytes;
    uint32_t id = close_statement(r);
    if (id != NO_ID) {
        table_use(&r->texts, place, start, n_bytes, id);
    }
    return id;
}

uint32_t rest_new(rest *r, char empty, const value *items, size_t n, char fill) {
    if (!buffer_reserve(&r->out, 2)) {
        return NO_ID;
    }
    put(r, empty);
    put(r, '(');
    if (!put_values(r, items, n)) {
        return NO_ID;
    }
    put(r, fill);
    return close_statement(r);
}

uint32_t rest_stack(rest *r, uint32_t stack) {
    if (!buffer_reserve(&r->out, MAX_VALUE_BYTES)) {
        return NO_ID;
    }
    put(r, ']');
    put(r, 'C');
    put(r, 4);
    put_number(r, stack, 4);
    put(r, 'a');
    return close_statement(r);
}

uint32_t rest_tuple(rest *r, const value *items, size_t n) {
    size_t start = r->out.n;
    if (!buffer_reserve(&r->out, 1)) {
        return NO_ID;
    }
    put(r, '(');
    if (!put_values(r, items, n)) {
        return NO_ID;
    }
    put(r, 't');
    return close_interned(r, start);
}

bool rest_grow(rest *r, uint32_t id, const value *items, size_t n, char fill) {
    if (!buffer_reserve(&r->out, 6)) {
        return false;
    }
    put(r, 'j');
    put_number(r, id, 4);
    put(r, '(');
    if (!put_values(r, items, n)) {
        return false;
    }
    put(r, fill);
    put(r, '0');
    return true;
}

bool rest_finish(rest *r, const value *root) {
    if (!put_values(r, root, 1)) {
        return false;
    }
    put(r, '.');
    return true;
}
