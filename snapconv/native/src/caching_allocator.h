/* Exact replay of torch's caching allocator; the rules are those of allocator/caching_allocator.py, which names the
 * place of each in torch.
 */
#ifndef SNAPCONV_CACHING_ALLOCATOR_H
#define SNAPCONV_CACHING_ALLOCATOR_H

#include "model.h"

/* Allocates a block of a rounded size; NULL when memory runs out. */
block *allocator_take(model *m, uint32_t lane, int64_t size, int64_t requested, int64_t row);
void allocator_give_back(model *m, block *b);
/* Frees a block that stays active until allocator_complete, or until all pending frees complete. */
void allocator_give_back_later(model *m, block *b);
void allocator_complete(model *m, block *b);
void allocator_wait(model *m, block *b);
void allocator_empty_cache(model *m);

#endif
