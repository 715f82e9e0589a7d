"""Growth: the code that holds more memory with every training step.

Memory that merely stays is no growth. Weights and optimizer states are made in the first step, a
full cache frees the oldest for every new one. What grows allocates in step after step, and frees
nothing, or nothing for a long while, or replaces its memory by something larger. Columns in,
columns out; linear in the allocations, but for a sort.

A server has no steps of an optimizer. What leaks there leaves memory behind in nearly every part of
the trace; weights do so in the first parts only, and what is in use just now in the last.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.cycles import Garbage, find_garbage
from snapconv.answers.peak import most_first
from snapconv.classification.categories import Category, Trait, categories_with
from snapconv.classification.features import at
from snapconv.columns import (
    BoolColumn,
    Int64Column,
    grouped,
    has_code,
    is_among,
    number_groups,
    plain_rows,
    read_only,
    rows_of,
    run_starts,
    sums_by,
    take,
)
from snapconv.json_text import picked
from snapconv.notes import Note
from snapconv.phases.trace_phases import Phase, Phases
from snapconv.stacks.project_lines import SourceLine, line_values
from snapconv.units import Device, counted, format_bytes, optional

# Two may be chance: a state that is made late, an expert that is used for the first time. Three are
# weak.
LEAST_ITERATIONS = 3
_FAIR_ITERATIONS = 4
_STRONG_ITERATIONS = 8
# A line that is reached by several stacks does many things: that it does one of them every time
# needs more.
_LEAST_OF_LINE = 6
# Iterations that keep memory evenly differ by no more than this factor.
_EVEN = 2
# A line that keeps less than so many times what it frees later has a full window.
_LEAST_KEPT = 10
# The last iteration is complete with this part of the events of the one before.
_NEARLY_ALL_EVENTS = 0.9
# What is freed by the next iteration and larger there may be a longer batch: batches of random
# lengths grow seven times in a row once in 5,040.
_LEAST_LARGER, _LEAST_EQUALLY_LARGER = 8, 4
# A list of losses grows too. What would not double the peak in as many iterations does no harm.
_ITERATIONS_THAT_MATTER = 100_000
# Other answers name a line that may grow from this part of the peak on.
_LARGE_PART = 0.1
# "Nothing grows" is not said where iterations add this part of the peak, and so large a part of
# them ends with more. Others end with less where the collector frees some of many cycles.
_LEAST_RISE, _MOST_ITERATIONS = 0.01, 0.75
_FIGURES_OF_GROWTH = (
    "fate",
    "certainty",
    "first_iteration",
    "last_iteration",
    "n_iterations",
    "n_allocations",
    "block_bytes",
    "bytes_per_iteration",
)
_FIGURES_OF_LINE = ("n_allocations", "block_bytes", "first_event", "last_event", "trend")
# The trace is looked at in parts; what leaves memory behind in most of them, up to the last, keeps
# growing.
N_PARTS, _MOST_PARTS = 8, 6


class Fate(str, Enum):
    """The end of memory that grows; the values stand in every output."""

    NEVER_FREED = "never freed"
    REPLACED = "replaced by larger"


@dataclass(frozen=True, slots=True)
class Growth:
    """The memory that a stack or a line holds more from iteration to iteration.

    ``stack_id`` is -1 for all allocations without a stack. Of a line that several stacks reach,
    ``stack_id`` is the one with most bytes. ``block_bytes`` is by how much it grew in all. ``rows``
    are the allocations, in the order of the AllocationTable; ``frames`` the project's, innermost
    first.
    """

    stack_id: int
    fate: Fate
    first_iteration: int
    last_iteration: int
    n_iterations: int
    block_bytes: int
    bytes_per_iteration: int
    rows: Int64Column
    frames: tuple[SourceLine, ...] = ()

    @property
    def line(self) -> SourceLine | None:
        """Its innermost line of the project."""
        return self.frames[0] if self.frames else None

    @property
    def n_allocations(self) -> int:
        """The number of allocations that were left behind."""
        return len(self.rows)

    @property
    def certainty(self) -> str:
        """The certainty, by the number of iterations, in the words of every answer."""
        return "certain" if self.n_iterations >= _STRONG_ITERATIONS else "likely"

    def add_stack(self, growth: "Growth") -> "Growth":
        """Return the growth of this stack and another one of its line."""
        first = min(self.first_iteration, growth.first_iteration)
        last = max(self.last_iteration, growth.last_iteration)
        return replace(
            self,
            first_iteration=first,
            last_iteration=last,
            n_iterations=max(self.n_iterations, growth.n_iterations),
            block_bytes=self.block_bytes + growth.block_bytes,
            bytes_per_iteration=self.bytes_per_iteration + growth.bytes_per_iteration,
            rows=np.append(self.rows, growth.rows),
        )

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {
            "frames": list(map(line_values, self.frames)),
            **picked(self, _FIGURES_OF_GROWTH),
        }


class Trend(str, Enum):
    """When a line left memory behind; the values stand in every output."""

    GROWS = "kept growing"
    WAITS = "may wait for backward"
    KEPT = "usually kept"
    STOPPED = "stopped growing"
    UNKNOWN = "unknown"
    ONCE = "once"
    RECENT = "recent"


# By the kind of memory: what usually is kept, and what a backward after the trace may free.
_TRENDS_OF_KINDS = (None, Trend.KEPT, Trend.WAITS)


@dataclass(frozen=True, slots=True)
class UnfreedLine:
    """The memory that one line allocated in the trace and never freed.

    ``line`` is None for library code, and where there is no stack.
    """

    line: SourceLine | None
    has_stack: bool
    n_allocations: int
    block_bytes: int
    first_event: int
    last_event: int
    trend: Trend

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return line_values(self.line) | picked(self, _FIGURES_OF_LINE)


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """The growth on one device.

    ``end_bytes`` are the bytes allocated when each iteration ended, from ``first_iteration`` on,
    which is 0 but for a range of the trace. ``lines`` are those that grow,
    most bytes first. ``unknown`` says why growth per iteration cannot be seen, and is empty where
    it can be; where it cannot, ``never_freed`` stands in for it. ``garbage`` grows until Python's
    collector runs.
    """

    device: Device
    end_bytes: tuple[int, ...]
    lines: tuple[Growth, ...]
    unknown: str
    never_freed: tuple[UnfreedLine, ...] = ()
    garbage: Garbage | None = None
    first_iteration: int = 0

    @property
    def bytes_per_iteration(self) -> int:
        """The bytes that an iteration adds for good."""
        return bytes_per_iteration(self.lines)

    @property
    def weight(self) -> int:
        """The bytes that grow, or may: of several devices, the one with most is shown."""
        n_certain = sum(line.block_bytes for line in self.lines)
        return n_certain + sum(
            line.block_bytes for line in self.never_freed if line.trend is Trend.GROWS
        )

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values in bytes; docs/reference/json.md has the schema."""
        return {
            "unknown": self.unknown or None,
            "first_iteration": self.first_iteration,
            "iteration_end_bytes": list(self.end_bytes),
            "bytes_per_iteration": self.bytes_per_iteration,
            "lines": [line.to_json() for line in self.lines],
            "never_freed": [line.to_json() for line in self.never_freed],
            "garbage": self.garbage.to_json() if self.garbage else None,
        }


