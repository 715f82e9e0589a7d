"""Memory in reference cycles: made in several steps, and freed together when Python's collector runs.

Python frees a tensor with its last name; what objects in a cycle hold waits for the collector, which runs
wherever a program makes objects. So blocks of several steps go in one burst, each time at another place, also
within backward. A list that is cleared, the outputs of an epoch and a cache that is full go where the program
drops them: at the same place each time.
"""

from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.columns import Int64Column, distinct, grouped, has_code, is_among, rows_of
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.event_table import Action
from snapconv.stacks.project_lines import SourceLine, line_values
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.units import counted, format_bytes

# Places at which the collector ran, where one of them is the engine or the optimizer, and elsewhere: a
# program may clear a list at two lines of its own.
_LEAST_PLACES, _LEAST_OWN_PLACES = 2, 3


@dataclass(frozen=True, slots=True)
class Garbage:
    """The allocations that outlived their step in cycles, and the event that ends the step of each.

    ``line`` made most of them. ``most_bytes``: those of earlier steps in use together. ``n_collections``: the
    bursts that freed several steps. ``is_certain``: the collector is on the stack of a burst.
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
        size, runs = format_bytes(self.most_bytes), counted(self.n_collections, "time")
        return (
            f"up to {size} of earlier steps stays in reference cycles until Python's garbage collector runs "
            f"({runs} in this trace; {self.certainty}); {place} made most of it"
        )

    @property
    def certainty(self) -> str:
        """The certainty in the words of every answer."""
        return "certain" if self.is_certain else "likely"

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        names = ("most_bytes", "n_collections", "certainty")
        return line_values(self.line) | {name: getattr(self, name) for name in names}


def find_garbage(analysis: DeviceAnalysis) -> Garbage | None:
    """Find the stacks whose memory of several steps nothing but the collector frees so; None for none."""
    table, features, steps = analysis.allocations, analysis.features, _steps(analysis)
    if not analysis.phases.free_sites_known or not len(steps) or steps[0] == steps[-1]:
        return None
    made, freed = np.append(steps, -1)[table.alloc_event], np.append(steps, steps[-1] + 1)[table.freed_event]
    outlives = ~features.has_no_frames & (made >= 0) & (freed > made)
    # A burst is of frees without an allocation between them.
    n_allocs = np.cumsum(has_code(analysis.device.events.action, Action.ALLOC))
    burst = np.take(n_allocs, table.freed_event)
    key = table.stack_id.astype(np.int64) * (len(steps) + 1) + burst
    together = grouped(rows_of(outlives & features.is_freed), key, least=2)
    bursts = np.array([rows[0] for rows in together if made[rows[0]] < made[rows[-1]]], np.int64)
    bursts = np.concatenate([bursts[:0], *filter(_Places(analysis).vary, grouped(bursts, table.stack_id))])
    if not len(bursts):
        return None
    rows = rows_of(outlives & is_among(table.stack_id, table.stack_id[bursts]))
    ends, n_bytes = np.searchsorted(steps, made[rows], side="right"), table.block_bytes
    moved = np.zeros(len(steps) + 1, np.int64)
    np.add.at(moved, ends, n_bytes[rows])
    np.add.at(moved, features.end[rows], -n_bytes[rows])
    frame = np.take(analysis.facts.project_frame, table.stack_id)
    most = int(frame[max(grouped(rows, frame), key=lambda mine: n_bytes[mine].sum())[0]])
    return Garbage(
        rows,
        ends,
        analysis.lines.of_frame(most) if most >= 0 else None,
        most_bytes=int(np.cumsum(moved).max()),
        n_collections=len(distinct(burst[bursts])),
        is_certain=bool(features.freed_through(Role.COLLECTOR)[bursts].any()),
    )


def _steps(analysis: DeviceAnalysis) -> Int64Column:
    """Return the number of the step of each event: its iteration, or else the forwards that began before."""
    phases = analysis.phases
    if phases.n_iterations > 1:
        return phases.iteration.astype(np.int64)
    is_forward = has_code(phases.phase, Phase.FORWARD)
    return np.cumsum(is_forward & ~np.append(False, is_forward[:-1]))


class _Places:
    """Where each allocation was freed, and whether a list is never cleared there."""

    def __init__(self, analysis: DeviceAnalysis) -> None:
        features = analysis.features
        self._place = features.lines_of(analysis.allocations.free_stack_id)
        self._is_by_collector = features.freed_through(Role.COLLECTOR)
        self._is_elsewhere = features.is_freed_by_engine | features.freed_through(Role.OPTIMIZER)
        self._is_elsewhere |= features.freed_through(Role.ZERO_GRAD)

    def vary(self, rows: Int64Column) -> bool:
        """Whether the collector freed the allocations, each in a burst: it is there, or the places differ."""
        least = _LEAST_PLACES if self._is_elsewhere[rows].any() else _LEAST_OWN_PLACES
        return bool(self._is_by_collector[rows].any()) or len(distinct(self._place[rows])) >= least
