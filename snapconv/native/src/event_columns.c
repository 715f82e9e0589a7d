#include "event_columns.h"

#include <stdlib.h>
#include <string.h>

enum { NO_VALUE = -1, EMPTY_LIST = -2, MAX_UNKNOWN_KEYS = 8, FIRST_ROWS = 64 };

typedef struct {
    int64_t addr, device_free, size, stream, time;
    int32_t ids[N_COLUMNS]; /* those of int32 columns */
    uint8_t action, is_oom, has_category;
} event;

static size_t element_bytes(int column) {
    return column >= COLUMN_FRAMES ? sizeof(int32_t) : column >= COLUMN_ADDR ? sizeof(int64_t) : 1;
}

void events_free(event_columns *e) {
    for (int i = 0; i < N_COLUMNS; i++) {
        free(e->columns[i]);
        e->columns[i] = NULL;
    }
}

/* Makes room for the next row, in all columns at once. */
static bool make_room(event_columns *e) {
    if (e->n < e->n_max) {
        return true;
    }
    size_t n_max = e->n_max ? 2 * e->n_max : FIRST_ROWS;
    if (n_max > SIZE_MAX / 2 / sizeof(int64_t)) {
        return false;
    }
    for (int column = 0; column < N_COLUMNS; column++) {
        if (e->columns[column] != NULL) {
            void *grown = realloc(e->columns[column], n_max * element_bytes(column));
            if (grown == NULL) {
                return false;
            }
            e->columns[column] = grown;
        }
    }
    e->n_max = n_max;
    return true;
}

/* Makes a column at its first value; rows before that have what is there where none is. */
static bool begin_column(event_columns *e, int column) {
    e->columns[column] = malloc(e->n_max * element_bytes(column));
    if (e->columns[column] == NULL) {
        return false;
    }
    if (column == COLUMN_TIME) {
        for (size_t i = 0; i < e->n; i++) {
            ((int64_t *)e->columns[column])[i] = INT64_MIN;
        }
    } else {
        int filler = column >= COLUMN_FRAMES ? 0xff : 0;
        memset(e->columns[column], filler, e->n * element_bytes(column));
    }
    return true;
}

static bool set_int8(event_columns *e, int column, uint8_t found) {
    if (e->columns[column] == NULL) {
        bool is_missing = !found && column != COLUMN_ACTION;
        return is_missing || (begin_column(e, column) && set_int8(e, column, found));
    }
    ((uint8_t *)e->columns[column])[e->n] = found;
    return true;
}

static bool set_int64(event_columns *e, int column, int64_t found, int64_t missing) {
    if (e->columns[column] == NULL) {
        return found == missing || (begin_column(e, column) && set_int64(e, column, found, missing));
    }
    ((int64_t *)e->columns[column])[e->n] = found;
    return true;
}

static bool set_int32(event_columns *e, int column, int32_t found) {
    if (e->columns[column] == NULL) {
        return found == NO_VALUE || (begin_column(e, column) && set_int32(e, column, found));
    }
    ((int32_t *)e->columns[column])[e->n] = found;
    return true;
}

/* ODD where there are too many: then the file is no snapshot, or made to be slow. */
static int count_unknown(event_columns *e, uint32_t text, bool is_action) {
    for (size_t i = 0; i < e->n_unknown; i++) {
        if (e->unknown[i].text == text && e->unknown[i].is_action == is_action) {
            e->unknown[i].count++;
            return MORE;
        }
    }
    if (e->n_unknown == MAX_UNKNOWN_WORDS) {
        return ODD;
    }
    e->unknown[e->n_unknown++] = (unknown_word){text, is_action, 1};
    return MORE;
}

static int read_int(const value *v, int64_t *to) {
    if (v->tag == TAG_NONE) {
        return MORE;
    }
    if (v->tag != TAG_INT && v->tag != TAG_LONG && v->tag != TAG_ULONG) {
        return ODD;
    }
    *to = v->number;
    return MORE;
}

/* The memo index of a value, which is None or of one of two tags; an index beyond 31 bits is odd. */
static int read_id(const value *v, int tag, int other_tag, int32_t *to) {
    if (v->tag == TAG_NONE) {
        return MORE;
    }
    if ((v->tag != tag && v->tag != other_tag) || v->number > INT32_MAX) {
        return ODD;
    }
    *to = (int32_t)v->number;
    return MORE;
}

