/* Expandable segments: mapping pages to make a block grow, unmapping them to give memory back. */
#ifndef SNAPCONV_EXPANDABLE_SEGMENTS_H
#define SNAPCONV_EXPANDABLE_SEGMENTS_H

#include "model.h"

/* Maps pages until one free block has so many bytes, and takes it out of its pool; NULL when memory runs out. */
block *expandable_allocate(model *m, uint32_t lane, int64_t size);
/* Unmaps every whole page inside a free block. */
void expandable_release(model *m, block *b);
/* Gives mapped ranges, each the first of a run of linked blocks, by address, room to grow in. */
void expandable_adopt(model *m, block **ranges, size_t n);

#endif
