"""Everything that a detector looks at, and the form of its result."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.calls import LineCalls
from snapconv.answers.advice.changes import Change, Demand, Peak
from snapconv.columns import BoolColumn, Int64Column, sums_by
from snapconv.stacks.project_lines import ProjectLines, SourceLine

# Of the peak: less than this is not worth a change of the program.
LEAST_SHARE = 0.01


class Sort(str, Enum):
    """The two sorts of findings; the values stand in every output."""

    FAULT = "fault"
    TRADE = "trade"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One device at one moment, where a detector looks for memory that need not be there.

    ``goal_bytes``: the peak to reach, None where there is no such goal.

    ``goal_bytes``: what the user wants to save, 0 where faults alone are wanted.
    """

    analysis: DeviceAnalysis
    demand: Demand
    moment: Peak
    calls: LineCalls
    lines: ProjectLines
    goal_bytes: int | None = None

    @property
    def live(self) -> BoolColumn:
        """The allocations in use at the moment."""
        return self.analysis.allocations.live_at(self.moment.event)

    @property
    def least_bytes(self) -> int:
        """The fewest bytes that are worth a finding."""
        return max(int(self.moment.n_bytes * LEAST_SHARE), 1)

    def bytes_of(self, rows: Int64Column) -> int:
        """Return the sum of allocations."""
        return int(self.analysis.allocations.block_bytes[rows].sum())

    def main_line(self, rows: Int64Column) -> SourceLine | None:
        """Return the line of the project that made most bytes of some allocations."""
        table = self.analysis.allocations
        stacks, group = np.unique(table.stack_id[rows], return_inverse=True)
        sums = sums_by(group.reshape(-1), table.block_bytes[rows], len(stacks))
        of_line: dict[SourceLine, int] = {}
        for stack, n_bytes in zip(stacks.tolist(), sums.tolist(), strict=True):
            if line := self.lines.innermost(stack):
                of_line[line] = of_line.get(line, 0) + n_bytes
        return max(of_line, key=lambda line: (of_line[line], line), default=None)


@dataclass(frozen=True, slots=True)
class Detected:
    """Memory that need not be there: what would be missing, the line that made it, the line to change.

    ``values`` fill the sentences of the kind.
    """

    change: Change
    line: SourceLine | None
    where: SourceLine | None
    is_certain: bool
    values: dict[str, str]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding: its sentences, and the detector that finds it.

    ``estimated`` says why its bytes are an estimate; empty where the replay is exact.
    """

    slug: str
    sort: Sort
    what: str
    how: tuple[str, ...]
    costs: str
    wrong_if: str
    detect: Callable[[Evidence], Iterator[Detected]]
    estimated: str = ""
    is_cheap: bool = False
