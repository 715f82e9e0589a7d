/* Rows of numbers as the leaf pages of a table in a SQLite file: https://www.sqlite.org/fileformat2.html
 *
 * A leaf has 8 bytes of header, behind them 2 for the place of each cell, and its cells from the end downwards.
 */

#include "core.h"

#include <string.h>

enum { PAGE_BYTES = 4096, HEADER_BYTES = 8, LEAF_OF_TABLE = 0x0d, MOST_COLUMNS = 64 };
enum { TYPE_NULL = 0, TYPE_INT64 = 6, TYPE_REAL = 7, TYPE_ZERO = 8, TYPE_ONE = 9 };

/* The bytes of a number of each type. */
static const uint8_t n_bytes_of[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0};

static void put_big_endian(uint8_t *to, uint64_t value, unsigned n_bytes) {
    for (unsigned i = 0; i < n_bytes; i++) {
        to[i] = (uint8_t)(value >> (8 * (n_bytes - 1 - i)));
    }
}

/* Seven bits in a byte, the highest first; of numbers below 2^56. */
static unsigned put_varint(uint8_t *to, uint64_t value) {
    unsigned n = 1;
    while (value >> (7 * n) != 0) {
        n++;
    }
    for (unsigned i = 0; i < n; i++) {
        to[i] = (uint8_t)((value >> (7 * (n - 1 - i)) & 0x7f) | (i + 1 < n ? 0x80 : 0));
    }
    return n;
}

static uint8_t type_of(int64_t value, uint8_t kind) {
    if (kind != CELL_INTEGER) {
        return kind == CELL_REAL ? TYPE_REAL : TYPE_NULL;
    }
    if (value == 0 || value == 1) {
        return value == 0 ? TYPE_ZERO : TYPE_ONE;
    }
    uint64_t magnitude = (uint64_t)(value < 0 ? ~value : value);
    uint8_t type = 1;
    while (type < TYPE_INT64 && magnitude >> (8 * n_bytes_of[type] - 1) != 0) {
        type++;
    }
    return type;
}

/* Writes a row without its key, which is its number; returns its bytes. */
static unsigned put_row(uint8_t *to, int64_t n_columns, const int64_t *values, const uint8_t *kinds) {
    uint8_t *type = to;
    *type++ = (uint8_t)(n_columns + 2);
    *type++ = TYPE_NULL;
    uint8_t *at = type + n_columns;
    for (int64_t i = 0; i < n_columns; i++) {
        *type = type_of(values[i], kinds[i]);
        put_big_endian(at, (uint64_t)values[i], n_bytes_of[*type]);
        at += n_bytes_of[*type++];
    }
    return (unsigned)(at - to);
}

int64_t snapconv_table_pages(int64_t n_rows, int64_t n_columns, const int64_t *values, const uint8_t *kinds,
                             int64_t first_row, int64_t n_pages, uint8_t *pages, int64_t *row_ends) {
    uint8_t row[2 + 9 * MOST_COLUMNS], head[18];
    int64_t page = -1;
    unsigned n_cells = 0, end = 0; /* a page without room: the first row begins one */
    if (n_columns > MOST_COLUMNS) {
        return -1;
    }
    for (int64_t i = 0; i < n_rows; i++) {
        unsigned n_row = put_row(row, n_columns, values + i * n_columns, kinds + i * n_columns);
        unsigned n_head = put_varint(head, n_row);
        n_head += put_varint(head + n_head, (uint64_t)(first_row + i));
        if (end < HEADER_BYTES + 2 * (n_cells + 1) + n_head + n_row) {
            if (++page == n_pages) {
                return -1;
            }
            n_cells = 0;
            end = PAGE_BYTES;
        }
        end -= n_head + n_row;
        uint8_t *to = pages + page * PAGE_BYTES;
        memcpy(to + end, head, n_head);
        memcpy(to + end + n_head, row, n_row);
        put_big_endian(to + HEADER_BYTES + 2 * n_cells++, end, 2);
        to[0] = LEAF_OF_TABLE;
        put_big_endian(to + 3, n_cells, 2);
        put_big_endian(to + 5, end, 2);
        row_ends[page] = i + 1;
    }
    return page + 1;
}
