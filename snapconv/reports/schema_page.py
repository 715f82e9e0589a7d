"""Tables as data -> docs/schema.md, the page that describes every column of a memory report."""

from collections.abc import Iterator

from snapconv.reports.extended_schema import EXTENDED_TABLES, EXTENDED_VIEWS
from snapconv.reports.schema import Table, View
from snapconv.reports.skyline_memory import TABLES

_INTRODUCTION = """\
# What is in a memory report

Made by `scripts/make_docs.py` out of the program; a test fails when the two differ.

A memory report is an SQLite file about one device. Its tables are those that `skyline memory` writes
(skyline-cli 0.5.0; DeepView.Profile 0.14.5 writes the same), so whatever reads those reads these. With
`--extended` the same file has more tables and views, whose names begin with `snapconv_`. Without it
there is nothing in the file that Skyline would not have put there.

All sizes are in bytes. The *requested* bytes are what the program asked for, the *block* bytes what
the allocator set aside for it; `torch.cuda.max_memory_allocated()` counts block bytes. The peak is the
first event after which the *allocated* bytes (the blocks in use) are at their maximum.\
"""

_SKYLINE = """\
## Skyline's tables

`PRAGMA user_version` is 1. Ids count from 1, `ordering` counts from 0.

What the rows mean, and where that is not what Skyline's own reports mean:

* **Weights** are those that are live at the peak, each with its gradient in the iteration that holds
  the peak. Skyline lists the parameters that are alive at the end of its run. Their sizes are
  requested bytes, as Skyline's are; all other sizes of Skyline's tables are block bytes.
* **Activations** are those of the iteration that holds the peak, at that iteration's activation
  high-water mark: one row per allocation, named by the operation that *allocated* it. Skyline
  charges memory to the operation whose autograd node, dropped last, kept it alive, so compare sums
  with it, not single rows.
* **`peak_usage_bytes`** is what `torch.cuda.max_memory_allocated()` would have said.
* **Frames** are all frames of the project, innermost first. Skyline keeps only those in which a local
  variable `self` is an `nn.Module`. They say where the memory was allocated; Skyline's frames of a
  weight say where the parameter was registered.
* **Rows without a frame of the project** stay, and have no frames, since the sums would be wrong
  without them. Skyline drops such activations. Skyline's queries join the frames with a LEFT JOIN, so
  they show such a row with NULL for its file and its line.\
"""

_EXTENDED = """\
## The tables of `--extended`

* Ids count from 0, as everywhere in snapconv. An *event* is a position in the device's trace
  (`device_traces[device]` of the snapshot), and what is counted at an event is counted after it.
* What is missing is NULL, never -1, and every column says what its NULL means; a column that does
  not is never NULL.
* An allocation is *in use* from its `alloc_event` until its `free_requested_event`, or its `end_event`
  where no request is known; this is what allocated bytes count. Until its `end_event` its block is
  still *active*.
* Addresses are signed, because SQLite's integers are: from 2^63 on they are negative. In SQL
  `printf('0x%x', addr)` prints them as CUDA would, in Python `hex(addr & (1 << 64) - 1)` does.
* Text that SQLite cannot hold is written in Python's escapes: a lone surrogate as `\\udc80`, the
  character NUL as `\\x00`. This holds for Skyline's tables too.\
"""

# (what it answers, the query); a test runs every one of them.
EXAMPLES = (
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
        "What was allocated in one iteration and is still there in the next: a leak?",
        """\
SELECT allocation.iteration, allocation.category, count(*) AS n_allocations,
       sum(allocation.block_bytes) AS block_bytes
FROM snapconv_allocations_in_words AS allocation
JOIN snapconv_iterations AS iteration USING (iteration)
WHERE allocation.end_event IS NULL OR allocation.end_event > iteration.last_event
GROUP BY allocation.iteration, allocation.category
ORDER BY allocation.iteration, block_bytes DESC;""",
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


def schema_page() -> str:
    """Write the page as Markdown."""
    return "\n\n".join(_sections()) + "\n"


def _sections() -> Iterator[str]:
    yield _INTRODUCTION
    yield _SKYLINE
    yield from map(_description, TABLES)
    yield _EXTENDED
    yield from map(_description, EXTENDED_TABLES)
    yield "## The views of `--extended`"
    yield from map(_description, EXTENDED_VIEWS)
    yield "## Questions and queries"
    for question, query in EXAMPLES:
        yield f"{question}\n\n```sql\n{query}\n```"


def _description(item: Table | View) -> str:
    """Describe a table or a view, a line per column."""
    lines = [f"### `{item.name}`", "", item.meaning]
    if item.columns:
        lines += ["", "| column | type | unit | meaning | NULL means |", "|---|---|---|---|---|"]
    for column in item.columns:
        sql_type = column.sql_type.split()[0]
        cells = (f"`{column.name}`", sql_type, column.unit, column.meaning, column.null or "")
        lines.append(f"| {' | '.join(cells)} |")
    if isinstance(item, View) and item.continued_by:
        lines += ["", f"Then come the columns of `{item.continued_by.name}`."]
    return "\n".join(lines)
