/* The compiled core: everything that Python calls, through ctypes (library.py).
 *
 * Nothing here knows Python, opens a file or makes an error text. Whatever is odd ends with ODD: then the twin,
 * which is the same in Python, does the work from the beginning and finds the right words.
 */
#ifndef SNAPCONV_CORE_H
#define SNAPCONV_CORE_H

#include <stdint.h>

/* Raised with every change to this file; library.py expects the same number. */
#define SNAPCONV_ABI 6

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum status { MORE = 0, DONE = 1, ODD = 2, NO_MEMORY = 3 };

EXPORT int32_t snapconv_abi(void);

/* Reading: the bytes of a pickle, in pieces, to the columns of its events and a pickle of the rest. */

typedef struct reader reader;

/* The columns of events, in the order of snapconv_events.columns. A column that no event fills is NULL. */
enum column {
    COLUMN_ACTION, /* int8: what snapconv_reader_define gave for the word, 0 for any other */
    COLUMN_HAS_CATEGORY, /* int8: 1 where there is such a key */
    COLUMN_ADDR, /* int64: device_free where the action is an OOM */
    COLUMN_SIZE,
    COLUMN_STREAM,
    COLUMN_TIME, /* INT64_MIN where it is missing */
    COLUMN_FRAMES, /* int32 from here on: numbers of stacks, -1 where it is missing */
    COLUMN_COMPILE_CONTEXT, /* memo indices of the rest, the same way */
    COLUMN_USER_METADATA,
    COLUMN_INTERNAL_METADATA,
    COLUMN_POOL,
    N_COLUMNS
};

/* What a key of an event is; the words come from Python. */
enum field {
    FIELD_UNKNOWN,
    FIELD_ACTION,
    FIELD_ADDR,
    FIELD_DEVICE_FREE,
    FIELD_SIZE,
    FIELD_STREAM,
    FIELD_TIME,
    FIELD_FRAMES,
    FIELD_COMPILE_CONTEXT,
    FIELD_USER_METADATA,
    FIELD_INTERNAL_METADATA,
    FIELD_POOL,
    FIELD_CATEGORY,
    FIELD_IGNORED,
    FIELD_FILENAME, /* of a frame: a dictionary that has it is one */
    FIELD_NAME,
    FIELD_LINE,
    N_FIELDS
};

/* How often an action that is not known was met; in the order of first appearance. */
typedef struct {
    uint64_t text; /* memo index in the rest */
    uint64_t count;
} unknown_action;

/* A frame: the memo indices of its texts, cut to MAX_TEXT characters, and its line, 0 where there is none. */
typedef struct {
    uint32_t name, filename, line;
} snapconv_frame;

/* The frame numbers of a stack begin where those of the one before end. */
typedef struct {
    uint64_t end;
    uint64_t memo; /* index in the rest */
} snapconv_stack;

typedef struct {
    uint64_t n_events;
    uint64_t n_rest_bytes;
    /* A pickle; its memo has every text, list and dictionary by its index. A list with one bytes object stands for a
     * stack (its number, in four bytes) or for a trace (the number of its first event, and its events' count, in eight
     * bytes each). */
    const uint8_t *rest;
    uint64_t n_unknown;
    const unknown_action *unknown;
    uint64_t n_frames;
    const snapconv_frame *frames;
    uint64_t n_stacks;
    const snapconv_stack *stacks;
    const int32_t *frame_ids;
    const void *columns[N_COLUMNS];
} snapconv_events;

EXPORT reader *snapconv_reader_new(uint64_t seed);
EXPORT void snapconv_reader_free(reader *r);
EXPORT int32_t snapconv_reader_define(reader *r, const uint8_t *text, uint32_t n_bytes, int32_t field,
                                      int32_t action, int32_t is_oom);
/* Takes whole tokens only: what is beyond *n_taken has to come again, with more behind it. */
EXPORT int32_t snapconv_reader_feed(reader *r, const uint8_t *bytes, int64_t n_bytes, int64_t *n_taken);
EXPORT void snapconv_reader_events(const reader *r, snapconv_events *found);
/* Frees all but the columns. */
EXPORT void snapconv_reader_drop_rest(reader *r);

/* Replaces keys in place by numbers, in the order in which keys are met; -1 stays. numbers has the number of every key,
 * -1 where it was not met yet; met lists the n_met keys so far, with room for n_keys. Returns the new n_met, -1 where a
 * key is out of bounds.
 */
EXPORT int64_t snapconv_number(int32_t *keys, int64_t n, int32_t *numbers, int64_t n_keys, int32_t *met,
                               int64_t n_met);

/* Pairing: the events of a device, in pieces, to lifetimes. The columns of these are the caller's, have a place
 * for every event, and get -1 where there is no such event.
 */

typedef struct pairing pairing;

EXPORT pairing *snapconv_pairing_new(uint64_t seed, const uint8_t *is_release, int64_t *alloc, int64_t *requested,
                                     int64_t *completed, int64_t *end, int64_t *addr);
EXPORT void snapconv_pairing_free(pairing *p);
/* kind: 0 nothing, 1 alloc, 2 free requested, 3 free completed, 4 both halves of a free at once. */
EXPORT int32_t snapconv_pairing_add(pairing *p, int64_t first_event, int64_t n_events, const int8_t *kind,
                                    const int64_t *addr);
/* counts: lifetimes, frees without an alloc, allocations without a free whose address is allocated again. */
EXPORT void snapconv_pairing_finish(pairing *p, int64_t counts[3]);