static int read_field(event *found, int field, const value *v, const meaning *meanings) {
    switch (field) {
    case FIELD_ACTION:
        if (v->tag != TAG_TEXT) {
            return ODD;
        }
        found->action = meanings[v->number].action;
        found->is_oom = meanings[v->number].is_oom;
        return MORE;
    case FIELD_ADDR:
        return read_int(v, &found->addr);
    case FIELD_DEVICE_FREE:
        return read_int(v, &found->device_free);
    case FIELD_SIZE:
        return read_int(v, &found->size);
    case FIELD_STREAM:
        return read_int(v, &found->stream);
    case FIELD_TIME:
        /* The lowest number stands for a missing time. */
        return v->tag != TAG_NONE && v->number == INT64_MIN ? ODD : read_int(v, &found->time);
    case FIELD_FRAMES:
        if (v->tag == TAG_NEW_LIST) {
            found->ids[COLUMN_FRAMES] = EMPTY_LIST;
            return MORE;
        }
        return read_id(v, TAG_STACK, TAG_LIST, &found->ids[COLUMN_FRAMES]);
    case FIELD_COMPILE_CONTEXT:
        return read_id(v, TAG_TEXT, TAG_TEXT, &found->ids[COLUMN_COMPILE_CONTEXT]);
    case FIELD_USER_METADATA:
        return read_id(v, TAG_TEXT, TAG_TEXT, &found->ids[COLUMN_USER_METADATA]);
    case FIELD_INTERNAL_METADATA:
        return read_id(v, TAG_TEXT, TAG_TEXT, &found->ids[COLUMN_INTERNAL_METADATA]);
    case FIELD_POOL:
        return read_id(v, TAG_TUPLE, TAG_LIST, &found->ids[COLUMN_POOL]);
    case FIELD_CATEGORY:
        found->has_category = 1;
        return MORE;
    default:
        return MORE;
    }
}

static int add_row(event_columns *e, const event *found) {
    bool is_added = make_room(e) && set_int8(e, COLUMN_ACTION, found->action) &&
                    set_int8(e, COLUMN_HAS_CATEGORY, found->has_category) &&
                    set_int64(e, COLUMN_ADDR, found->is_oom ? found->device_free : found->addr, 0) &&
                    set_int64(e, COLUMN_SIZE, found->size, 0) && set_int64(e, COLUMN_STREAM, found->stream, 0) &&
                    set_int64(e, COLUMN_TIME, found->time, INT64_MIN);
    for (int column = COLUMN_FRAMES; is_added && column < N_COLUMNS; column++) {
        is_added = set_int32(e, column, found->ids[column]);
    }
    e->n += is_added;
    return is_added ? MORE : NO_MEMORY;
}

int events_add(event_columns *e, const value *pairs, size_t n_pairs, const meaning *meanings) {
    event found = {.time = INT64_MIN};
    uint32_t seen = 0, unknown[MAX_UNKNOWN_KEYS];
    int n_unknown = 0, status = MORE;
    for (int i = 0; i < N_COLUMNS; i++) {
        found.ids[i] = NO_VALUE;
    }
    for (size_t i = 0; i < n_pairs && status == MORE; i++) {
        const value *key = pairs + 2 * i, *v = key + 1;
        uint32_t text = (uint32_t)key->number;
        int field = meanings[text].field;
        if (v->tag == TAG_EVENTS || v->tag == TAG_TRACE) {
            return ODD;
        }
        if (field != FIELD_UNKNOWN && field != FIELD_FILENAME) {
            if (field != FIELD_IGNORED && seen & (1u << field)) {
                return ODD; /* the last one counts in Python, in the place of the first */
            }
            seen |= 1u << field;
            status = read_field(&found, field, v, meanings);
            if (field == FIELD_ACTION && status == MORE && !found.action) {
                status = count_unknown(e, (uint32_t)v->number, true);
            }
            continue;
        }
        for (int k = 0; k < n_unknown; k++) {
            if (unknown[k] == text) {
                return ODD;
            }
        }
        if (n_unknown == MAX_UNKNOWN_KEYS) {
            return ODD;
        }
        unknown[n_unknown++] = text;
        status = count_unknown(e, text, false);
    }
    return status == MORE ? add_row(e, &found) : status;
}
