"""Tables as data -> docs/reference/schema.md, time-schema.md and ranks-schema.md: every column of them."""

from collections.abc import Mapping, Sequence

from snapconv.answers.memory_report import CURVES, END_ALLOCATED, PEAK_ACTIVATIONS, PEAK_ALLOCATED
from snapconv.writers.sqlite.extended_memory import EXTENDED_TABLES, EXTENDED_VIEWS
from snapconv.writers.sqlite.extended_times import EXTENDED_TIME_TABLES
from snapconv.writers.sqlite.job_database import JOB_TABLES
from snapconv.writers.sqlite.skyline_reports import TABLES, TIME_TABLES
from snapconv.writers.sqlite.tables import Table, View

# What the values of a column mean: (table, column) -> (value, meaning).
Values = Mapping[tuple[str, str], Sequence[tuple[str, str]]]


def _schema_page(
    introduction: str,
    *,
    skyline: tuple[str, Sequence[Table]],
    extended: tuple[str, Sequence[Table]],
    views: Sequence[View] = (),
    examples: Sequence[tuple[str, str]],
    values: Values | None = None,
) -> str:
    """Write the page as Markdown: each kind of tables with its own text before them, then the queries."""

    def describe(items: Sequence[Table | View]) -> list[str]:
        return [_description(item, values or {}) for item in items]

    sections = [
        introduction,
        skyline[0],
        *describe(skyline[1]),
        extended[0],
        *describe(extended[1]),
        *(["## The views of `--extended`", *describe(views)] if views else []),
        "## Questions and queries",
        *(f"{question}\n\n```sql\n{query}\n```" for question, query in examples),
    ]
    return "\n\n".join(sections) + "\n"


def _description(item: Table | View, values: Values) -> str:
    """Describe a table or a view, a line per column."""
    lines = [f"### `{item.name}`", "", item.meaning]
    if item.columns:
        lines += ["", "| column | type | unit | meaning | NULL means |", "|---|---|---|---|---|"]
    for column in item.columns:
        sql_type = column.sql_type.split()[0]
        cells = (f"`{column.name}`", sql_type, column.unit, column.meaning, column.null or "")
        lines.append(f"| {' | '.join(cells)} |")
    if isinstance(item, View) and item.continued_by:
        lines += ["", f"Its columns are those of `{item.continued_by.name}`."]
    for column in item.columns:
        if known := values.get((item.name, column.name)):
            lines += ["", f"| `{column.name}` | is |", "|---|---|"]
            lines += [f"| {_code(value)} | {meaning} |" for value, meaning in known]
    return "\n".join(lines)


def _code(values: str) -> str:
    return ", ".join(f"`{value}`" for value in values.split(", "))


# --- the memory report

_MEMORY_INTRODUCTION = """\
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

**A report is about several moments, and sizes of different moments do not add up.** Weights are those of
the peak, activations those of their own high-water mark, which may come earlier or later. For
what was there at the peak and sums to it, query `snapconv_peak_allocations` of `--extended`.\
"""