def bytes_per_iteration(growths: Sequence[Growth]) -> int:
    """Return the bytes that an iteration adds for good in all."""
    return sum(growth.bytes_per_iteration for growth in growths)


def report_growth(analysis: DeviceAnalysis) -> GrowthReport:
    """Find the lines of one device that grow."""
    allocated = analysis.replay.allocated.after
    last_events = [iteration.last_event for iteration in analysis.traced_iterations]
    unknown = why_unknown(analysis)
    return GrowthReport(
        device=analysis.device.device,
        end_bytes=tuple(int(allocated[event]) for event in last_events if event >= 0),
        lines=growth_by_line(find_growth(analysis)),
        unknown=unknown,
        never_freed=unfreed_lines(analysis) if unknown else (),
        garbage=find_garbage(analysis),
        first_iteration=len(analysis.iterations) - len(analysis.traced_iterations),
    )


def growth_by_line(growths: Sequence[Growth]) -> tuple[Growth, ...]:
    """Sum up the stacks by their innermost line and their fate; most bytes first."""
    lines: dict[tuple[SourceLine | None, Fate], Growth] = {}
    for growth in growths:
        key = growth.line, growth.fate
        lines[key] = lines[key].add_stack(growth) if key in lines else growth
    return most_first(lines.values(), attrgetter("frames"))


