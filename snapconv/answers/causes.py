"""The largest causes of live memory: its purpose, and its line or the library that made it."""

from collections import Counter
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
from snapconv.columns import BoolColumn, Int64Column, rows_of
from snapconv.phases.trace_phases import Phase
from snapconv.stacks.project_lines import SourceLine
from snapconv.stacks.stack_facts import dispatched_in, name_of_node
from snapconv.torch_knowledge.operation_catalog import ALWAYS_ALLOCATE, UNNAMED
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
# Nodes are named until they allocated this share of a cause, and so many at most.
_NAMED, _N_NODES = 0.995, 2


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
    nodes = _nodes(analysis, rows)
    is_backward = analysis.phases.phase[table.alloc_event[rows]] == Phase.BACKWARD
    is_backward |= np.array([node != UNNAMED for node in nodes])
    sizes = table.block_bytes[rows]
    if 2 * sizes[is_backward].sum() > sizes.sum():
        return _backward_origin(analysis, rows, nodes)
    return _operation(analysis, rows[np.where(is_backward, 0, sizes).argmax()])


def _nodes(analysis: DeviceAnalysis, rows: Int64Column) -> list[str]:
    """Return the operation of the backward node that allocated each row, or UNNAMED."""
    stack_ids, inverse = np.unique(analysis.allocations.stack_id[rows], return_inverse=True)
    names = [name_of_node(analysis.snapshot.stacks, stack) for stack in stack_ids.tolist()]
    return [names[number] for number in inverse.tolist()]


def _backward_origin(analysis: DeviceAnalysis, rows: Int64Column, nodes: list[str]) -> str:
    """Name a backward by the nodes that allocated most of it, and by their line in the forward.

    Autograd runs backward in threads of its own, which have no line of the project. The
    project's last operation may be another than the one that is differentiated: nodes show which.
    """
    table = analysis.allocations
    bytes_by_node: Counter[str] = Counter()
    for node, n_bytes in zip(nodes, table.block_bytes[rows].tolist(), strict=True):
        bytes_by_node[node] += n_bytes
    largest: list[str] = []
    for node, _ in bytes_by_node.most_common():
        if sum(bytes_by_node[name] for name in largest) < _NAMED * bytes_by_node.total():
            largest.append(node)
    if largest[0] == UNNAMED:
        return "backward (line not known)"
    if ALWAYS_ALLOCATE.issuperset(largest):
        first_event = int(table.alloc_event[rows].min())
        origin = _forward_origin(analysis, largest, first_event)
        if origin:
            return f"backward of {origin}"
    shown = [node for node in largest if node != UNNAMED][:_N_NODES]
    n_more = len(largest) - len(shown)
    return f"backward of {' and '.join(shown)}{f' and {n_more} more' if n_more else ''}"


def _forward_origin(analysis: DeviceAnalysis, nodes: list[str], end_event: int) -> str:
    """Name the line whose forward made all these nodes; empty if that may be another one.

    It is the only one before that ran their operations.
    """
    table = analysis.allocations
    is_forward = analysis.features.is_traced & (table.alloc_event < end_event)
    is_forward &= analysis.phases.phase[table.alloc_event] != Phase.BACKWARD
    rows = rows_of(is_forward)
    stack_ids, firsts = np.unique(table.stack_id[rows], return_index=True)
    stacks = analysis.snapshot.stacks
    origins, unseen = set(), set(nodes)
    for stack, row in zip(stack_ids.tolist(), rows[firsts].tolist(), strict=True):
        operations = dispatched_in(stacks, stack).intersection(nodes)
        if operations and name_of_node(stacks, stack) == UNNAMED:
            unseen -= operations
            origins.add((analysis.lines.innermost(stack), _operation(analysis, row)))
    if unseen or len(origins) != 1:
        return ""
    line, operation = origins.pop()
    return f"{operation} ({line.place})" if line and operation else ""


def _operation(analysis: DeviceAnalysis, row: int) -> str:
    """Return the operation that made an allocation; empty where it is not known."""
    operation = analysis.operations[int(analysis.operation_id[row])]
    return "" if operation == UNNAMED else operation
