"""From a memory report to the lines that grow: what ``snapconv growth`` shows of one device."""

from collections.abc import Iterator
from dataclasses import dataclass

from snapconv.answers.growth import Confidence, Fate
from snapconv.answers.memory_report import GrowthRow, MemoryReport
from snapconv.stacks.project_lines import SourceLine

_BY_CONFIDENCE = [confidence.value for confidence in Confidence]


@dataclass(frozen=True, slots=True)
class GrowthLine:
    """What one line holds more from iteration to iteration; ``frames`` are its callers too, innermost first.

    ``frames`` are empty for what no line of the project made. The words and figures are those of GrowthRow.
    """

    frames: tuple[SourceLine, ...]
    fate: str
    confidence: str
    first_iteration: int
    last_iteration: int
    n_iterations: int
    n_allocations: int
    block_bytes: int
    bytes_per_iteration: int


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """One device: the bytes allocated when each iteration ended, and the lines that grow.

    ``unknown`` says why growth cannot be seen in the file, and is empty where it can.
    """

    device: int
    end_bytes: tuple[int, ...]
    lines: tuple[GrowthLine, ...]
    unknown: str

    @property
    def growing(self) -> tuple[GrowthLine, ...]:
        """The lines that grow up to the end of the trace."""
        return tuple(line for line in self.lines if line.fate != Fate.FREED_LATE.value)

    @property
    def freed_late(self) -> tuple[GrowthLine, ...]:
        """The lines that hold memory of several iterations, and free it at once."""
        return tuple(line for line in self.lines if line.fate == Fate.FREED_LATE.value)

    @property
    def bytes_per_iteration(self) -> int:
        """What an iteration adds for good."""
        return sum(line.bytes_per_iteration for line in self.growing)


def build_growth(report: MemoryReport) -> GrowthReport:
    """Put together what grows, line by line."""
    allocated = report.timeline.allocated.after
    ends = tuple(int(allocated[row.last_event]) for row in report.iterations if row.last_event >= 0)
    return GrowthReport(report.device, ends, tuple(_lines(report)), report.growth_unknown)


def _lines(report: MemoryReport) -> Iterator[GrowthLine]:
    """Sum up the stacks of one innermost line and one fate; those that go on first, most bytes first."""
    by_line: dict[tuple[SourceLine | None, str], list[GrowthRow]] = {}
    for row in report.growth:
        by_line.setdefault((row.line, row.fate), []).append(row)
    lines = [_together(rows) for rows in by_line.values()]
    yield from sorted(
        lines, key=lambda one: (one.fate == Fate.FREED_LATE.value, -one.block_bytes, one.frames)
    )


def _together(rows: list[GrowthRow]) -> GrowthLine:
    return GrowthLine(
        frames=rows[0].frames,
        fate=rows[0].fate,
        confidence=max((row.confidence for row in rows), key=_BY_CONFIDENCE.index),
        first_iteration=min(row.first_iteration for row in rows),
        last_iteration=max(row.last_iteration for row in rows),
        n_iterations=max(row.n_iterations for row in rows),
        n_allocations=sum(row.n_allocations for row in rows),
        block_bytes=sum(row.block_bytes for row in rows),
        bytes_per_iteration=sum(row.bytes_per_iteration for row in rows),
    )
