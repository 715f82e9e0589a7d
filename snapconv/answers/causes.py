"""The largest causes of live memory: what it is for, and its line, or what is known instead of a line."""

from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.peak import EITHER_LABEL, WAITING_LABEL, Sum, is_either, likely_words, sums_by_name
from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, Int64Column, rows_of, run_starts
from snapconv.phases.trace_phases import Phase
from snapconv.stacks.project_lines import SourceLine

N_CAUSES = 3
# Stand beside the codes of categories: for what is one of two, and for what waits for another stream.
_EITHER_CODE, _WAITING_CODE = -1, -2
_LABELS = {_EITHER_CODE: EITHER_LABEL, _WAITING_CODE: WAITING_LABEL}
# As in StackFacts.project_frame: a stack of library code only; -2 is no stack.
_LIBRARY_FRAME = -1


@dataclass(frozen=True, slots=True)
class Cause:
    """A part of the memory that the verdict is about: what it is for, and the line that allocated it.

    ``category`` may be *gradient or optimizer state*. ``likely_bytes``: those of ``block_bytes`` that are
    likely, and not certain. ``library``: of memory that library code allocated, what is known instead of a
    line, such as *backward of cross_entropy (train.py:43)*.
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
        return f"{self.category} ({likely})" if likely else self.category


def largest_causes(
    analysis: DeviceAnalysis,
    live: BoolColumn,
    *,
    waiting: BoolColumn | None = None,
    n_most: int = N_CAUSES,
) -> tuple[Cause, ...]:
    """Find the largest parts of the live memory, and of what is ``waiting``, by category and line."""
    lines, frame = analysis.lines, np.take(analysis.facts.project_frame, analysis.allocations.stack_id)

    def named(code: int, frame: int) -> tuple[str, SourceLine | None, bool]:
        label = _LABELS[code] if code in _LABELS else Category(code).label
        # As in StackFacts.project_frame, -1 is a stack of library code only, -2 no stack.
        return label, lines.of_frame(frame) if frame >= 0 else None, frame >= -1

    code = np.where(is_either(analysis), np.int8(_EITHER_CODE), analysis.classification.category)
    if waiting is not None:
        code, live = np.where(waiting, np.int8(_WAITING_CODE), code), live | waiting
    sums = sums_by_name(analysis, live, named, code, frame)
    most = sorted((total.block_bytes for total in sums.values()), reverse=True)[:n_most]
    shown = [item for item in sums.items() if item[1].block_bytes >= most[-1]]
    largest = sorted(shown, key=_by_size)[:n_most]
    causes = []
    for (category, line, has_stack), total in largest:
        library = ""
        if line is None and has_stack:
            rows = rows_of(live & (frame == _LIBRARY_FRAME) & (code == _code_of(category)))
            library = _library_origin(analysis, rows)
        figures = (total.block_bytes, total.n_allocations, category, line, total.likely_bytes)
        causes.append(Cause(*figures, has_stack, library))
    return tuple(causes)


def _by_size(item: tuple[object, Sum]) -> tuple[int, str]:
    return -item[1].block_bytes, str(item[0])


def _code_of(label: str) -> int:
    special = [code for code, name in _LABELS.items() if name == label]
    return special[0] if special else next(int(one) for one in Category if one.label == label)


def _library_origin(analysis: DeviceAnalysis, rows: Int64Column) -> str:
    """Name what allocated most of the memory of library code: an operation, or the backward of one.

    A backward pass runs in threads of autograd's own, which have no line of the project: it is named by the
    last operation of the project before it, as a rule the loss. Empty where neither is known.
    """
    table = analysis.allocations
    rows = rows[table.alloc_event[rows] >= 0]
    if not len(rows):
        return ""
    largest = rows[table.block_bytes[rows].argmax()]
    event = int(table.alloc_event[largest])
    if Phase(int(analysis.phases.phase[event])) is Phase.BACKWARD:
        return _backward_origin(analysis, event)
    operation = analysis.operations[int(analysis.operation_id[largest])]
    return "" if operation in ("", "unknown") else operation


def _backward_origin(analysis: DeviceAnalysis, event: int) -> str:
    table, starts = analysis.allocations, run_starts(analysis.phases.phase)
    start = int(starts[np.searchsorted(starts, event, side="right") - 1])
    frame = np.take(analysis.facts.project_frame, table.stack_id)
    earlier = rows_of((table.alloc_event >= 0) & (table.alloc_event < start) & (frame >= 0))
    if not len(earlier):
        return "backward"
    last = earlier[table.alloc_event[earlier].argmax()]
    line = analysis.lines.of_frame(int(frame[last]))
    operation = analysis.operations[int(analysis.operation_id[last])]
    name = "" if operation in ("", "unknown") else f" of {operation}"
    return f"backward{name}{f' ({line.place})' if line else ''}"
