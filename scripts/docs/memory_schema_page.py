"""Tables as data -> docs/reference/schema.md, the page that describes every column of a memory report."""

from scripts.docs.schema_page import schema_page
from snapconv.answers.memory_report import (
    CURVES,
    END,
    PEAK,
    PEAK_ACTIVATIONS,
    PEAK_ALLOCATED,
    START,
    moment_name,
)
from snapconv.writers.sqlite.extended_memory_schema import EXTENDED_TABLES, EXTENDED_VIEWS
from snapconv.writers.sqlite.skyline_memory import TABLES

_INTRODUCTION = """\
# What is in a memory report

Made by `scripts/make_docs.py` out of the program; a test fails when the two differ.

A memory report is an SQLite file about one device. Its tables are those that `skyline memory` writes
(skyline-cli 0.5.0; DeepView.Profile 0.14.5 writes the same), so whatever reads those reads these. With
`--extended` the same file has more tables and views, whose names begin with `snapconv_`. Without it
there is nothing in the file that Skyline would not have put there.

All sizes are in bytes. The *requested* bytes are the sizes that the program requested, the *block* bytes what
the allocator set aside for it; `torch.cuda.max_memory_allocated()` counts block bytes. The peak is the
first event of the trace after which the *allocated* bytes (the blocks in use) are at their maximum; it
may also be before the first event.

**A report is about several moments, and sizes of different moments do not add up.** Weights and the
breakdown are those of the peak, activations those of their own high-water mark, which may come earlier
or later. For what was there at the peak and sums to it, query `snapconv_peak_allocations` or
`snapconv_categories_at_peak`, both of `--extended`.\
"""

_SKYLINE = """\
## Skyline's tables

`PRAGMA user_version` is 1. Ids count from 1, `ordering` counts from 0.

What the rows mean, and where that is not what Skyline's own reports mean:

* **Weights** are those that are live at the peak, each with its gradient in the iteration that holds
  the peak. Buffers (statistics of a batch norm, masks) count as weights: a snapshot does not separate them
  apart. Skyline lists the parameters that are alive at the end of its run, without buffers. Sizes of
  weights are requested bytes, as Skyline's are; all other sizes of Skyline's tables are block bytes.
* **Activations** are those of the iteration that holds the peak, at that iteration's activation
  high-water mark: one row per allocation, named by the operation that *allocated* it. Skyline
  charges memory to the operation whose autograd node kept it alive, as the last one, so compare sums
  with it, not single rows.
* **`peak_usage_bytes`** is what `torch.cuda.max_memory_allocated()` would have returned had its count begun
  with the trace. A higher peak before the trace is not in the file: see the history's verdict.
* **Frames** are all frames of the project, innermost first. Skyline keeps only those in which a local
  variable `self` is an `nn.Module`. They are where the memory was allocated; Skyline's frames of a
  weight are where the parameter was registered.
* **Rows without a frame of the project** stay, and have no frames, since the sums would be wrong
  without them. Skyline leaves out such activations. Skyline's queries join the frames with a LEFT JOIN, so
  they show such a row with NULL for its file and its line.\
"""

_EXTENDED = """\
## The tables of `--extended`

* Ids count from 0, as everywhere in snapconv. An *event* is a position in the device's trace
  (`device_traces[device]` of the snapshot), and what is counted at an event is counted after it.
* What is missing is NULL, never -1, and every column explains its NULL; a column that does
  not is never NULL.
* An allocation is *in use* from its `alloc_event` until its `free_requested_event`, or its `end_event`
  where no request is known; this is what allocated bytes count. Until its `end_event` its block is
  still *active*.
* Addresses are signed, because SQLite's integers are: from 2^63 on they are negative. In SQL
  `printf('0x%x', addr)` prints them as CUDA would, in Python `hex(addr & (1 << 64) - 1)` does.
* Text that SQLite cannot hold is written in Python's escapes: a lone surrogate as `\\udc80`, the
  character NUL as `\\x00`. This holds for Skyline's tables too.\
"""