/* The walk back from the final segments; NULL where memory does not suffice or the segments make no sense. */

typedef struct walk walk;

/* Both sorted by address; the blocks are those that are live. */
EXPORT walk *snapconv_walk_new(int64_t n_segments, const int64_t *addr, const int64_t *n_bytes,
                               const uint8_t *is_expandable, int64_t n_blocks, const int64_t *block_segment,
                               const int64_t *block_addr);
EXPORT void snapconv_walk_free(walk *w);
/* Undoes a piece of the events, last first. kind: 0 nothing, 1 alloc, 3 release, 4 to 7 the segments' actions as
 * in event_table.py. block_bytes of an alloc is set.
 */
EXPORT int32_t snapconv_walk_undo(walk *w, int64_t n_events, const int8_t *kind, const int64_t *addr,
                                  const int64_t *size, const int64_t *rounded, const int64_t *least_remainder,
                                  int64_t *block_bytes);
EXPORT int64_t snapconv_walk_conflicts(const walk *w);
EXPORT int64_t snapconv_walk_least_space(const walk *w, int64_t *addr, int64_t *space);

/* The replay of calls to the allocator model. */

typedef struct replay replay;

/* The settings, and the memory; sizes in bytes, INT64_MAX for what is not limited. */
enum replay_setting {
    REPLAY_MAX_SPLIT_SIZE,
    REPLAY_MAX_NON_SPLIT_ROUNDING,
    REPLAY_LARGE_SEGMENT,
    REPLAY_IS_EXPANDABLE,
    REPLAY_CAPACITY,
    REPLAY_LIMIT,
    REPLAY_GARBAGE_BYTES,
    REPLAY_IS_CHECK,
    REPLAY_DEFAULT_POOL,
    REPLAY_FIRST_ADDRESS,
    N_REPLAY_SETTINGS
};

/* The columns of allocations, which are the caller's; behind them the requests that failed in the trace, in order. */
typedef struct {
    int64_t n_rows; /* of allocations */
    int64_t n_failed;
    int64_t *size; /* rounded; from its call on, that of its block */
    const int64_t *requested;
    const int32_t *lane;
    int64_t n_lanes;
    const int64_t *lane_pool; /* twice the pool, and 1 more where it is the large one of two; sorted, then by stream */
    int8_t *is_served; /* of each request that failed: 1 where it was served now, 0 where it failed again */
} snapconv_rows;

/* The outcome so far. */
enum replay_figure {
    FIGURE_REQUESTED,
    FIGURE_ALLOCATED,
    FIGURE_ACTIVE,
    FIGURE_RESERVED,
    FIGURE_MAX_ALLOCATED,
    FIGURE_MAX_RESERVED,
    FIGURE_SEGMENT_ALLOCS,
    FIGURE_SEGMENT_MAPS,
    FIGURE_N_REPEATED, /* requests that failed in the trace, made so far */
    FIGURE_DIFFERS_AT, /* an event, -1 for none */
    FIGURE_RAN_OUT, /* 1: the figures of the first request that failed follow */
    FIGURE_FAILED_EVENT,
    FIGURE_FAILED_ROW,
    FIGURE_FAILED_SHORT,
    FIGURE_FAILED_POOL_FREE,
    FIGURE_FAILED_POOL_LARGEST,
    FIGURE_FAILED_RESERVED,
    FIGURE_FAILED_ALLOCATED,
    N_FIGURES
};

/* Those of the memory before the calls: a segment's, and a live block's. */
typedef struct {
    int64_t addr, size;
    int32_t lane, is_expandable;
} snapconv_segment;

typedef struct {
    int64_t addr, size, row;
    int32_t segment, is_pending;
} snapconv_live;

/* NULL where memory does not suffice. */
EXPORT replay *snapconv_replay_new(const int64_t settings[N_REPLAY_SETTINGS], const snapconv_rows *rows, uint64_t seed);
EXPORT void snapconv_replay_free(replay *r);
/* Takes over segments with their live blocks: ordinary ones first, each kind by address. */
EXPORT int32_t snapconv_replay_adopt(replay *r, int64_t n_segments, const snapconv_segment *segments, int64_t n_live,
                                     const snapconv_live *live);
/* Allocates live blocks anew; lane: that of each. DONE where memory runs out, as for the next. */
EXPORT int32_t snapconv_replay_place(replay *r, int64_t n_live, const snapconv_live *live, const int32_t *lane);
/* Makes some calls: operations as in allocator_calls.py; reserved_after: by event, for a check alone. */
EXPORT int32_t snapconv_replay_make(replay *r, int64_t n_calls, const int8_t *operation, const int64_t *row,
                                    const int64_t *event, const int64_t *reserved_after, int64_t n_events);
EXPORT void snapconv_replay_figures(const replay *r, int64_t figures[N_FIGURES]);

/* Writing: rows of numbers to the leaf pages of a table in a SQLite file. */

enum cell { CELL_NULL, CELL_INTEGER, CELL_REAL };

/* Row by row, values (of a REAL, its bits) and kinds have n_columns cells; the key before them is the number of the row.
 * pages are n_pages of zeros of 4096 bytes; row_ends gets the rows up to the end of each. Returns the pages that have
 * rows, -1 where there are too few of them, or too many columns.
 */
EXPORT int64_t snapconv_table_pages(int64_t n_rows, int64_t n_columns, const int64_t *values, const uint8_t *kinds,
                                    int64_t first_row, int64_t n_pages, uint8_t *pages, int64_t *row_ends);

#endif
