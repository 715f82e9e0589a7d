#include "address_set.h"

#include <stdlib.h>
#include <string.h>

#include "buffer.h"

void set_free(address_set *s) {
    for (size_t i = 0; i < s->n_leaves; i++) {
        free(s->leaves[i]);
    }
    free(s->leaves);
    free(s->firsts);
    *s = (address_set){0};
}

/* How many of n sorted numbers are below; without a branch, which would be wrong every other time. */
static size_t count_below(const int64_t *sorted, size_t n, int64_t addr) {
    size_t low = 0;
    while (n > 0) {
        size_t half = (n + 1) / 2;
        low = sorted[low + half - 1] < addr ? low + half : low;
        n -= half;
    }
    return low;
}

position set_find(const address_set *s, int64_t addr) {
    size_t n_before = count_below(s->firsts, s->n_leaves, addr);
    if (n_before == 0 || (n_before < s->n_leaves && s->firsts[n_before] == addr)) {
        return (position){n_before, 0};
    }
    const leaf *l = s->leaves[n_before - 1];
    size_t place = count_below(l->addr, l->n, addr);
    return place < l->n ? (position){n_before - 1, place} : (position){n_before, 0};
}

position set_next(const address_set *s, position p) {
    return p.place + 1 < s->leaves[p.leaf]->n ? (position){p.leaf, p.place + 1} : (position){p.leaf + 1, 0};
}

bool set_before(const address_set *s, position p, position *before) {
    if (p.place) {
        *before = (position){p.leaf, p.place - 1};
        return true;
    }
    if (p.leaf == 0) {
        return false;
    }
    *before = (position){p.leaf - 1, s->leaves[p.leaf - 1]->n - 1};
    return true;
}

static void move_addresses(leaf *to, size_t place, const leaf *from, size_t first, size_t n) {
    memmove(to->addr + place, from->addr + first, n * sizeof *to->addr);
    memmove(to->space + place, from->space + first, n * sizeof *to->space);
}

static bool insert_leaf(address_set *s, size_t at) {
    leaf *made = malloc(sizeof *made);
    bool has_room = made != NULL &&
                    reserve((void **)&s->leaves, &s->n_leaves_max, s->n_leaves + 1, sizeof *s->leaves) &&
                    reserve((void **)&s->firsts, &s->n_firsts_max, s->n_leaves + 1, sizeof *s->firsts);
    if (!has_room) {
        free(made);
        return false;
    }
    made->n = 0;
    memmove(s->leaves + at + 1, s->leaves + at, (s->n_leaves - at) * sizeof *s->leaves);
    memmove(s->firsts + at + 1, s->firsts + at, (s->n_leaves - at) * sizeof *s->firsts);
    s->leaves[at] = made;
    s->n_leaves++;
    return true;
}

/* Halves a full leaf; the position moves with its place. */
static bool split(address_set *s, position *p) {
    if (!insert_leaf(s, p->leaf + 1)) {
        return false;
    }
    leaf *full = s->leaves[p->leaf], *upper = s->leaves[p->leaf + 1];
    size_t kept = LEAF_ADDRESSES / 2;
    move_addresses(upper, 0, full, kept, LEAF_ADDRESSES - kept);
    upper->n = LEAF_ADDRESSES - kept;
    full->n = kept;
    s->firsts[p->leaf + 1] = upper->addr[0];
    if (p->place > kept) {
        *p = (position){p->leaf + 1, p->place - kept};
    }
    return true;
}

bool set_insert(address_set *s, position p, int64_t addr, int64_t space) {
    if (p.place == 0 && p.leaf > 0) { /* the end of the leaf before is the same position */
        p = (position){p.leaf - 1, s->leaves[p.leaf - 1]->n};
    }
    if (s->n_leaves == 0 && !insert_leaf(s, 0)) {
        return false;
    }
    if (s->leaves[p.leaf]->n == LEAF_ADDRESSES && !split(s, &p)) {
        return false;
    }
    leaf *l = s->leaves[p.leaf];
    move_addresses(l, p.place + 1, l, p.place, l->n - p.place);
    l->addr[p.place] = addr;
    l->space[p.place] = space;
    l->n++;
    s->firsts[p.leaf] = l->addr[0];
    return true;
}

void set_remove(address_set *s, position p) {
    leaf *l = s->leaves[p.leaf];
    l->n--;
    move_addresses(l, p.place, l, p.place + 1, l->n - p.place);
    if (l->n) {
        s->firsts[p.leaf] = l->addr[0];
        return;
    }
    free(l);
    s->n_leaves--;
    memmove(s->leaves + p.leaf, s->leaves + p.leaf + 1, (s->n_leaves - p.leaf) * sizeof *s->leaves);
    memmove(s->firsts + p.leaf, s->firsts + p.leaf + 1, (s->n_leaves - p.leaf) * sizeof *s->firsts);
}