# A test compares them with the program.
VALUES = {
    ("snapconv_report", "history_verdict"): (
        (
            "complete",
            "nothing was there before the first event: the peak is that of the process up to the dump",
        ),
        ("started late", "memory was there before the first event: the peak is that of the trace"),
        ("truncated", "the oldest events are lost: the peak is that of what is left"),
        ("no trace", "there are no events: the peak is what is live at the dump"),
    ),
    ("snapconv_moments", "name"): (
        (f"{START}_allocated", "before the first event: allocated bytes"),
        (PEAK_ALLOCATED, "the peak: weights, categories, breakdown and lines are about this moment"),
        (moment_name(END, "allocated"), "after the last event"),
        *(
            (
                ", ".join(moment_name(which, curve) for which in (START, PEAK, END)),
                f"the same of {curve} bytes",
            )
            for curve in CURVES
            if curve != "allocated"
        ),
        (PEAK_ACTIVATIONS, "the high-water mark of activations: `activation_entries` is about this moment"),
    ),
    ("snapconv_modules", "name"): (
        ("blocks.3.attn", "its path in the model; what is the model's own is of `(model)`"),
        (
            "model.py:35 < train.py:53",
            "the lines that call it and those around it, innermost first; modules called on one line are one",
        ),
    ),
    ("snapconv_modules", "evidence"): (
        (
            "metadata",
            "the recorder wrote it: a parameter's module has its gradient and its optimizer states too, what "
            "autograd saved is of the module that saved it first",
        ),
        ("frames", "from the stack: the module was running"),
    ),
    ("snapconv_breakdown", "name"): (
        ("weights", "requested bytes of category `weight`, buffers included"),
        ("gradients", "requested bytes of category `gradient`"),
        ("activations", "requested bytes of category `activation` that are live at the peak"),
        ("workspace", "requested bytes of category `workspace`"),
        ("dynamic", "all other requested bytes: the sum of the next five"),
        ("optimizer", "of these, category `optimizer_state`"),
        ("input", "of these, category `input`"),
        ("temporary", "of these, category `temporary`"),
        ("communication", "of these, category `communication`"),
        ("unknown", "of these, category `unknown`"),
        ("rounding", "block bytes minus requested bytes, of all allocations in use"),
        ("pending_free", "blocks that the program has freed and a stream still uses"),
        ("cached_blocks", "free blocks in segments, kept for later"),
        ("unmapped", "bytes of segments that no block of the file covers; 0 in every real snapshot seen"),
    ),
}

# (what it answers, the query); a test runs every one of them.
MEMORY_EXAMPLES = (
    (
        "What held memory at the peak, by category and operation?",
        """\
SELECT category, operation, count(*) AS n_allocations, sum(block_bytes) AS block_bytes
FROM snapconv_peak_allocations
GROUP BY category, operation
ORDER BY block_bytes DESC;""",
    ),
    (
        "Which stack made the largest allocation at the peak?",
        """\
SELECT function, file, line
FROM snapconv_stack_lines
WHERE stack_id = (SELECT stack_id FROM snapconv_peak_allocations LIMIT 1)
ORDER BY ordering;""",
    ),
    (
        "What does every iteration leave behind that is still in use when the next one ends: a leak?",
        """\
SELECT allocation.iteration, allocation.category, count(*) AS n_allocations,
       sum(allocation.block_bytes) AS block_bytes
FROM snapconv_allocations_in_words AS allocation
JOIN snapconv_iterations AS following ON following.iteration = allocation.iteration + 1
WHERE coalesce(allocation.free_requested_event, allocation.end_event, following.last_event + 1)
      > following.last_event
GROUP BY allocation.iteration, allocation.category
ORDER BY allocation.iteration, block_bytes DESC;""",
    ),
    (
        "Which lines grow, and how much does each add in an iteration?",
        """\
SELECT frame.file, frame.line, frame.function,
       sum(grown.bytes_per_iteration) AS per_iteration
FROM snapconv_growth AS grown
LEFT JOIN snapconv_stacks AS stack ON stack.id = grown.stack_id
LEFT JOIN snapconv_frames AS frame ON frame.id = stack.project_frame_id
WHERE grown.fate <> 'freed late'
GROUP BY frame.id
ORDER BY per_iteration DESC;""",
    ),
    (
        "What did every module hold at the peak, by category?",
        """\
SELECT module, category, count(*) AS n_allocations, sum(block_bytes) AS block_bytes
FROM snapconv_peak_allocations
GROUP BY module, category
ORDER BY block_bytes DESC;""",
    ),
    (
        "How much did the allocator hold on top of what was in use?",
        """\
SELECT event, reserved_bytes - active_bytes AS unused_bytes
FROM snapconv_timeline
ORDER BY unused_bytes DESC, event
LIMIT 1;""",
    ),
)


def memory_schema_page() -> str:
    """Write the page as Markdown."""
    return schema_page(
        _INTRODUCTION,
        skyline=(_SKYLINE, TABLES),
        extended=(_EXTENDED, EXTENDED_TABLES),
        views=EXTENDED_VIEWS,
        examples=MEMORY_EXAMPLES,
        values=VALUES,
    )