@dataclass(frozen=True, slots=True)
class _Survivors:
    """Allocations that were live when their iteration ended.

    ``birth`` and ``death`` are the iterations that allocated and freed them. ``key`` is what they
    are compared by: a stack or a line. ``is_weak_evidence``: three iterations do.
    ``is_after_steps``: allocated when the last optimizer step of the trace was over.
    """

    row: Int64Column
    key: Int64Column
    birth: Int64Column
    death: Int64Column
    n_bytes: Int64Column
    is_weak_evidence: BoolColumn
    is_after_steps: BoolColumn


class _Run(NamedTuple):
    """Iterations, each ``period`` after the one before, that each left memory behind.

    ``rows`` are the allocations, ``sums`` the bytes of each iteration.
    """

    first: int
    last: int
    period: int
    rows: Int64Column
    sums: Int64Column

    @property
    def n_iterations(self) -> int:
        return (self.last - self.first) // self.period + 1

    def growth(self, key: int, fate: Fate) -> Growth:
        """Return it as the growth of a stack; what is replaced grows between its iterations."""
        n_bytes = int(self.sums.sum())
        n_grown = self.n_iterations * self.period
        if fate is Fate.REPLACED:
            n_bytes = int(self.sums[-1] - self.sums[0])
            n_grown = self.last - self.first
        return Growth(
            key,
            fate,
            self.first,
            self.last,
            self.n_iterations,
            n_bytes,
            n_bytes // n_grown,
            self.rows,
        )


def find_growth(analysis: DeviceAnalysis) -> tuple[Growth, ...]:
    """Find the stacks that grow up to the end of the trace, most bytes first.

    Without optimizer steps, iterations may be parts of one step, which may keep memory until its
    end: then nothing is found.
    """
    phases = analysis.phases
    n_iterations = phases.n_iterations
    if not phases.has_steps or len(analysis.traced_iterations) < LEAST_ITERATIONS:
        return ()
    survivors = _survivors(analysis)
    growths: list[Growth] = []
    for key, run, group in _runs(survivors, n_iterations):
        is_even = run.sums.min() * _EVEN >= run.sums.max()
        is_strong = run.n_iterations >= _FAIR_ITERATIONS
        if is_strong or (is_even and group.is_weak_evidence.all()):
            growths.append(run.growth(key, Fate.NEVER_FREED))
    growths += _growing_lines(analysis, survivors, [growth.rows[0] for growth in growths])
    growths += _replaced(survivors, n_iterations, analysis.allocations.requested_bytes)
    framed = []
    for growth in most_first(growths, attrgetter("stack_id")):
        frames = analysis.lines.of(growth.stack_id)
        framed.append(read_only(replace(growth, frames=frames)))
    return tuple(framed)


def _survivors(analysis: DeviceAnalysis) -> _Survivors:
    table = analysis.allocations
    phases = analysis.phases
    birth = analysis.iteration
    death = at(phases.iteration, table.freed_event, phases.n_iterations)
    # Without frames it may be anyone's; where the last iteration was cut short, what it would have
    # freed is still there.
    is_evidence = ~analysis.features.has_no_frames & np.bool_(_is_last_complete(phases))
    is_evidence &= ~is_among(
        analysis.classification.category, categories_with(Trait.MADE_ONCE)
    )
    steps = rows_of(has_code(phases.certain, Phase.OPTIMIZER))
    last_step = np.append(len(phases.certain), steps)[-1]
    is_last = birth == phases.n_iterations - 1
    allocations = _Survivors(
        row=np.arange(len(table)),
        key=table.stack_id.astype(np.int64),
        birth=birth.astype(np.int64),
        death=death.astype(np.int64),
        n_bytes=table.block_bytes,
        is_weak_evidence=is_evidence,
        is_after_steps=(table.alloc_event > last_step) & is_last,
    )
    return take(allocations, rows_of((birth >= 0) & (death > birth)))


