"""Gradients that stay through forward: after a step nothing reads them until the next backward."""

from collections.abc import Iterator

import numpy as np

from snapconv.answers.advice.changes import Change
from snapconv.answers.advice.evidence import Detected, Evidence
from snapconv.classification.categories import Category
from snapconv.columns import Int64Column, distinct, has_code, run_starts
from snapconv.phases.trace_phases import Phase, Phases
from snapconv.stacks.project_lines import SourceLine

# Gradients times steps.
_MOST_RANGES = 1 << 22


def kept_gradients(evidence: Evidence) -> Iterator[Detected]:
    """Find gradients in use at the moment, between a step and the next backward.

    Between the two nothing adds to them: they are freed or zeroed before the backward. Where they stay, and
    several backwards come before each step, they may be added up on purpose; nothing is found then.
    """
    analysis, moment = evidence.analysis, evidence.moment.event
    table, phases = analysis.allocations, analysis.phases
    idle = _idle_ranges(phases)
    begun = idle[idle[:, 0] <= moment]
    if not len(begun) or moment > phases.run_end[begun[-1, 1]]:
        return
    is_gradient = has_code(analysis.classification.category, Category.GRADIENT) & (table.alloc_event >= 0)
    rows = np.flatnonzero(is_gradient)
    mine = rows[evidence.live[rows] & (table.alloc_event[rows] < begun[-1, 0])]
    if evidence.bytes_of(mine) < evidence.least_bytes or len(rows) * len(idle) > _MOST_RANGES:
        return
    stays = (table.freed_event[mine] < 0) | (table.freed_event[mine] > begun[-1, 1])
    if stays.any() and _has_several_backwards(phases):
        return
    yield Detected(
        _without(evidence, rows, idle),
        evidence.main_line(mine),
        _where(evidence, mine),
        is_certain=not stays.any(),
        values={"when": "not freed before backward" if stays.any() else "freed only after it"},
    )


def _idle_ranges(phases: Phases) -> Int64Column:
    """Return the ranges in which no gradient is read: from the end of a step up to the next backward.

    A step that allocates nothing is known by the iteration that ends with it.
    """
    begins = run_starts(phases.phase)
    kind = phases.phase[begins]
    ends = phases.run_end[begins[has_code(kind, Phase.OPTIMIZER)]].astype(np.int64) + 1
    if phases.has_steps:
        ends = np.concatenate((ends, np.flatnonzero(np.diff(phases.iteration)) + 1))
    ends = distinct(ends)
    backwards = begins[has_code(kind, Phase.BACKWARD)]
    before = np.concatenate(([-1], phases.run_end[backwards].astype(np.int64)))[:-1]
    place = np.searchsorted(ends, backwards, side="right") - 1
    last = np.append(ends, -1)[place]
    ranges = np.stack((last, backwards), axis=1)
    return np.asarray(ranges[(last > before) & (place >= 0)], np.int64)


def _has_several_backwards(phases: Phases) -> bool:
    """Whether any iteration has more than one backward."""
    begins = run_starts(phases.phase)
    backwards = begins[has_code(phases.phase[begins], Phase.BACKWARD)]
    iterations = phases.iteration[backwards]
    return len(np.unique(iterations)) < len(iterations)


def _without(evidence: Evidence, rows: Int64Column, idle: Int64Column) -> Change:
    """Return the change that frees gradients at the end of each step, until backward makes them anew.

    It makes them in the order in which the first backward did.
    """
    table, phases = evidence.analysis.allocations, evidence.analysis.phases
    alloc = table.alloc_event[rows].astype(np.int64)
    freed = table.freed_event[rows].astype(np.int64)
    freed = np.where(freed >= 0, freed, evidence.demand.n_events)
    begins = run_starts(phases.phase)
    of_run = np.searchsorted(begins, alloc, side="right") - 1
    run_first, run_end = begins[of_run], phases.run_end[alloc].astype(np.int64)
    place = (alloc - run_first) / np.maximum(run_end - run_first + 1, 1)
    parts = []
    for ends, backward in idle.tolist():
        is_kept = (alloc < ends) & (freed > ends)
        length = int(phases.run_end[backward]) - backward + 1
        again = backward + (place[is_kept] * length).astype(np.int64)
        mine = rows[is_kept]
        last = np.where(freed[is_kept] <= backward, freed[is_kept], again)
        parts.append(np.stack((mine, np.full(len(mine), ends), last, table.block_bytes[mine])))
    return Change(*np.concatenate(parts, axis=1))


def _where(evidence: Evidence, rows: Int64Column) -> SourceLine | None:
    stacks = evidence.analysis.allocations.free_stack_id[rows]
    known = stacks[stacks >= 0]
    return evidence.lines.innermost(int(known[0])) if len(known) else None
