#include "stacks.h"

#include <stdlib.h>
#include <string.h>

bool stacks_init(stack_table *s, uint64_t seed) {
    *s = (stack_table){0};
    return table_init(&s->by_frame, seed) && table_init(&s->by_frame_ids, seed);
}

void stacks_free(stack_table *s) {
    buffer_free(&s->frames);
    buffer_free(&s->frame_ids);
    table_free(&s->by_frame);
    table_free(&s->by_frame_ids);
    free(s->stacks);
    *s = (stack_table){0};
}

uint32_t stacks_frame(stack_table *s, snapconv_frame frame) {
    const uint8_t *bytes = (const uint8_t *)&frame;
    interned *place = table_find(&s->by_frame, &s->frames, bytes, sizeof frame);
    if (place == NULL || place->is_used) {
        return place == NULL ? NO_ID : place->id;
    }
    size_t id = s->by_frame.n_used;
    if (id >= INT32_MAX || !buffer_reserve(&s->frames, sizeof frame)) {
        return NO_ID;
    }
    memcpy(s->frames.bytes + s->frames.n, bytes, sizeof frame);
    table_use(&s->by_frame, place, s->frames.n, sizeof frame, (uint32_t)id);
    s->frames.n += sizeof frame;
    return (uint32_t)id;
}

static size_t end_of_last(const stack_table *s) { return s->n ? (size_t)s->stacks[s->n - 1].end * sizeof(int32_t) : 0; }

void stacks_cancel(stack_table *s) { s->frame_ids.n = end_of_last(s); }

bool stacks_push(stack_table *s, uint32_t frame) {
    if (!buffer_reserve(&s->frame_ids, sizeof frame)) {
        return false;
    }
    memcpy(s->frame_ids.bytes + s->frame_ids.n, &frame, sizeof frame);
    s->frame_ids.n += sizeof frame;
    return true;
}

uint32_t stacks_close(stack_table *s, uint32_t memo) {
    size_t start = end_of_last(s), n_bytes = s->frame_ids.n - start;
    bool has_room = buffer_reserve(&s->frame_ids, 1) && /* where there is no frame yet */
                    reserve((void **)&s->stacks, &s->n_max, s->n + 1, sizeof *s->stacks);
    interned *place =
        has_room ? table_find(&s->by_frame_ids, &s->frame_ids, s->frame_ids.bytes + start, n_bytes) : NULL;
    if (place == NULL || place->is_used) {
        stacks_cancel(s);
        return place == NULL ? NO_ID : place->id;
    }
    table_use(&s->by_frame_ids, place, start, n_bytes, (uint32_t)s->n);
    s->stacks[s->n] = (snapconv_stack){s->frame_ids.n / sizeof(int32_t), memo};
    return (uint32_t)s->n++;
}

int64_t snapconv_number(int32_t *keys, int64_t n, int32_t *numbers, int64_t n_keys, int32_t *met, int64_t n_met) {
    for (int64_t i = 0; i < n; i++) {
        int32_t key = keys[i];
        if (key < 0) {
            continue;
        }
        if (key >= n_keys) {
            return -1;
        }
        if (numbers[key] < 0) {
            numbers[key] = (int32_t)n_met;
            met[n_met++] = key;
        }
        keys[i] = numbers[key];
    }
    return n_met;
}
