/* Pairs the events of one device into lifetimes, by address; the rules are those of replay/lifetimes.py.
 *
 * Rows come in the order in which lifetimes begin. Each address remembers its last kind of event and its row.
 */

#include <stdbool.h>
#include <stdlib.h>

#include "core.h"
#include "hashing.h"

enum { NONE = 0, ALLOC = 1, REQUESTED = 2, COMPLETED = 3, MERGED = 4, FIRST_ADDRESSES = 1 << 12 };

typedef struct {
    int64_t addr;
    int64_t row; /* of its last lifetime; -1: the place is free */
    int64_t kind; /* of its last event */
} address;

typedef struct {
    address *places;
    size_t n_places; /* a power of two */
    size_t n_used;
    uint64_t seed;
} address_table;

static address *find(const address_table *t, int64_t addr) {
    size_t at = mixed((uint64_t)addr ^ t->seed) & (t->n_places - 1);
    for (int n_probes = 0; n_probes <= MAX_PROBES; n_probes++, at = (at + 1) & (t->n_places - 1)) {
        if (t->places[at].row < 0 || t->places[at].addr == addr) {
            return t->places + at;
        }
    }
    return NULL;
}

static bool allocate(address_table *t, size_t n_places) {
    address *places = malloc(n_places * sizeof(address));
    if (places == NULL) {
        return false;
    }
    for (size_t i = 0; i < n_places; i++) {
        places[i].row = -1;
    }
    t->places = places;
    t->n_places = n_places;
    return true;
}

static int grow(address_table *t) {
    address_table old = *t;
    if (!allocate(t, old.n_places * 2)) {
        return NO_MEMORY;
    }
    int status = MORE;
    for (size_t i = 0; i < old.n_places && status == MORE; i++) {
        if (old.places[i].row >= 0) {
            address *place = find(t, old.places[i].addr);
            status = place == NULL ? ODD : MORE;
            if (place != NULL) {
                *place = old.places[i];
            }
        }
    }
    free(old.places);
    return status;
}

typedef struct {
    int64_t *alloc, *requested, *completed, *end, *addr;
    const uint8_t *is_release;
    int64_t n;
    int64_t n_orphans;
    int64_t n_implicit;
} lifetimes;

struct pairing {
    lifetimes rows;
    address_table addresses;
};

/* The last lifetime of an address is over: an alloc at the same address ends what nothing else did. */
static void close_row(lifetimes *l, int64_t row, int64_t next_alloc) {
    int64_t requested = l->requested[row];
    if (l->completed[row] >= 0) {
        l->end[row] = l->completed[row];
    } else if (requested >= 0 && l->is_release[requested]) {
        l->end[row] = requested;
    } else {
        l->end[row] = next_alloc;
        l->n_implicit += next_alloc >= 0;
    }
}

static int64_t open_row(lifetimes *l, int64_t addr) {
    l->alloc[l->n] = l->requested[l->n] = l->completed[l->n] = l->end[l->n] = -1;
    l->addr[l->n] = addr;
    return l->n++;
}

static void set_event(lifetimes *l, int64_t row, int kind, int64_t event) {
    if (kind == ALLOC) {
        l->alloc[row] = event;
    } else if (kind == REQUESTED) {
        l->requested[row] = event;
    } else {
        l->completed[row] = event;
        if (kind == MERGED && l->requested[row] < 0) {
            l->requested[row] = event;
        }
    }
}

static int add_event(lifetimes *l, address_table *t, int kind, int64_t addr, int64_t event) {
    if (2 * t->n_used >= t->n_places) {
        int status = grow(t);
        if (status != MORE) {
            return status;
        }
    }
    address *place = find(t, addr);
    if (place == NULL) {
        return ODD;
    }
    int step = kind == MERGED ? COMPLETED : kind;
    bool is_new = place->row < 0;
    /* Within one address the order is alloc, requested, completed; a step back begins another lifetime. */
    if (is_new || step == ALLOC || (place->kind >= step && place->kind != ALLOC)) {
        if (!is_new) {
            close_row(l, place->row, step == ALLOC ? event : -1);
        }
        t->n_used += is_new;
        place->addr = addr;
        place->row = open_row(l, addr);
        if (!is_new && step != ALLOC) {
            l->n_orphans++;
            l->addr[place->row] = INT64_MIN; /* no address: it is left out in the end */
        }
    }
    place->kind = step;
    set_event(l, place->row, kind, event);
    return MORE;
}

static void close_rows(lifetimes *l, const address_table *t) {
    for (size_t i = 0; i < t->n_places; i++) {
        if (t->places[i].row >= 0) {
            close_row(l, t->places[i].row, -1);
        }
    }
}

static void leave_out_orphans(lifetimes *l) {
    int64_t to = 0;
    for (int64_t row = 0; row < l->n && l->n_orphans; row++) {
        if (l->addr[row] == INT64_MIN) {
            continue;
        }
        l->alloc[to] = l->alloc[row];
        l->requested[to] = l->requested[row];
        l->completed[to] = l->completed[row];
        l->end[to] = l->end[row];
        l->addr[to++] = l->addr[row];
    }
    l->n -= l->n_orphans;
}

pairing *snapconv_pairing_new(uint64_t seed, const uint8_t *is_release, int64_t *alloc, int64_t *requested,
                              int64_t *completed, int64_t *end, int64_t *addr) {
    pairing *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    p->rows = (lifetimes){alloc, requested, completed, end, addr, is_release, 0, 0, 0};
    p->addresses.seed = seed;
    if (!allocate(&p->addresses, FIRST_ADDRESSES)) {
        free(p);
        return NULL;
    }
    return p;
}

void snapconv_pairing_free(pairing *p) {
    if (p != NULL) {
        free(p->addresses.places);
        free(p);
    }
}

int32_t snapconv_pairing_add(pairing *p, int64_t first_event, int64_t n_events, const int8_t *kind,
                             const int64_t *addr) {
    int status = MORE;
    for (int64_t i = 0; i < n_events && status == MORE; i++) {
        if (kind[i] != NONE) {
            bool is_valid = kind[i] <= MERGED && addr[i] != INT64_MIN;
            status = is_valid ? add_event(&p->rows, &p->addresses, kind[i], addr[i], first_event + i) : ODD;
        }
    }
    return status;
}

void snapconv_pairing_finish(pairing *p, int64_t counts[3]) {
    close_rows(&p->rows, &p->addresses);
    leave_out_orphans(&p->rows);
    counts[0] = p->rows.n;
    counts[1] = p->rows.n_orphans;
    counts[2] = p->rows.n_implicit;
}
