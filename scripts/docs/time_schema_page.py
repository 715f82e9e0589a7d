"""Tables as data -> docs/reference/time-schema.md: every column of a run time report."""

from scripts.docs.schema_page import schema_page
from snapconv.writers.sqlite.extended_time_schema import EXTENDED_TIME_TABLES, EXTENDED_TIME_VIEWS
from snapconv.writers.sqlite.skyline_time import TIME_TABLES

_INTRODUCTION = """\
# What is in a run time report

Made by `scripts/make_docs.py` out of the program; a test fails when the two differ.

A run time report is an SQLite file about one device, made from the `timing.json` of a capture. Its tables
are those that `skyline time` writes (skyline-cli 0.5.0; DeepView.Profile 0.14.5 writes the same), so
whatever reads those reads these. With `--extended` the same file has more tables and a view, whose names
begin with `snapconv_`. It is another file than the memory report's: both have a table `stack_frames`, with
other columns.

All times are in milliseconds. How they are measured, and where they mislead:
[timing.md](../design/timing.md).\
"""

_SKYLINE = """\
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

_EXTENDED = """\
## The tables of `--extended`

* Ids count from 0, as everywhere in snapconv. What is missing is NULL, and every column explains its NULL
  means; a column that does not is never NULL.
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
SELECT module, n_calls, forward_ms, backward_ms
FROM snapconv_module_times
WHERE iteration = (SELECT iteration FROM snapconv_report)
ORDER BY forward_ms + backward_ms DESC;""",
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
    return schema_page(
        _INTRODUCTION,
        skyline=(_SKYLINE, TIME_TABLES),
        extended=(_EXTENDED, EXTENDED_TIME_TABLES),
        views=EXTENDED_TIME_VIEWS,
        examples=TIME_EXAMPLES,
        values={},
    )
