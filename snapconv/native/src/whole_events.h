/* Events of usual tokens, each read at once. */
#ifndef SNAPCONV_WHOLE_EVENTS_H
#define SNAPCONV_WHOLE_EVENTS_H

#include "machine.h"

/* Reads the dictionary that the bytes begin with, if it is an event of usual tokens that is here as a whole: gives its
 * bytes, and the status. 0: what stands there has to be read token by token, from its beginning. */
size_t read_event(reader *r, const uint8_t *bytes, size_t n, int *status);

#endif
