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
} meaning;

enum { MAX_UNKNOWN_WORDS = 32 };

typedef struct {
    void *columns[N_COLUMNS];
    size_t n, n_max; /* rows that are there, and for which each column has room */
    unknown_word unknown[MAX_UNKNOWN_WORDS];
    size_t n_unknown;
} event_columns;

void events_free(event_columns *e);

/* Adds the event that these keys and values make, two values a pair; every key is a text. */
int events_add(event_columns *e, const value *pairs, size_t n_pairs, const meaning *meanings);

#endif
