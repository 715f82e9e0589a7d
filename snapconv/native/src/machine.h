/* The state of the machine that reads a pickle, and what both of its ways share: token by token, and
 * whole events. */
#ifndef SNAPCONV_MACHINE_H
#define SNAPCONV_MACHINE_H

#include "core.h"
#include "event_columns.h"
#include "frame_runs.h"
#include "stacks.h"

/* An entry of the file's memo: a value without what only the stack needs. */
typedef struct {
    uint8_t tag;
    uint8_t was_read; /* its container may stand in several places, and may not grow any more */
    uint32_t id;
} memo_entry;

struct reader {
    rest rest;
    event_columns events;
    meaning *meanings;
    size_t n_meanings_max;
    value *stack;
    size_t n_stack, n_stack_max;
    size_t *marks;
    size_t n_marks, n_marks_max;
    memo_entry *memo;
    size_t n_memo, n_memo_max;
    frame_runs runs;
    stack_table stacks;
    uint64_t n_taken; /* bytes of whole tokens so far */
    uint64_t frame_end; /* the farthest that a FRAME has announced */
    uint64_t chunk_start; /* where the count of containers began */
    uint64_t n_containers;
};

static inline size_t fence(const reader *r) { return r->n_marks ? r->marks[r->n_marks - 1] : 0; }

/* Bytes of a reference to the memo; 0: the token is another. */
static inline size_t reference_bytes(uint8_t opcode) { return opcode == 'h' ? 2 : opcode == 'j' ? 5 : 0; }

static inline uint64_t reference(const uint8_t *at) { return at[0] == 'h' ? at[1] : load_bytes(at + 1, 4); }

enum { MAX_FRAMES = 1 << 16 }; /* of one stack */

/* The memo index of a text in the rest; NO_ID where memory or probes run out. */
uint32_t text_id(reader *r, const uint8_t *text, uint32_t n_bytes);

/* Puts a value onto a stack that is full. */
int push_with_room(reader *r, value v);
static inline int push(reader *r, value v) {
    if (r->n_stack == r->n_stack_max) {
        return push_with_room(r, v);
    }
    r->stack[r->n_stack++] = v;
    return MORE;
}

/* The number of the stack whose frames were pushed last; NO_ID where memory or probes run out. */
uint32_t close_stack(reader *r);
/* Makes an empty list of frames the stack that it is; false where memory or probes run out. */
bool settle_frames(reader *r, const value *key, value *list);
/* The run that stands behind a mark, with the end of its list, kept for the next time if it is new; or NO_RUN. */
uint32_t known_run(reader *r, const uint8_t *after_mark, size_t n);
/* Puts the row that was added last onto the stack: it joins those just before it, as torch's C++ writer leaves them
 * there by the million. */
int push_row(reader *r);

#endif
