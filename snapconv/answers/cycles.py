"""Memory in reference cycles: made in several steps, and freed together when Python's collector runs.

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
from snapconv.columns import Int64Column, distinct, grouped, has_code, is_among, rows_of, sums_by
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
        place = self.line.place if self.line else "library code"
        size = format_bytes(self.most_bytes)
        runs = counted(self.n_collections, "time")
        return (
            f"up to {size} of earlier steps stays in reference cycles until Python's garbage "
            f"collector runs "
            f"({runs} in this trace; {self.certainty}); {place} made most of it"
        )

    @property
    def certainty(self) -> str:
        """The certainty in the words of every answer."""
        return "certain" if self.is_certain else "likely"

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return line_values(self.line) | picked(self, ("most_bytes", "n_collections", "certainty"))


def find_garbage(analysis: DeviceAnalysis) -> Garbage | None:
    """Find the stacks whose memory of several steps nothing but the collector frees so; None for none."""
    table = analysis.allocations
    features = analysis.features
    steps = _steps(analysis)
    if not analysis.phases.free_sites_known or not len(steps):
        return None
    made = at(steps, table.alloc_event, -1)
    freed = at(steps, table.freed_event, int(steps[-1]) + 1)
    outlives = ~features.has_no_frames & (made >= 0) & (freed > made)
    # A burst is of frees without an allocation between them.
    burst = at(np.cumsum(has_code(analysis.device.events.action, Action.ALLOC)), table.freed_event)
    collected = _collected(analysis, rows_of(outlives & features.is_freed), made, burst)
    if not len(collected):
        return None
    rows = rows_of(outlives & is_among(table.stack_id, table.stack_id[collected]))
    ends = np.searchsorted(steps, made[rows], side="right")
    n_bytes = table.block_bytes[rows]
    n = len(steps) + 1
    change = sums_by(ends, n_bytes, n) - sums_by(features.end[rows], n_bytes, n)
    return Garbage(
        rows,
        ends,
        analysis.main_line(rows),
        most_bytes=int(change.cumsum().max()),
        n_collections=len(distinct(burst[collected])),
        is_certain=bool(features.freed_through(Role.COLLECTOR)[collected].any()),
    )


def _collected(
    analysis: DeviceAnalysis, rows: Int64Column, made: NDArray[Any], burst: NDArray[Any]
) -> Int64Column:
    """Return one allocation of each stack and burst of several steps that the collector freed.

    It is on a stack, or the places of the stack's bursts differ.
    """
    features = analysis.features
    stack = analysis.allocations.stack_id.astype(np.int64)
    place = features.lines_of(analysis.allocations.free_stack_id)
    is_torch = features.freed_through(Role.OPTIMIZER) | features.freed_through(Role.ZERO_GRAD)
    is_torch |= features.is_freed_by_engine
    n_more = np.where(features.freed_through(Role.COLLECTOR), _LEAST_PLACES, is_torch)
    bursts = grouped(rows, stack * (int(burst.max(initial=0)) + 1) + burst, least=2)
    first = [same[0] for same in bursts if made[same[0]] < made[same[-1]]]
    chosen = [rows[:0]]
    for same in grouped(np.array(first, np.int64), stack):
        if len(distinct(place[same])) + n_more[same].max() >= _LEAST_PLACES:
            chosen.append(same)
    return np.concatenate(chosen)


def _steps(analysis: DeviceAnalysis) -> Int64Column:
    """Return the number of the step of each event: its iteration, or else the forwards that began before."""
    phases = analysis.phases
    if phases.n_iterations > 1:
        return phases.iteration.astype(np.int64)
    is_forward = has_code(phases.phase, Phase.FORWARD)
    return np.cumsum(is_forward & np.diff(is_forward, prepend=False))
