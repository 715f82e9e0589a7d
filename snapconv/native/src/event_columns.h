/* Events as columns, one row each; a column exists from the first event on that fills it. */
#ifndef SNAPCONV_EVENT_COLUMNS_H
#define SNAPCONV_EVENT_COLUMNS_H

#include "core.h"
#include "rest.h"

/* What a text means as a key or as an action; one of each text of the rest, by its memo index. */
typedef struct {
    uint8_t field;
    uint8_t action;
    uint8_t is_oom;
    uint32_t cut; /* the text itself, or where it is too long for a frame, its beginning */
} meaning;

enum { MAX_UNKNOWN_ACTIONS = 32, NO_VALUE = -1 };

typedef struct {
    void *columns[N_COLUMNS];
    size_t n, n_max; /* rows that are there, and for which each column has room */
    unknown_action unknown[MAX_UNKNOWN_ACTIONS];
    size_t n_unknown;
} event_columns;

/* The values of an event, while it is read. */
typedef struct {
    int64_t numbers[FIELD_TIME + 1]; /* by field */
    int32_t ids[N_COLUMNS]; /* those of int32 columns */
    uint32_t fields; /* a bit for each that was set */
    uint32_t action_text;
    uint8_t action, is_oom, has_category;
} event;

/* Begins an event, of which nothing is known yet. */
static inline void event_begin(event *e) {
    *e = (event){.numbers = {[FIELD_TIME] = INT64_MIN}};
    for (int column = 0; column < N_COLUMNS; column++) {
        e->ids[column] = NO_VALUE;
    }
}

void events_free(event_columns *e);

/* Adds an event; ODD where there are too many unknown actions: then the file is no snapshot, or made to be slow. */
int events_add(event_columns *e, const event *found);

/* The number of a value, which is None or of one of two tags; one beyond 31 bits is odd. */
static inline int event_set_id(event *e, int column, const value *v, int tag, int other_tag) {
    if (v->tag == TAG_NONE) {
        return MORE;
    }
    if ((v->tag != tag && v->tag != other_tag) || v->number > INT32_MAX) {
        return ODD;
    }
    e->ids[column] = (int32_t)v->number;
    return MORE;
}

static inline int event_set_action(event *e, const value *v, const meaning *meanings) {
    if (v->tag != TAG_TEXT) {
        return ODD;
    }
    e->action_text = (uint32_t)v->number;
    e->action = meanings[v->number].action;
    e->is_oom = meanings[v->number].is_oom;
    return MORE;
}

/* Sets the value of a key, which is a text. */
static inline int event_set(event *e, uint32_t key, const value *v, const meaning *meanings) {
    int field = meanings[key].field;
    if (v->tag == TAG_EVENTS || v->tag == TAG_TRACE) {
        return ODD;
    }
    if (field == FIELD_UNKNOWN || field >= FIELD_IGNORED) {
        return MORE;
    }
    if (e->fields & (1u << field)) {
        return ODD; /* the last one counts in Python, in the place of the first */
    }
    e->fields |= 1u << field;
    switch (field) {
    case FIELD_ACTION:
        return event_set_action(e, v, meanings);
    case FIELD_FRAMES:
        return event_set_id(e, COLUMN_FRAMES, v, TAG_STACK, TAG_STACK);
    case FIELD_COMPILE_CONTEXT:
        return event_set_id(e, COLUMN_COMPILE_CONTEXT, v, TAG_TEXT, TAG_TEXT);
    case FIELD_USER_METADATA:
        return event_set_id(e, COLUMN_USER_METADATA, v, TAG_TEXT, TAG_TEXT);
    case FIELD_INTERNAL_METADATA:
        return event_set_id(e, COLUMN_INTERNAL_METADATA, v, TAG_TEXT, TAG_TEXT);
    case FIELD_POOL:
        return event_set_id(e, COLUMN_POOL, v, TAG_TUPLE, TAG_LIST);
    case FIELD_CATEGORY:
        e->has_category = 1;
        return MORE;
    default: /* FIELD_ADDR to FIELD_TIME */
        if (v->tag == TAG_NONE) {
            return MORE;
        }
        if (v->tag < TAG_INT || v->tag > TAG_ULONG || (field == FIELD_TIME && v->number == INT64_MIN)) {
            return ODD; /* the lowest number stands for a missing time */
        }
        e->numbers[field] = v->number;
        return MORE;
    }
}

#endif