_MEMORY_SKYLINE = """\
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

_MEMORY_EXTENDED = """\
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
_MEMORY_VALUES = {
    ("snapconv_report", "history_verdict"): (
        (
            "complete",
            (
                "nothing was there before the first event: the peak is that of the process up to the "
                "dump"
            ),
        ),
        ("started late", "memory was there before the first event: the peak is that of the trace"),
        ("truncated", "the oldest events are lost: the peak is that of what is left"),
        ("no trace", "there are no events: the peak is what is live at the dump"),
    ),
    ("snapconv_moments", "name"): (
        ("start_allocated", "before the first event: allocated bytes"),
        (PEAK_ALLOCATED, "the peak: weights, categories and lines are about this moment"),
        (END_ALLOCATED, "after the last event"),
        *(
            (
                ", ".join(f"{which}_{curve}" for which in ("start", "peak", "end")),
                f"the same of {curve} bytes",
            )
            for curve in CURVES
            if curve != "allocated"
        ),
        (
            PEAK_ACTIVATIONS,
            "the high-water mark of activations: `activation_entries` is about this moment",
        ),
    ),
    ("snapconv_modules", "name"): (
        ("blocks.3.attn", "its path in the model; what is the model's own is of `(model)`"),
        (
            "model.py:35 < train.py:53",
            (
                "the lines that call it and those around it, innermost first; modules called on one "
                "line are one"
            ),
        ),
    ),
    ("snapconv_modules", "evidence"): (
        (
            "metadata",
            "the recorder wrote it: a parameter's module has its gradient and its optimizer "
            "states too, what "
            "autograd saved is of the module that saved it first",
        ),
        ("frames", "from the stack: the module was running"),
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
        "What did every line of the project hold at the peak?",
        """\
SELECT file, line, function, count(*) AS n_allocations, sum(block_bytes) AS block_bytes
FROM snapconv_peak_allocations
GROUP BY file, line, function
ORDER BY block_bytes DESC;""",
    ),
    (
        "Which stack made the largest allocation at the peak?",
        """\
SELECT function, file, line
FROM snapconv_stack_frames JOIN snapconv_frames ON id = frame_id
WHERE stack_id = (SELECT stack_id FROM snapconv_peak_allocations LIMIT 1)
ORDER BY ordering;""",
    ),
    (
        (
            "What does every iteration leave behind that is still in use when the next one ends: a "
            "leak?"
        ),
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
    return _schema_page(
        _MEMORY_INTRODUCTION,
        skyline=(_MEMORY_SKYLINE, TABLES),
        extended=(_MEMORY_EXTENDED, EXTENDED_TABLES),
        views=EXTENDED_VIEWS,
        examples=MEMORY_EXAMPLES,
        values=_MEMORY_VALUES,
    )


# --- the run time report

_TIME_INTRODUCTION = """\
# What is in a run time report

Made by `scripts/make_docs.py` out of the program; a test fails when the two differ.

A run time report is an SQLite file about one device, made from the `timing.json` of a capture. Its tables
are those that `skyline time` writes (skyline-cli 0.5.0; DeepView.Profile 0.14.5 writes the same), so
whatever reads those reads these. With `--extended` the same file has more tables, whose names begin with
`snapconv_`. It is another file than the memory report's: both have a table `stack_frames`, with other
columns.

All times are in milliseconds. How they are measured, and where they mislead:
[timing.md](../design/timing.md).\
"""

_TIME_SKYLINE = """\
## Skyline's tables

`PRAGMA user_version` is 1. Ids count from 1, `ordering` counts from 0.

What the rows mean, and where that is not what Skyline's own reports mean:

* **One iteration** of those that were timed: the one whose forward, backward and optimizer times together are
  the median (of an even number, the lower of the two in the middle). Skyline times one iteration.
* **Every time is that of the call in the running iteration**, taken once. Skyline runs every operation by
  itself, three times to warm up and three to measure, and never the backward pass as a whole. So the rows
  here add up to nearly the whole of the forward and backward time, and Skyline's do not.
* **`backward_ms`** is NULL where nothing of the call ran in backward. Otherwise it reaches from the
  beginning of each of the call's nodes to the beginning of the next node, so that nothing between two
  nodes is left out.
* **Forward calls only.** What the optimizer, the batch's preparation and clipping the gradients took is in
  the tables of `--extended`. Skyline's run ends where backward begins.
* **Frames** are those of the project in which a local variable `self` is an `nn.Module`, as Skyline has them.
  A call without any such frame, as a loss that the training loop computes, has all its frames of the project
  instead; Skyline leaves it out. A call without any frame of the project is left out here too.
* **Names** are those of the functions: `conv2d`, `add`, `rsub`. `a += b` is `add_` (Skyline: `iadd`). What
  is compiled or scripted is one row, such as `compiled:Net`, and a custom `autograd.Function` has its
  class's name; Skyline has no rows for any of these. `x[i]` is `getitem`, which Skyline leaves out.\
"""

_TIME_EXTENDED = """\
## The tables of `--extended`

* Ids count from 0, as everywhere in snapconv. What is missing is NULL, and every column explains its NULL;
  a column that does not is never NULL.
* They hold all timed iterations, all calls of them, and all their frames, not only what
  `run_time_entries` is about.\
"""

# (what it answers, the query); a test runs every one of them.
TIME_EXAMPLES = (
    (
        "Which lines of the project took longest? Also without `--extended`.",
        """\
SELECT file_path, line_number, count(*) AS n_calls,
       total(forward_ms) AS forward_ms, total(backward_ms) AS backward_ms
FROM run_time_entries
JOIN stack_frames ON entry_id = id
WHERE ordering = 0
GROUP BY file_path, line_number
ORDER BY total(forward_ms) + total(backward_ms) DESC;""",
    ),
    (
        "How much of the measured time do the rows account for?",
        """\
SELECT iteration, forward_rows_ms / forward_ms AS of_forward, backward_rows_ms / backward_ms AS of_backward
FROM snapconv_iterations;""",
    ),
    (
        "Which modules took longest in the reported iteration?",
        """\
SELECT module, count(*) AS n_calls, total(forward_ms) AS forward_ms, total(backward_ms) AS backward_ms
FROM snapconv_calls
WHERE iteration = (SELECT iteration FROM snapconv_report) AND phase IN ('forward', 'backward')
GROUP BY module
ORDER BY total(forward_ms) + total(backward_ms) DESC;""",
    ),
    (
        "How much does the time of an operation vary from one iteration to the next?",
        """\
SELECT operation, min(ms) AS least, max(ms) AS most
FROM (SELECT operation, iteration, total(forward_ms) + total(backward_ms) AS ms
      FROM snapconv_calls
      GROUP BY operation, iteration)
GROUP BY operation
ORDER BY most DESC;""",
    ),
    (
        "From where was the longest call made?",
        """\
SELECT frame.function, frame.file, frame.line
FROM snapconv_stack_frames
JOIN snapconv_frames AS frame ON frame.id = frame_id
WHERE stack_id = (SELECT stack_id FROM snapconv_calls ORDER BY forward_ms DESC LIMIT 1)
ORDER BY ordering;""",
    ),
)


def time_schema_page() -> str:
    """Write the page as Markdown."""
    return _schema_page(
        _TIME_INTRODUCTION,
        skyline=(_TIME_SKYLINE, TIME_TABLES),
        extended=(_TIME_EXTENDED, EXTENDED_TIME_TABLES),
        examples=TIME_EXAMPLES,
    )


# --- the ranks of a job

_RANKS_INTRODUCTION = """\
# What is in a database of ranks

Made by `scripts/make_docs.py` out of the program; a test fails when the two differ.

`snapconv ranks PATTERN… -o OUT.sqlite` writes one SQLite file about all files of a job. Sizes are in bytes,
ids count from 0, and what is missing is NULL.\
"""

RANKS_EXAMPLES = (
    (
        "Which ranks need most, and for what?",
        """\
SELECT rank, peak_bytes, category, block_bytes
FROM job_devices
JOIN job_files ON id = file_id
JOIN job_categories USING (file_id, device)
WHERE is_last
ORDER BY peak_bytes DESC, block_bytes DESC;""",
    ),
    (
        "How much does a line differ between ranks?",
        """\
SELECT file_path, line_number, category, count(*) AS n_ranks, min(block_bytes), max(block_bytes)
FROM job_lines
JOIN job_files ON id = file_id
WHERE is_last
GROUP BY file_path, line_number, category
ORDER BY max(block_bytes) - min(block_bytes) DESC;""",
    ),
    (
        "Which files could not be read?",
        """\
SELECT file, error FROM job_files WHERE error IS NOT NULL;""",
    ),
)


def ranks_schema_page() -> str:
    """Write the page as Markdown."""
    queries = (f"{question}\n\n```sql\n{query}\n```" for question, query in RANKS_EXAMPLES)
    tables = (_description(table, {}) for table in JOB_TABLES)
    sections = [_RANKS_INTRODUCTION, "## The tables", *tables, "## Questions and queries", *queries]
    return "\n\n".join(sections) + "\n"