def _is_last_complete(phases: Phases) -> bool:
    """Return whether the last iteration is complete.

    It came to its optimizer, or has nearly as many events as the iteration before.
    """
    last = phases.n_iterations - 1
    bounds = np.searchsorted(phases.iteration, (last - 1, last, last + 1))
    previous_start, start, end = bounds.tolist()
    if phases.ends_in_oom:
        return False
    has_step = bool(has_code(phases.certain[start:end], Phase.OPTIMIZER).any())
    return has_step or end - start >= _NEARLY_ALL_EVENTS * (start - previous_start)


def _growing_lines(
    analysis: DeviceAnalysis, survivors: _Survivors, rows: Sequence[int]
) -> Iterator[Growth]:
    """Find the lines of the project that grow by several stacks, none of which grows every time.

    ``rows`` are allocations of the stacks that do grow: their lines are left out.
    """
    line = analysis.project_frame[survivors.row].astype(np.int64)
    is_open = (line >= 0) & ~is_among(line, analysis.project_frame[rows])
    keyed = take(replace(survivors, key=line), rows_of(is_open))
    for _, run, _ in _runs(keyed, analysis.phases.n_iterations):
        if run.n_iterations >= _LEAST_OF_LINE:
            yield run.growth(analysis.main_stack(run.rows), Fate.NEVER_FREED)


def _runs(
    survivors: _Survivors, n_iterations: int
) -> Iterator[tuple[int, _Run, _Survivors]]:
    """Find the keys that keep memory of every iteration to the end.

    Yield each key, that run and all memory that it keeps. Not what frees a part of it later: a
    window that is full does, and what the collector frees.
    """
    # What the last iteration made may still be freed in the next, which the trace does not have.
    is_last = survivors.birth == n_iterations - 1
    outlived = (survivors.death >= survivors.birth + 2) | is_last
    stays = outlived & (survivors.death == n_iterations)
    late = outlived & ~stays
    keys, n_late = _sums(survivors.key[late], survivors.n_bytes[late])
    late_bytes = dict(plain_rows(keys, n_late))
    for key, group in _groups(take(survivors, rows_of(stays))):
        run = _longest_run(group, n_iterations)
        if run and late_bytes.get(key, 0) * _LEAST_KEPT <= run.sums.sum():
            yield key, run, group


def _longest_run(survivors: _Survivors, n_iterations: int) -> _Run | None:
    """Return the longer of the runs to the last iteration and after the last step."""
    runs = (_last_run(survivors, n_iterations), _run_after_steps(survivors, n_iterations))
    return max(filter(None, runs), key=attrgetter("n_iterations"), default=None)


def _sums(key: Int64Column, n_bytes: Int64Column) -> tuple[Int64Column, Int64Column]:
    """Return the distinct keys, and the sum of the bytes of each."""
    first, group = number_groups(key)
    return key[first], sums_by(group, n_bytes, len(first))


def _groups(survivors: _Survivors) -> Iterator[tuple[int, _Survivors]]:
    """Group the allocations by key, where a key may have one for each of enough iterations."""
    positions = np.arange(len(survivors.row))
    for rows in grouped(positions, survivors.key, min_rows=LEAST_ITERATIONS):
        n_iterations = len(run_starts(survivors.birth[rows]))
        if n_iterations >= LEAST_ITERATIONS - 1:  # the last may count as two
            yield int(survivors.key[rows[0]]), take(survivors, rows)


def _last_run(survivors: _Survivors, n_iterations: int) -> _Run | None:
    """Find the last iterations, equally far apart, that each left memory behind.

    None where there are too few, or where the next one should have come before the end of the
    trace.
    """
    iterations, sums = _sums(survivors.birth, survivors.n_bytes)
    # The last iteration counts only where it has no more than the others kept: the rest may be
    # freed yet.
    has_last = len(iterations) > 1 and iterations[-1] == n_iterations - 1
    if has_last and sums[-1] > sums[:-1].max():
        iterations = iterations[:-1]
        sums = sums[:-1]
    if len(iterations) < LEAST_ITERATIONS:
        return None
    gaps = np.diff(iterations)
    period = int(gaps[-1])
    start = _run_start(gaps == period)
    last = int(iterations[-1])
    n_required = LEAST_ITERATIONS + (period > 1)
    if len(iterations) - start < n_required or last + period < n_iterations - 1:
        return None
    first = int(iterations[start])
    is_within = (survivors.birth >= first) & (survivors.birth <= last)
    return _Run(first, last, period, survivors.row[is_within], sums[start:])


