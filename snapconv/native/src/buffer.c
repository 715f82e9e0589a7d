#include "buffer.h"

#include <stdlib.h>

enum { FIRST_ELEMENTS = 64 };

bool reserve_more(void **memory, size_t *n_max, size_t n, size_t element_bytes) {
    size_t wanted = *n_max ? *n_max : FIRST_ELEMENTS;
    while (wanted < n) {
        if (wanted > SIZE_MAX / 2) {
            return false;
        }
        wanted *= 2;
    }
    if (wanted > (SIZE_MAX / 2) / element_bytes) {
        return false;
    }
    void *grown = realloc(*memory, wanted * element_bytes);
    if (grown == NULL) {
        return false;
    }
    *memory = grown;
    *n_max = wanted;
    return true;
}

void buffer_free(buffer *b) {
    free(b->bytes);
    b->bytes = NULL;
    b->n = b->n_max = 0;
}
