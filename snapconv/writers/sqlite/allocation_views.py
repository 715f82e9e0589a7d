"""The views that ``--extended`` adds to a memory report: allocations and stacks in words, with their SQL."""

from snapconv.answers.memory_report import PEAK_ALLOCATED
from snapconv.writers.sqlite.extended_memory import IS_EXACT, LIFE, NO_MODULE, NOT_IN_TRACE, US, bytes_column
from snapconv.writers.sqlite.shared_tables import (
    FRAME_FILE,
    FRAME_FUNCTION,
    FRAME_LINE,
    IS_PROJECT,
    ORDERING,
)
from snapconv.writers.sqlite.tables import Column, View

# LEFT JOIN also where a partner is certain: it keeps the allocations as the outer loop, so that
# millions of them are scanned once and the rest is looked up by rowid.
ALLOCATIONS_IN_WORDS = View(
    "snapconv_allocations_in_words",
    "Every allocation, with words instead of ids.",
    (
        Column("id", "INTEGER", "row of `snapconv_allocations`"),
        Column("category", "TEXT", "what it was for"),
        Column("certainty", "TEXT", "how sure that is: `recorded`, `certain`, `likely` or `unknown`"),
        Column("probability", "REAL", "how probable it is", null="it is unknown"),
        Column("evidence", "TEXT", "how that is known"),
        Column("rule", "TEXT", "the rule that decided it; `none`: no rule did"),
        Column("operation", "TEXT", "the operation that allocated it; `unknown`: not known"),
        bytes_column("requested_bytes", "the size that the program requested"),
        bytes_column("block_bytes", "what the allocator set aside"),
        Column("is_exact", "INTEGER", IS_EXACT),
        Column("stream", "INTEGER", "handle of the CUDA stream"),
        Column("pool", "TEXT", "the memory pool, as in `snapconv_pools`", null="not in the snapshot"),
        Column("address", "TEXT", "address in hexadecimal, unsigned"),
        *LIFE,
        Column("alloc_time_us", "INTEGER", "when it was allocated", US, null="not known"),
        Column("iteration", "INTEGER", "training step that allocated it", null=NOT_IN_TRACE),
        Column("phase", "TEXT", "part of the step that allocated it", null=NOT_IN_TRACE),
        Column("module", "TEXT", "the module that it is of, as in `snapconv_modules`", null=NO_MODULE),
        Column("stack_id", "INTEGER", "row of `snapconv_stacks`", null="no stack was recorded"),
        Column(
            "function",
            "TEXT",
            "function of the innermost frame of the project",
            null="there is no such frame",
        ),
        Column("file", "TEXT", "file of that frame, as recorded", null="there is no such frame"),
        Column(
            "line", "INTEGER", "line of that frame", null="there is no such frame, or its line is not known"
        ),
    ),
    """\
CREATE VIEW snapconv_allocations_in_words AS
SELECT allocation.id, category.name AS category, certainty.name AS certainty,
       allocation.probability, evidence.name AS evidence, rule.name AS rule, operation.name AS operation,
       allocation.requested_bytes, allocation.block_bytes, allocation.is_exact,
       allocation.stream, pool.name AS pool, printf('0x%x', allocation.addr) AS address,
       allocation.alloc_event, allocation.free_requested_event, allocation.free_completed_event,
       allocation.end_event, timeline.time_us AS alloc_time_us, allocation.iteration, phase.name AS phase,
       module.name AS module, allocation.stack_id, frame.function, frame.file, frame.line
FROM snapconv_allocations AS allocation
LEFT JOIN snapconv_categories AS category ON category.id = allocation.category_id
LEFT JOIN snapconv_certainties AS certainty ON certainty.id = allocation.certainty_id
LEFT JOIN snapconv_evidence AS evidence ON evidence.id = allocation.evidence_id
LEFT JOIN snapconv_rules AS rule ON rule.id = allocation.rule_id
LEFT JOIN snapconv_operations AS operation ON operation.id = allocation.operation_id
LEFT JOIN snapconv_pools AS pool ON pool.id = allocation.pool_id
LEFT JOIN snapconv_phases AS phase ON phase.id = allocation.phase_id
LEFT JOIN snapconv_modules AS module ON module.id = allocation.module_id
LEFT JOIN snapconv_timeline AS timeline ON timeline.event = allocation.alloc_event
LEFT JOIN snapconv_stacks AS stack ON stack.id = allocation.stack_id
LEFT JOIN snapconv_frames AS frame ON frame.id = stack.project_frame_id""",
)

# As the timeline counts allocated bytes: until the request to free, or the end where no request is known.
LIVE_ALLOCATIONS = View(
    "snapconv_live_allocations",
    "For every moment, the allocations that were in use after its event. Select one: `WHERE moment = '…'`.",
    (Column("moment", "TEXT", "name of the moment, as in `snapconv_moments`"),),
    """\
CREATE VIEW snapconv_live_allocations AS
SELECT moment.name AS moment, allocation.*
FROM snapconv_moments AS moment
JOIN snapconv_allocations_in_words AS allocation
  ON coalesce(allocation.alloc_event, -1) <= coalesce(moment.event, -1)
 AND coalesce(allocation.free_requested_event, allocation.end_event, 9223372036854775807)
     > coalesce(moment.event, -1)""",
    continued_by=ALLOCATIONS_IN_WORDS,
)

PEAK_ALLOCATIONS = View(
    "snapconv_peak_allocations",
    "The allocations in use at the peak of allocated bytes, largest first.",
    (),
    f"""\
CREATE VIEW snapconv_peak_allocations AS
SELECT {", ".join(column.name for column in ALLOCATIONS_IN_WORDS.columns)}
FROM snapconv_live_allocations
WHERE moment = '{PEAK_ALLOCATED}'
ORDER BY block_bytes DESC, id""",
    continued_by=ALLOCATIONS_IN_WORDS,
)

STACK_LINES = View(
    "snapconv_stack_lines",
    "The frames of every stack in words. Select one: `WHERE stack_id = … ORDER BY ordering`.",
    (
        Column("stack_id", "INTEGER", "row of `snapconv_stacks`"),
        ORDERING,
        FRAME_FUNCTION,
        FRAME_FILE,
        FRAME_LINE,
        IS_PROJECT,
    ),
    """\
CREATE VIEW snapconv_stack_lines AS
SELECT stack_frame.stack_id, stack_frame.ordering, frame.function, frame.file, frame.line, frame.is_project
FROM snapconv_stack_frames AS stack_frame
LEFT JOIN snapconv_frames AS frame ON frame.id = stack_frame.frame_id""",
)

EXTENDED_VIEWS: tuple[View, ...] = (ALLOCATIONS_IN_WORDS, LIVE_ALLOCATIONS, PEAK_ALLOCATIONS, STACK_LINES)