def _run_after_steps(survivors: _Survivors, n_iterations: int) -> _Run | None:
    """Find the run of memory that is allocated after each step, in the next iteration.

    The last step has no next iteration: its memory is counted as if it had.
    """
    if not survivors.is_after_steps.any():
        return None
    shifted = replace(survivors, birth=survivors.birth + survivors.is_after_steps)
    run = _last_run(shifted, n_iterations + 1)
    return run and run._replace(first=max(run.first - 1, 0), last=run.last - 1)


def _run_start(holds: BoolColumn) -> int:
    """Find the beginning of the run that lasts to the end."""
    return int(np.append(-1, rows_of(~holds))[-1]) + 1


def _replaced(
    survivors: _Survivors, n_iterations: int, requested_bytes: Int64Column
) -> Iterator[Growth]:
    """Find the stacks that replace memory by larger memory, as ``torch.cat`` in a loop does."""
    birth = survivors.birth
    death = survivors.death
    # The last event of an optimizer ends an iteration: what is freed right after it is freed in the
    # next.
    is_replaced = (death <= birth + 2) & (
        (death < n_iterations) | (birth >= n_iterations - 2)
    )
    for key, group in _groups(take(survivors, rows_of(is_replaced & (survivors.key >= 0)))):
        iterations, n_bytes = _sums(group.birth, requested_bytes[group.row])
        rises = np.where(np.diff(iterations) == 1, np.diff(n_bytes), 0)
        if iterations[-1] != n_iterations - 1 or not len(rises) or rises[-1] <= 0:
            continue
        start = _run_start(rises > 0)
        if len(iterations) - start < _LEAST_LARGER:
            start = _run_start(rises == rises[-1])
        if len(iterations) - start >= _LEAST_EQUALLY_LARGER:
            first = int(iterations[start])
            rows = group.row[group.birth >= first]
            run = _Run(first, int(iterations[-1]), 1, rows, n_bytes[start:])
            yield run.growth(key, Fate.REPLACED)


def unfreed_lines(analysis: DeviceAnalysis) -> tuple[UnfreedLine, ...]:
    """Sum up what was allocated in the trace and is live at its end, by line; most bytes first."""
    table = analysis.allocations
    frame = analysis.project_frame
    classified = analysis.classification
    is_usual = is_among(classified.category, categories_with(Trait.USUALLY_KEPT))
    kind = np.where(is_usual, 1, 2 * _waits_for_backward(analysis))
    unfreed = []
    first = analysis.first_event
    live_rows = rows_of(analysis.features.is_traced & ~analysis.features.is_freed)
    frames_and_kinds = frame.astype(np.int64) * len(_TRENDS_OF_KINDS) + kind
    for rows in grouped(live_rows, frames_and_kinds):
        events = table.alloc_event[rows].tolist()
        line_frame = int(frame[rows[0]])
        trend = _TRENDS_OF_KINDS[kind[rows[0]]] or _trend(analysis, events)
        ends = (first + events[0], first + events[-1])
        figures = (len(rows), table.bytes_of(rows), *ends, trend)
        line = analysis.lines.of_frame(line_frame)
        unfreed.append(UnfreedLine(line, line_frame >= -1, *figures))
    return most_first(unfreed, _line_text)


def _waits_for_backward(analysis: DeviceAnalysis) -> BoolColumn:
    """Mark the activations of a forward in which the trace ends; an earlier leak waits for none."""
    classified = analysis.classification
    last_forward = _run_start(analysis.phases.phase == Phase.FORWARD)
    return (
        has_code(classified.category, Category.ACTIVATION)
        & ~classified.is_likely
        & (analysis.allocations.alloc_event >= last_forward)
    )


def _line_text(unfreed: UnfreedLine) -> str:
    return str(unfreed.line)


