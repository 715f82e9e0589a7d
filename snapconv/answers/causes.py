"""The largest causes of live memory: its purpose, and its line or the library that made it."""

from dataclasses import dataclass, replace

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.peak import (
    EITHER_LABEL,
    WAITING_LABEL,
    is_either,
    likely_words,
    most_first,
    sums_by_name,
)
from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, rows_of
from snapconv.phases.trace_phases import Phase
from snapconv.stacks.project_lines import SourceLine
from snapconv.torch_knowledge.operation_catalog import UNNAMED
from snapconv.units import optional

N_CAUSES = 3
# Stand beside the codes of categories: for what is one of two, and for what waits for another
# stream.
_EITHER_CODE, _WAITING_CODE = -1, -2
_LABELS: dict[int, str] = {_EITHER_CODE: EITHER_LABEL, _WAITING_CODE: WAITING_LABEL}
_LABELS |= {category: category.label for category in Category}
_CODES = {label: code for code, label in _LABELS.items()}
# As in DeviceAnalysis.project_frame.
_LIBRARY_FRAME = -1


@dataclass(frozen=True, slots=True)
class Cause:
    """A part of the memory that the verdict is about, with its purpose and its line.

    ``category`` may be *gradient or optimizer state*. ``likely_bytes``: those of ``block_bytes``
    that are likely, and not certain. ``library``: of memory that library code allocated, what is
    known instead of a line, such as *backward of cross_entropy (train.py:43)*.
    """

    block_bytes: int
    n_allocations: int
    category: str
    line: SourceLine | None
    likely_bytes: int = 0
    has_stack: bool = True
    library: str = ""

    @property
    def purpose(self) -> str:
        """What it is for, and how much of it is likely."""
        likely = likely_words(self.block_bytes, self.likely_bytes)
        return f"{self.category}{optional(' ({})', likely)}"


def largest_causes(
    analysis: DeviceAnalysis,
    live: BoolColumn,
    *,
    waiting: BoolColumn | None = None,
    n_most: int = N_CAUSES,
) -> tuple[Cause, ...]:
    """Find the largest parts of the live and of the ``waiting`` memory, by category and line."""
    lines = analysis.lines
    frames = analysis.project_frame
    codes = np.where(
        is_either(analysis), np.int8(_EITHER_CODE), analysis.classification.category
    )
    if waiting is not None:
        codes = np.where(waiting, np.int8(_WAITING_CODE), codes)
        live = live | waiting

    def part(code: int, frame: int) -> tuple[str, SourceLine | None, bool]:
        return _LABELS[code], lines.of_frame(frame), frame >= _LIBRARY_FRAME

    causes = []
    sums = sums_by_name(analysis, live, part, codes, frames)
    for (category, line, has_stack), (n, _, n_bytes, n_likely) in sums.items():
        causes.append(Cause(n_bytes, n, category, line, n_likely, has_stack))
    largest = []
    for cause in most_first(causes, _cause_name)[:n_most]:
        if cause.has_stack and cause.line is None:
            is_cause = live & (frames == _LIBRARY_FRAME) & (codes == _CODES[cause.category])
            cause = replace(cause, library=_library_origin(analysis, is_cause))
        largest.append(cause)
    return tuple(largest)


def _cause_name(cause: Cause) -> str:
    return str((cause.category, cause.line, cause.has_stack))


def _library_origin(analysis: DeviceAnalysis, is_library: BoolColumn) -> str:
    """Name what allocated most of the memory of library code: an operation, or the backward of one.

    Empty where neither is known.
    """
    table = analysis.allocations
    rows = rows_of(is_library & analysis.features.is_traced)
    if not len(rows):
        return ""
    largest = rows[table.block_bytes[rows].argmax()]
    event = int(table.alloc_event[largest])
    if analysis.phases.phase[event] == Phase.BACKWARD:
        return _backward_origin(analysis, event)
    return _operation(analysis, largest)


def _backward_origin(analysis: DeviceAnalysis, event: int) -> str:
    """Name the backward that an event is in by the project's last operation before it.

    That is as a rule the loss. Autograd runs it in threads of its own, which have no line of the
    project.
    """
    table = analysis.allocations
    last_of_run = analysis.phases.run_last
    begin = np.searchsorted(last_of_run, last_of_run[event])
    is_earlier = analysis.features.is_traced & (table.alloc_event < begin)
    earlier = rows_of(is_earlier & (analysis.project_frame >= 0))
    if not len(earlier):
        return "backward"
    line = analysis.lines.innermost(int(table.stack_id[earlier[-1]]))
    operation = _operation(analysis, earlier[-1])
    return f"backward{optional(' of {}', operation)}{optional(' ({0.place})', line)}"


def _operation(analysis: DeviceAnalysis, row: int) -> str:
    """Return the operation that made an allocation; empty where it is not known."""
    operation = analysis.operations[int(analysis.operation_id[row])]
    return "" if operation == UNNAMED else operation
