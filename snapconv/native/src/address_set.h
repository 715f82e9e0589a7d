/* A sorted set of addresses, in leaves of a few hundred: a change moves no more than one leaf. */
#ifndef SNAPCONV_ADDRESS_SET_H
#define SNAPCONV_ADDRESS_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LEAF_ADDRESSES = 256 };

/* What stands beside an address: the least space that it had, -1 where none was seen. */
typedef struct {
    int64_t addr[LEAF_ADDRESSES];
    int64_t space[LEAF_ADDRESSES];
    size_t n;
} leaf;

typedef struct {
    leaf **leaves; /* none is empty */
    int64_t *firsts; /* the first address of each leaf */
    size_t n_leaves, n_leaves_max, n_firsts_max;
} address_set;

typedef struct {
    size_t leaf, place;
} position;

void set_free(address_set *s);
/* The first address that is not below; beyond the end where there is none. */
position set_find(const address_set *s, int64_t addr);
static inline bool set_has(const address_set *s, position p) { return p.leaf < s->n_leaves; }
static inline int64_t *set_space(const address_set *s, position p) { return s->leaves[p.leaf]->space + p.place; }
static inline int64_t set_addr(const address_set *s, position p) { return s->leaves[p.leaf]->addr[p.place]; }
/* The one after an address that is there. */
position set_next(const address_set *s, position p);
/* The one before; false where p is the first. */
bool set_before(const address_set *s, position p, position *before);
/* Inserts at the position that set_find gave. */
bool set_insert(address_set *s, position p, int64_t addr, int64_t space);
void set_remove(address_set *s, position p);

#endif
