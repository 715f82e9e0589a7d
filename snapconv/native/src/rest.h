/* The rest of a pickle: all that is no event, written again as a pickle of plain values.
 *
 * It is a row of statements: each builds one text, list, dictionary or tuple, puts it into the memo, where its
 * index is the count of those before it, and takes it off the stack. A later one refers to it by that index.
 * So nothing is kept as an object, nothing is deep, and what is interned is found again by its bytes.
 */
#ifndef SNAPCONV_REST_H
#define SNAPCONV_REST_H

#include "interning.h"

/* A value on the stack of the machine. */
enum tag {
    TAG_NONE,
    TAG_FALSE,
    TAG_TRUE,
    TAG_INT, /* of 32 bits: number */
    TAG_LONG, /* of 64 bits */
    TAG_ULONG, /* from 2^63 on */
    TAG_FLOAT, /* number has its bits, as they stood in the file */
    TAG_TEXT, /* number is the memo index in the rest, here and below */
    TAG_TUPLE,
    TAG_FRAME, /* a dictionary with a file name and plain values; number is that of the frame: it is not in the rest */
    TAG_STACK, /* a list of frames; number is that of the stack, but in the rest its memo index */
    TAG_DICT,
    TAG_LIST,
    TAG_NEW_DICT, /* empty so far, and in no statement yet */
    TAG_NEW_LIST,
    TAG_EVENTS, /* events that follow each other: number is the first, memo their count */
    TAG_TRACE /* a list of events, the same way */
};

typedef struct {
    uint8_t tag;
    uint8_t is_copy; /* it came from the memo, and may not grow any more */
    uint32_t memo; /* where it was put into the memo of the file, or NO_MEMO */
    int64_t number;
} value;

#define NO_MEMO UINT32_MAX

typedef struct {
    buffer out;
    uint32_t n_statements;
    intern_table tuples;
    intern_table texts; /* without what stands around them */
    interned last_text; /* the same comes again and again: that of an event's compile context */
} rest;

bool rest_init(rest *r, uint64_t seed);
void rest_free(rest *r);

/* Each gives the memo index of a statement, NO_ID where memory or indices do not suffice. */
uint32_t rest_text(rest *r, const uint8_t *text, uint32_t n_bytes);
uint32_t rest_new(rest *r, char empty, const value *items, size_t n, char fill);
/* What stands for a stack. */
uint32_t rest_stack(rest *r, uint32_t stack);
uint32_t rest_tuple(rest *r, const value *items, size_t n);
/* Adds items to a list or dictionary that has a statement. */
bool rest_grow(rest *r, uint32_t id, const value *items, size_t n, char fill);
bool rest_finish(rest *r, const value *root);

#endif