def growing_sentence(analysis: DeviceAnalysis) -> str:
    """Name the line with most memory that may grow, where no iterations show it.

    The sentence is empty where that line has little memory.
    """
    lines = unfreed_lines(analysis) if why_unknown(analysis) else ()
    largest = next((line for line in lines if line.trend is Trend.GROWS), None)
    if largest is None or largest.line is None:
        return ""
    if largest.block_bytes < _LARGE_PART * analysis.replay.allocated.peak:
        return ""
    size = format_bytes(largest.block_bytes)
    return (
        f"{largest.line.place} kept growing to the end of the trace: {size} in "
        f"{counted(largest.n_allocations, 'allocation')} (a leak, a cache or reference cycles)"
    )


def _trend(analysis: DeviceAnalysis, events: Sequence[int]) -> Trend:
    """Decide by the parts of the trace in which a line left memory behind."""
    last = N_PARTS - 1
    parts = {event * N_PARTS // analysis.n_events for event in events}
    if parts == {last}:
        return Trend.RECENT
    if len(events) == 1:
        return Trend.ONCE
    if last in parts and len(parts) >= _MOST_PARTS:
        return Trend.GROWS
    # In so few steps, parts of them say nothing.
    return Trend.UNKNOWN if analysis.phases.has_steps else Trend.STOPPED


def why_unknown(analysis: DeviceAnalysis) -> str:
    """Say why growth cannot be seen in a trace, and what would show it; empty where it can."""
    n_events = analysis.n_events
    is_recorded = analysis.snapshot.backend.is_recorded
    if not n_events:
        return "the file has no events"
    if not analysis.features.is_traced.any():
        return f"the trace has {counted(n_events, 'event')} and no allocation"
    if not analysis.phases.has_steps:
        remedy = "; without an optimizer, call snapconv.step() under `snapconv record`"
        reason = "no optimizer step ends an iteration in this trace"
        return f"{reason}{remedy if is_recorded else ''}"
    reason = _why_unsure(analysis)
    if not reason:
        return ""
    command = f" with `{_record_more(analysis)}`" if is_recorded else ""
    return f"{reason}; record more{command}"


def _why_unsure(analysis: DeviceAnalysis) -> str:
    """Say why the iterations show neither growth nor its absence; empty where they do."""
    n_cut = int(not _is_last_complete(analysis.phases))
    iterations = analysis.traced_iterations
    n_whole = len(iterations) - n_cut
    noun = "whole iteration" if n_cut else "iteration"
    if n_whole < LEAST_ITERATIONS:
        return f"the trace has {counted(n_whole, noun)}, and {LEAST_ITERATIONS} are needed"
    allocated = analysis.replay.allocated
    ends = allocated.after[[iteration.last_event for iteration in iterations[:n_whole]]]
    rises = np.diff(ends) > 0
    is_steady = rises.mean() < _MOST_ITERATIONS
    is_small = ends[-1] - ends[0] < _LEAST_RISE * allocated.peak
    if is_steady or is_small or find_growth(analysis):
        return ""
    sizes = f"{format_bytes(int(ends[0]))} to {format_bytes(int(ends[-1]))}"
    rose = f"rose in {np.count_nonzero(rises)} of {len(rises)} iterations"
    return f"allocated memory {rose}, from {sizes}, and no line added to all"


def _record_more(analysis: DeviceAnalysis) -> str:
    """Return the command that records enough iterations.

    It runs the same program, where the file names it.
    """
    simulate = " --simulate" if analysis.snapshot.is_simulated else ""
    program = analysis.snapshot.facts.get("command") or "SCRIPT"
    n = max(_STRONG_ITERATIONS, 2 * analysis.phases.n_iterations)
    return f"snapconv record{simulate} --iterations {n} -o more.capture {program}"


def growth_notes(analysis: DeviceAnalysis, growths: Sequence[Growth]) -> Iterator[Note]:
    """Report how much every iteration adds for good, and the project's line with most of it."""
    n_added = bytes_per_iteration(growths)
    if not growths or n_added * _ITERATIONS_THAT_MATTER < analysis.replay.allocated.peak:
        return
    largest = growths[0]
    main_line = optional("; most by {0.place}", largest.line)
    sentence = (
        f"every iteration from {largest.first_iteration} to {largest.last_iteration} "
        f"adds {format_bytes(n_added)} that is never freed in this trace{main_line} "
        f"({largest.certainty}); see snapconv growth"
    )
    yield Note("growth", sentence, analysis.device.device, is_minor=True)
