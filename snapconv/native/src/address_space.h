/* The driver's part: ranges of whole granules of 2 MiB, from the lowest gap that has room. */
#ifndef SNAPCONV_ADDRESS_SPACE_H
#define SNAPCONV_ADDRESS_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t start, end;
} gap;

typedef struct {
    gap *gaps; /* sorted; none touches the next */
    size_t n, n_max;
    int64_t end; /* of all that was ever taken */
} address_space;

/* The address of a range of that size. */
int64_t space_take(address_space *s, int64_t n_bytes);
/* Makes a range available again, unless a gap has a part of it; false where memory does not suffice. */
bool space_give_back(address_space *s, int64_t addr, int64_t n_bytes);

#endif
