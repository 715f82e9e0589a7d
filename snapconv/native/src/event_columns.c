#include "event_columns.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ROWS = 64 };

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

static int count_unknown(event_columns *e, uint32_t text) {
    for (size_t i = 0; i < e->n_unknown; i++) {
        if (e->unknown[i].text == text) {
            e->unknown[i].count++;
            return MORE;
        }
    }
    if (e->n_unknown == MAX_UNKNOWN_ACTIONS) {
        return ODD;
    }
    e->unknown[e->n_unknown++] = (unknown_action){text, 1};
    return MORE;
}

int events_add(event_columns *e, const event *found) {
    if (!found->action && count_unknown(e, found->action_text) != MORE) {
        return ODD;
    }
    const int64_t *numbers = found->numbers;
    int64_t addr = numbers[found->is_oom ? FIELD_DEVICE_FREE : FIELD_ADDR];
    bool is_added = make_room(e) && set_int8(e, COLUMN_ACTION, found->action) &&
                    set_int8(e, COLUMN_HAS_CATEGORY, found->has_category) && set_int64(e, COLUMN_ADDR, addr, 0) &&
                    set_int64(e, COLUMN_SIZE, numbers[FIELD_SIZE], 0) &&
                    set_int64(e, COLUMN_STREAM, numbers[FIELD_STREAM], 0) &&
                    set_int64(e, COLUMN_TIME, numbers[FIELD_TIME], INT64_MIN);
    for (int column = COLUMN_FRAMES; is_added && column < N_COLUMNS; column++) {
        is_added = set_int32(e, column, found->ids[column]);
    }
    e->n += is_added;
    return is_added ? MORE : NO_MEMORY;
}
