/* Distinct stacks, and the distinct frames that they consist of. */
#ifndef SNAPCONV_STACKS_H
#define SNAPCONV_STACKS_H

#include "core.h"
#include "interning.h"

typedef struct {
    buffer frames; /* rows of snapconv_frame */
    intern_table by_frame;
    buffer frame_ids; /* those of all stacks, int32 each, leaf first */
    intern_table by_frame_ids;
    snapconv_stack *stacks;
    size_t n, n_max;
} stack_table;

bool stacks_init(stack_table *s, uint64_t seed);
void stacks_free(stack_table *s);

/* The number of a frame, NO_ID where memory or numbers run out. */
uint32_t stacks_frame(stack_table *s, snapconv_frame frame);
/* Adds a frame to the stack that comes next. */
bool stacks_push(stack_table *s, uint32_t frame);
/* Ends it: the number of the stack that is the same, or else a new one, which has this memo index in the rest. NO_ID
 * where memory or probes run out. */
uint32_t stacks_close(stack_table *s, uint32_t memo);
/* Forgets the frames that were added to it. */
void stacks_cancel(stack_table *s);

#endif
