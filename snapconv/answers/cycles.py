"""Memory in reference cycles, freed when Python's collector runs.

It was allocated in several steps, and goes in one burst.
Python frees a tensor with its last name; what objects in a cycle hold waits for the collector,
which runs wherever a program makes objects. So blocks of several steps go in one burst, each time
at another place, also within backward. A list that is cleared, the outputs of an epoch and a cache
that is full go where the program drops them: at the same place each time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.features import at
from snapconv.columns import (
    Int64Column,
    distinct,
    grouped,
    has_code,
    is_among,
    rows_of,
    sums_by,
)
from snapconv.json_text import picked
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.event_table import Action
from snapconv.stacks.project_lines import SourceLine, line_values
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.units import counted, format_bytes

# Places at which the collector ran: a program may clear a list at two lines of its own. The engine
# and the optimizer clear none, so with one of them a place less is enough.
_LEAST_PLACES = 3


@dataclass(frozen=True, slots=True)
class Garbage:
    """The allocations that outlived their step in cycles, and the event that ends the step of each.

    ``line`` made most of them. ``most_bytes``: those of earlier steps in use together.
    ``n_collections``: the bursts that freed several steps. ``is_certain``: the collector is on the
    stack of a burst.
    """

    rows: Int64Column
    ends: Int64Column
    line: SourceLine | None
    most_bytes: int
    n_collections: int
    is_certain: bool

    @property
    def sentence(self) -> str:
        """Say what stays, and until when."""
        line = self.line.place if self.line else "library code"
        size = format_bytes(self.most_bytes)
        runs = counted(self.n_collections, "time")
        return (
            f"up to {size} of earlier steps stays in reference cycles until Python's garbage "
            f"collector runs ({runs} in this trace; {self.certainty}); {line} made most of it"
        )

    @property
    def certainty(self) -> str:
        """The certainty in the words of every answer."""
        return "certain" if self.is_certain else "likely"

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return line_values(self.line) | picked(
            self, ("most_bytes", "n_collections", "certainty")
        )


def find_garbage(analysis: DeviceAnalysis) -> Garbage | None:
    """Find the stacks whose memory of several steps only the collector frees; None for none."""
    table = analysis.allocations
    features = analysis.features
    steps = _steps(analysis)
    if not analysis.phases.free_sites_known or not len(steps):
        return None
    alloc_step = at(steps, table.alloc_event, -1)
    free_step = at(steps, table.freed_event, int(steps[-1]) + 1)
    outlives = ~features.has_no_frames & (alloc_step >= 0) & (free_step > alloc_step)
    # A burst is of frees without an allocation between them.
    is_alloc = has_code(analysis.device.events.action, Action.ALLOC)
    burst = at(np.cumsum(is_alloc), table.freed_event)
    collected = _collected(
        analysis, rows_of(outlives & features.is_freed), alloc_step, burst
    )
    if not len(collected):
        return None
    rows = rows_of(outlives & is_among(table.stack_id, table.stack_id[collected]))
    ends = np.searchsorted(steps, alloc_step[rows], side="right")
    is_certain = features.freed_through(Role.COLLECTOR)[collected].any()
    return Garbage(
        rows,
        ends,
        analysis.main_line(rows),
        most_bytes=_most_bytes(table.block_bytes[rows], ends, features.end[rows]),
        n_collections=len(distinct(burst[collected])),
        is_certain=bool(is_certain),
    )


def _most_bytes(n_bytes: Int64Column, starts: NDArray[Any], ends: NDArray[Any]) -> int:
    """Return the greatest sum of bytes that count from an event until another."""
    n_events = int(max(starts.max(), ends.max())) + 1
    change = sums_by(starts, n_bytes, n_events) - sums_by(ends, n_bytes, n_events)
    return int(change.cumsum().max())


def _collected(
    analysis: DeviceAnalysis,
    rows: Int64Column,
    alloc_step: NDArray[Any],
    burst: NDArray[Any],
) -> Int64Column:
    """Return one allocation of each stack and burst of several steps that the collector freed.

    It is on a stack, or the places of the stack's bursts differ.
    """
    features = analysis.features
    stack = analysis.allocations.stack_id.astype(np.int64)
    free_line = features.lines_of(analysis.allocations.free_stack_id)
    is_torch = features.freed_through(Role.OPTIMIZER) | features.freed_through(
        Role.ZERO_GRAD
    )
    is_torch |= features.is_freed_by_engine
    # What the free site counts for, in places.
    n_extra = np.where(features.freed_through(Role.COLLECTOR), _LEAST_PLACES, is_torch)
    n_bursts = int(burst.max(initial=0)) + 1
    first_rows = []
    for burst_rows in grouped(rows, stack * n_bursts + burst, min_rows=2):
        if alloc_step[burst_rows[0]] < alloc_step[burst_rows[-1]]:
            first_rows.append(burst_rows[0])
    collected = [rows[:0]]
    for stack_rows in grouped(np.array(first_rows, np.int64), stack):
        n_places = len(distinct(free_line[stack_rows])) + n_extra[stack_rows].max()
        if n_places >= _LEAST_PLACES:
            collected.append(stack_rows)
    return np.concatenate(collected)


def _steps(analysis: DeviceAnalysis) -> Int64Column:
    """Return the step of each event: its iteration, or else the number of forwards begun before."""
    phases = analysis.phases
    if phases.n_iterations > 1:
        return phases.iteration.astype(np.int64)
    is_forward = has_code(phases.phase, Phase.FORWARD)
    return np.cumsum(is_forward & np.diff(is_forward, prepend=False))
