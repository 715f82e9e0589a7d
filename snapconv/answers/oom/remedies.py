"""Remedies for a failed allocation: each tried by a replay of the trace, not by advice.

The replay ends with the failed request. It begins some events before it, with the memory of that moment,
because a replay of all costs more. The file's own settings are tried first: where the request does not fail
under these, what others do says nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.what_if.calls import AllocatorCalls, find_calls
from snapconv.answers.what_if.setting_trials import candidates
from snapconv.answers.what_if.trial import Outcome, Trial, capacity_at_oom, try_out
from snapconv.classification.categories import Category
from snapconv.columns import Int64Column, sums_by
from snapconv.notes import Progress
from snapconv.stacks.project_lines import ProjectLines, SourceLine
from snapconv.units import format_bytes

MOST_EVENTS = 100_000
# Less than this part of the request is not worth a try.
_LEAST_FREED = 0.1
# What a program can free earlier: not its weights, the states of its optimizer, or the input of the step.
_FREEABLE = (
    Category.ACTIVATION,
    Category.KV_CACHE,
    Category.GRADIENT,
    Category.TEMPORARY,
    Category.UNKNOWN,
)


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing that was tried, and whether the request was served; ``detail`` says how well, or why not.

    ``assumptions`` are those of the replay; with any, the outcome is an estimate.
    """

    name: str
    is_served: bool
    detail: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remedies:
    """The remedies tried for one failed allocation; ``why_none`` where nothing could be."""

    n_events: int
    tried: tuple[Remedy, ...]
    why_none: str = ""


@dataclass(frozen=True, slots=True)
class _Attempt:
    name: str
    settings: AllocatorSettings
    calls: AllocatorCalls


def find_remedies(
    analysis: DeviceAnalysis,
    event: int,
    *,
    thorough: bool = False,
    progress: Progress | None = None,
) -> Remedies:
    """Try what could have served the request that failed at an event; ``thorough``: by the whole trace."""
    first = 0 if thorough else max(event + 1 - MOST_EVENTS, 0)
    calls = _calls(analysis, first, event)
    own, n_events = replace(calls.own, memory_fraction=1.0), event + 1 - first
    capacity = capacity_at_oom(calls, event)
    again = try_out(calls, Trial(own, capacity))
    if event not in again.failed_again:
        return Remedies(n_events, (), _not_reproduced(again, event))
    attempts = list(_attempts(analysis, calls, own, first, event))
    tried = []
    for number, attempt in enumerate(attempts):
        if progress:
            progress("replaying", number, len(attempts))
        outcome = try_out(attempt.calls, Trial(attempt.settings, capacity, device_bytes=capacity))
        tried.append(_remedy(attempt.name, outcome, event))
    return Remedies(n_events, tuple(tried))


def _calls(
    analysis: DeviceAnalysis,
    first: int,
    event: int,
    *,
    freed_before: dict[int, int] | None = None,
    empty_cache_before: Sequence[int] = (),
) -> AllocatorCalls:
    """Find the calls from one event to another, which is the failed request."""
    return find_calls(
        analysis.snapshot,
        analysis.device,
        analysis.replay,
        first_event=first,
        freed_before=freed_before,
        empty_cache_before=empty_cache_before,
    ).until(event + 1)


def _attempts(
    analysis: DeviceAnalysis,
    calls: AllocatorCalls,
    own: AllocatorSettings,
    first: int,
    event: int,
) -> Iterator[_Attempt]:
    """List the settings that the file does not have already, then changes of the program."""
    for candidate, settings in candidates(own):
        if candidate.in_oom:
            yield _Attempt(candidate.shown or candidate.conf, settings, calls)
    ends = [i.first_event for i in analysis.iterations[1:] if first < i.first_event <= event]
    if ends:
        emptied = _calls(analysis, first, event, empty_cache_before=ends)
        yield _Attempt("empty_cache() at the end of every iteration", own, emptied)
    if found := _largest_line(analysis, first, event):
        line, n_bytes, rows, before = found
        freed = _calls(analysis, first, event, freed_before=dict.fromkeys(rows.tolist(), before))
        name = f"freeing {format_bytes(n_bytes)} of {line.place} before this phase"
        yield _Attempt(name, own, freed)


def _largest_line(
    analysis: DeviceAnalysis, first: int, event: int
) -> tuple[SourceLine, int, Int64Column, int] | None:
    """Find the line with most bytes that a program can free, allocated before the phase of an event began.

    With its bytes, its allocations, and the first event of that phase; None where there is none.
    """
    phase = analysis.phases.phase[: event + 1]
    changes = np.flatnonzero(phase[1:] != phase[:-1])
    begins = int(changes[-1]) + 1 if len(changes) else 0
    if begins <= first:
        return None
    allocations, lines = analysis.allocations, ProjectLines(analysis.snapshot.stacks, analysis.project)
    category = analysis.classification.category
    can_free = allocations.live_at(event) & (allocations.alloc_event < begins) & np.isin(category, _FREEABLE)
    rows = np.flatnonzero(can_free)
    stacks, inverse = np.unique(allocations.stack_id[rows], return_inverse=True)
    n_bytes = sums_by(inverse, allocations.block_bytes[rows], len(stacks))
    of_line: dict[SourceLine, int] = {}
    for stack, size in zip(stacks.tolist(), n_bytes.tolist(), strict=True):
        if line := lines.innermost(stack):
            of_line[line] = of_line.get(line, 0) + size
    if not of_line:
        return None
    largest = max(of_line, key=lambda line: (of_line[line], line))
    if of_line[largest] < int(analysis.device.events.size[event]) * _LEAST_FREED:
        return None
    mine = [lines.innermost(stack) == largest for stack in stacks.tolist()]
    return largest, of_line[largest], rows[np.array(mine)[inverse]], begins


def _remedy(name: str, outcome: Outcome, event: int) -> Remedy:
    is_served = event in outcome.served
    ran_out = outcome.ran_out
    if is_served:
        detail = f"reserved at most {format_bytes(outcome.peak_reserved)}"
    elif ran_out is None or ran_out.event == event:
        detail = "fails at the same request"
    elif ran_out.event < 0:
        detail = "what was there before does not fit"
    else:
        detail = f"fails earlier, at event {ran_out.event}"
    return Remedy(name, is_served, detail, outcome.assumptions)


def _not_reproduced(outcome: Outcome, event: int) -> str:
    """Why nothing is tried: the replay of the file as it is has another end."""
    if event in outcome.served:
        return "a replay under the file's own settings serves the request: what others do would say nothing"
    failed = outcome.ran_out.event if outcome.ran_out else event
    where = "before the trace" if failed < 0 else f"at event {failed}"
    return f"a replay under the file's own settings fails {where} already: what others do would say nothing"
