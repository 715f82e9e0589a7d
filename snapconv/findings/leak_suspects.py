"""Which code leaves more memory behind with every training step: growth, and not memory that merely stays.

Weights and optimizer states are made in the first step, a full cache frees the oldest for every new
one. A leak allocates in every step, and frees nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from snapconv.columns import Int32Column, Int64Column, read_only
from snapconv.notes import Note
from snapconv.phases.trace_phases import Phases
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.project_frames import Project
from snapconv.stacks.project_lines import ProjectLines
from snapconv.units import format_bytes

# Two may be chance: a state that is made late, an expert that is used for the first time.
_LEAST_ITERATIONS = 3
# A list of losses grows too. What would not double the peak in as many iterations does no harm.
_ITERATIONS_THAT_MATTER = 100_000


@dataclass(frozen=True, slots=True)
class LeakSuspect:
    """What one stack (-1: those without any) left behind in each of the iterations, and never freed.

    ``rows`` are the allocations left behind, in the order of the AllocationTable.
    """

    stack_id: int
    first_iteration: int
    last_iteration: int
    n_bytes: int
    rows: Int64Column

    @property
    def n_iterations(self) -> int:
        """The number of iterations that each left something behind."""
        return self.last_iteration - self.first_iteration + 1


def find_leak_suspects(
    allocations: AllocationTable, phases: Phases, iteration: Int32Column
) -> tuple[LeakSuspect, ...]:
    """Find the stacks that grow up to the end of the trace, most bytes first.

    ``iteration`` is that of every allocation. What the last one made may be freed in the next, which
    the trace does not have, so it does not count. Without optimizer steps, iterations may be parts of one
    step, which may keep memory until its end.
    """
    if not phases.has_steps:
        return ()
    stack, made = allocations.stack_id.astype(np.int64), iteration.astype(np.int64)
    freed_in = _freed_iterations(allocations, phases)
    last = phases.n_iterations - 2
    outlived = (made >= 0) & (freed_in >= made + 2)
    stays = outlived & (freed_in == phases.n_iterations)
    left = np.flatnonzero(stays & ~np.isin(stack, stack[outlived & ~stays]))
    suspects = []
    for stack_id, first in _growing(stack[left], made[left], last):
        rows = left[(stack[left] == stack_id) & (made[left] >= first)]
        n_bytes = int(allocations.block_bytes[rows].sum())
        suspects.append(read_only(LeakSuspect(stack_id, first, last, n_bytes, rows)))
    return tuple(sorted(suspects, key=lambda suspect: (-suspect.n_bytes, suspect.stack_id)))


def _freed_iterations(allocations: AllocationTable, phases: Phases) -> Int64Column:
    """The iteration in which each allocation was freed; the number of iterations where it stays."""
    freed_event = allocations.freed_event
    freed_in = np.full(len(allocations), phases.n_iterations, np.int64)
    freed_in[freed_event >= 0] = phases.iteration[freed_event[freed_event >= 0]]
    return freed_in


def _growing(stack: Int64Column, made: Int64Column, last: int) -> Iterator[tuple[int, int]]:
    """The stacks that left something in every iteration up to the last, each with the first of these."""
    for stack_id in np.unique(stack[made == last]).tolist():
        back = last - np.unique(made[stack == stack_id])[::-1]
        # How far back each one is; where one is missing, all before it are too far.
        n_in_a_row = int(np.count_nonzero(back == np.arange(len(back))))
        if n_in_a_row >= _LEAST_ITERATIONS:
            yield stack_id, last - n_in_a_row + 1


def leak_notes(
    suspects: Sequence[LeakSuspect], stacks: StackTable, project: Project, device: int, *, peak_bytes: int
) -> Iterator[Note]:
    """Report how much every iteration leaves behind, and which line of the project made the most of it."""
    per_iteration = sum(suspect.n_bytes // suspect.n_iterations for suspect in suspects)
    if per_iteration * _ITERATIONS_THAT_MATTER < peak_bytes or not suspects:
        return
    most = suspects[0]
    line = ProjectLines(stacks, project).innermost(most.stack_id)
    where = f"; most by {line.place}" if line else ""
    yield Note(
        "leak-suspect",
        f"every iteration from {most.first_iteration} to {most.last_iteration} leaves "
        f"{format_bytes(per_iteration)} behind, which is not freed to the end of the trace{where}",
        device,
    )
