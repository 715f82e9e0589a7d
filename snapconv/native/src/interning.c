#include "interning.h"

#include <stdlib.h>

#include "hashing.h"

enum { FIRST_PLACES = 1 << 12 };

bool table_init(intern_table *t, uint64_t seed) {
    *t = (intern_table){.places = calloc(FIRST_PLACES, sizeof(interned)), .n_places = FIRST_PLACES, .seed = seed};
    return t->places != NULL;
}

void table_free(intern_table *t) {
    free(t->places);
    t->places = NULL;
}

static bool grow(intern_table *t) {
    size_t n_new = t->n_places * 2;
    interned *places = calloc(n_new, sizeof(interned));
    if (places == NULL) {
        return false;
    }
    for (size_t i = 0; i < t->n_places; i++) {
        if (!t->places[i].is_used) {
            continue;
        }
        size_t at = t->places[i].hash & (n_new - 1);
        while (places[at].is_used) {
            at = (at + 1) & (n_new - 1);
        }
        places[at] = t->places[i];
    }
    free(t->places);
    t->places = places;
    t->n_places = n_new;
    return true;
}

interned *table_find(intern_table *t, const buffer *known, const uint8_t *bytes, size_t n) {
    if (n > UINT32_MAX || (2 * t->n_used >= t->n_places && !grow(t))) {
        return NULL;
    }
    uint32_t hash = (uint32_t)hash_bytes(t->seed, bytes, n);
    size_t at = hash & (t->n_places - 1);
    for (int n_probes = 0; n_probes <= MAX_PROBES; n_probes++, at = (at + 1) & (t->n_places - 1)) {
        interned *place = t->places + at;
        if (!place->is_used) {
            place->hash = hash;
            return place;
        }
        if (place->hash == hash && place->n_bytes == n && memcmp(known->bytes + place->offset, bytes, n) == 0) {
            return place;
        }
    }
    return NULL;
}

void table_use(intern_table *t, interned *place, uint64_t offset, size_t n, uint32_t id) {
    place->offset = offset;
    place->n_bytes = (uint32_t)n;
    place->id = id;
    place->is_used = true;
    t->n_used++;
}
