/* Runs of references to frames, as lists of frames stand in a file: what was seen before is found by its bytes. */
#ifndef SNAPCONV_FRAME_RUNS_H
#define SNAPCONV_FRAME_RUNS_H

#include "interning.h"

#define NO_RUN UINT32_MAX

typedef struct {
    uint64_t offset; /* of its bytes among those of all runs */
    uint32_t n_bytes;
    uint32_t stack;
    uint32_t after; /* where in the history stands what came after it the last time; or beyond its end */
} frame_run;

typedef struct {
    buffer bytes;
    intern_table by_bytes;
    frame_run *runs;
    size_t n, n_max;
    uint32_t *history; /* the runs as they came, the first ones of them */
    size_t n_history, n_history_max;
    size_t expected; /* where in it the next run stands, if programs do the same again */
} frame_runs;

bool runs_init(frame_runs *f, uint64_t seed);
void runs_free(frame_runs *f);

/* How many bytes stand before the end of a list of nothing but references; 0: it is none, or its end not in sight. */
size_t run_length(const uint8_t *bytes, size_t n);

/* The run that is expected, if the bytes begin with it and its end; else NO_RUN. */
uint32_t runs_expected(const frame_runs *f, const uint8_t *bytes, size_t n);
/* The run that has these bytes, or NO_RUN. */
uint32_t runs_find(frame_runs *f, const uint8_t *bytes, size_t n);
/* Keeps a run that was not found; NO_RUN where memory or probes run out. */
uint32_t runs_add(frame_runs *f, const uint8_t *bytes, size_t n, uint32_t stack);
/* Learns which run has come. */
void runs_came(frame_runs *f, uint32_t run);

#endif
