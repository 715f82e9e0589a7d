"""Memory that was allocated in the trace and never freed, by line: what shows a leak without iterations.

A server has no steps of an optimizer. What leaks there leaves memory behind in nearly every part of the
trace; weights do so in the first parts only, and what is in use just now in the last.
"""

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category
from snapconv.columns import is_among
from snapconv.stacks.project_lines import ProjectLines, SourceLine, line_values

# The trace is looked at in parts; what leaves memory behind in most of them, up to the last, keeps growing.
N_PARTS, _MOST_PARTS = 8, 6
# What a program makes once and keeps, however long that takes.
_USUALLY_KEPT = (Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.WORKSPACE)


class Trend(str, Enum):
    """When a line left memory behind; the values stand in every output."""

    GROWS = "kept growing"
    KEPT = "usually kept"
    STOPPED = "stopped growing"
    RECENT = "recent"


@dataclass(frozen=True, slots=True)
class UnfreedLine:
    """The memory that one line allocated in the trace and never freed; None: library code, or no stack."""

    line: SourceLine | None
    has_stack: bool
    n_allocations: int
    block_bytes: int
    first_event: int
    last_event: int
    trend: Trend

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return line_values(self.line) | {
            "n_allocations": self.n_allocations,
            "block_bytes": self.block_bytes,
            "first_event": self.first_event,
            "last_event": self.last_event,
            "trend": self.trend.value,
        }


def unfreed_lines(analysis: DeviceAnalysis) -> tuple[UnfreedLine, ...]:
    """Sum up what was allocated in the trace and is live at its end, by line; most bytes first."""
    table, n_events = analysis.allocations, len(analysis.device.events)
    rows = np.flatnonzero((table.alloc_event >= 0) & (table.freed_event < 0))
    lines = ProjectLines(analysis.snapshot.stacks, analysis.project)
    is_kept = is_among(analysis.classification.category[rows], _USUALLY_KEPT)
    of_line: dict[tuple[SourceLine | None, bool, bool], list[int]] = defaultdict(list)
    columns = (rows.tolist(), table.stack_id[rows].tolist(), is_kept.tolist())
    for row, stack, kept in zip(*columns, strict=True):
        of_line[lines.innermost(stack), lines.has_frames(stack), kept].append(row)
    found = []
    for (line, has_stack, kept), mine in of_line.items():
        events = table.alloc_event[mine]
        found.append(
            UnfreedLine(
                line=line,
                has_stack=has_stack,
                n_allocations=len(mine),
                block_bytes=int(table.block_bytes[mine].sum()),
                first_event=int(events.min()),
                last_event=int(events.max()),
                trend=Trend.KEPT
                if kept
                else _trend(set((events.astype(np.int64) * N_PARTS // n_events).tolist())),
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.block_bytes, str(one.line))))


def _trend(parts: set[int]) -> Trend:
    """Decide by the parts of the trace in which a line left memory behind."""
    last = N_PARTS - 1
    if parts == {last}:
        return Trend.RECENT
    return Trend.GROWS if last in parts and len(parts) >= _MOST_PARTS else Trend.STOPPED
