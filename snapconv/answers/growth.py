"""Growth: the code that holds more memory with every training step, and not memory that merely stays.

Weights and optimizer states are made in the first step, a full cache frees the oldest for every new one. What
grows allocates in step after step, and frees nothing, or nothing for a long while, or replaces its memory by
something larger. Columns in, columns out; linear in the allocations, but for a sort.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.leaks import UnfreedLine, unfreed_lines
from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, read_only, sums_by, take
from snapconv.notes import Note
from snapconv.phases.trace_phases import Phase, Phases
from snapconv.replay.device_replay import AllocationTable
from snapconv.stacks.project_lines import ProjectLines, SourceLine, line_values
from snapconv.stacks.stack_roles import innermost_frames
from snapconv.units import counted, device_kind, format_bytes

# Two may be chance: a state that is made late, an expert that is used for the first time. Three are weak.
LEAST_ITERATIONS = 3
_FAIR_ITERATIONS, _STRONG_ITERATIONS = 4, 8
# A line that is reached by several stacks does many things: that it does one of them every time needs more.
_LEAST_OF_LINE = 6
# What is freed by the next iteration and larger there may be a longer batch: batches of random lengths grow
# seven times in a row once in 5,040.
_LEAST_LARGER, _LEAST_EQUALLY_LARGER = 8, 4
# A list of losses grows too. What would not double the peak in as many iterations does no harm.
_ITERATIONS_THAT_MATTER = 100_000
# Made once for a parameter, a kernel or a shape, on its first use, which may be in a later iteration.
_MADE_ON_FIRST_USE = (Category.WEIGHT, Category.OPTIMIZER_STATE, Category.WORKSPACE)


class Fate(str, Enum):
    """The end of memory that grows; the values stand in every output."""

    NEVER_FREED = "never freed"
    REPLACED = "replaced by larger"
    FREED_LATE = "freed late"

    @property
    def goes_on(self) -> bool:
        """Whether it grew up to the end of the trace, as far as the trace shows."""
        return self is not Fate.FREED_LATE


class Confidence(str, Enum):
    """The certainty of growth, by the number of iterations that show it; the values stand in every output."""

    WEAK = "weak"
    FAIR = "fair"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Growth:
    """The memory that one stack (-1: those without any) holds more from iteration to iteration.

    Of a line that several stacks reach, ``stack_id`` is the one with most bytes. It grew in every
    ``period``-th iteration from the first to the last, by ``block_bytes`` in all; of FREED_LATE these are
    the most that was freed at once. ``rows`` are the allocations, in the order of the AllocationTable;
    ``frames`` the project's, innermost first.
    """

    stack_id: int
    fate: Fate
    first_iteration: int
    last_iteration: int
    period: int
    block_bytes: int
    rows: Int64Column
    frames: tuple[SourceLine, ...] = ()

    @property
    def line(self) -> SourceLine | None:
        """Its innermost line of the project."""
        return self.frames[0] if self.frames else None

    @property
    def n_iterations(self) -> int:
        """The number of iterations in which it grew."""
        return (self.last_iteration - self.first_iteration) // self.period + 1

    @property
    def n_allocations(self) -> int:
        """The number of allocations that were left behind."""
        return len(self.rows)

    @property
    def confidence(self) -> Confidence:
        """The certainty, by the number of iterations."""
        if self.n_iterations >= _STRONG_ITERATIONS:
            return Confidence.STRONG
        return Confidence.FAIR if self.n_iterations >= _FAIR_ITERATIONS else Confidence.WEAK

    @property
    def bytes_per_iteration(self) -> int:
        """The bytes that an iteration adds."""
        if self.fate is Fate.REPLACED:
            return self.block_bytes // (self.last_iteration - self.first_iteration)
        return self.block_bytes // (self.n_iterations * self.period)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values, with its line."""
        return line_values(self.line) | _figures(self)


@dataclass(frozen=True, slots=True)
class LineGrowth:
    """The stacks of one line of the project (or of none) that grow with one fate, most bytes first."""

    stacks: tuple[Growth, ...]

    @property
    def frames(self) -> tuple[SourceLine, ...]:
        """The line and its callers, innermost first; none for memory that no line of the project made."""
        return self.stacks[0].frames

    @property
    def fate(self) -> Fate:
        """The end of its memory."""
        return self.stacks[0].fate

    @property
    def confidence(self) -> Confidence:
        """The certainty of the surest stack."""
        return max((stack.confidence for stack in self.stacks), key=list(Confidence).index)

    @property
    def first_iteration(self) -> int:
        """The first iteration in which it grew."""
        return min(stack.first_iteration for stack in self.stacks)

    @property
    def last_iteration(self) -> int:
        """The last iteration in which it grew."""
        return max(stack.last_iteration for stack in self.stacks)

    @property
    def n_iterations(self) -> int:
        """The number of iterations in which it grew, by the stack that has most."""
        return max(stack.n_iterations for stack in self.stacks)

    @property
    def n_allocations(self) -> int:
        """The number of allocations that were left behind."""
        return sum(stack.n_allocations for stack in self.stacks)

    @property
    def block_bytes(self) -> int:
        """The bytes by which it grew."""
        return sum(stack.block_bytes for stack in self.stacks)

    @property
    def bytes_per_iteration(self) -> int:
        """The bytes that an iteration adds."""
        return sum(stack.bytes_per_iteration for stack in self.stacks)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values, with its callers."""
        return {"frames": [line_values(line) for line in self.frames]} | _figures(self)


def _figures(found: Growth | LineGrowth) -> dict[str, object]:
    return {
        "fate": found.fate.value,
        "confidence": found.confidence.value,
        "first_iteration": found.first_iteration,
        "last_iteration": found.last_iteration,
        "n_iterations": found.n_iterations,
        "n_allocations": found.n_allocations,
        "block_bytes": found.block_bytes,
        "bytes_per_iteration": found.bytes_per_iteration,
    }


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """The growth on one device: the bytes allocated when each iteration ended, and the lines that grow.

    The lines that grow up to the end of the trace stand first, most bytes first. ``unknown`` says why growth
    per iteration cannot be seen in the file, and is empty where it can; ``never_freed`` stands in for it.
    """

    device: int
    end_bytes: tuple[int, ...]
    lines: tuple[LineGrowth, ...]
    unknown: str
    never_freed: tuple[UnfreedLine, ...] = ()

    @property
    def growing(self) -> tuple[LineGrowth, ...]:
        """The lines that grow up to the end of the trace."""
        return tuple(line for line in self.lines if line.fate.goes_on)

    @property
    def freed_late(self) -> tuple[LineGrowth, ...]:
        """The lines that hold memory of several iterations, and free it at once."""
        return tuple(line for line in self.lines if not line.fate.goes_on)

    @property
    def bytes_per_iteration(self) -> int:
        """The bytes that an iteration adds for good."""
        return sum(line.bytes_per_iteration for line in self.growing)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values in bytes; docs/reference/json.md has the schema."""
        return {
            "device": self.device,
            "kind": device_kind(self.device),
            "unknown": self.unknown or None,
            "iteration_end_bytes": list(self.end_bytes),
            "bytes_per_iteration": self.bytes_per_iteration,
            "lines": [line.to_json() for line in self.lines],
            "never_freed": [line.to_json() for line in self.never_freed],
        }


def report_growth(analysis: DeviceAnalysis) -> GrowthReport:
    """Find the lines of one device that grow."""
    allocated = analysis.replay.allocated.after
    unknown = why_unknown(analysis.phases, n_events=len(analysis.device.events))
    return GrowthReport(
        device=analysis.device.device,
        end_bytes=tuple(int(allocated[it.last_event]) for it in analysis.iterations if it.last_event >= 0),
        lines=by_line(find_growth(analysis)),
        unknown=unknown,
        never_freed=unfreed_lines(analysis) if unknown else (),
    )


def by_line(found: Sequence[Growth]) -> tuple[LineGrowth, ...]:
    """Group the stacks by their innermost line and their fate; those that go on first, most bytes first."""
    groups: dict[tuple[SourceLine | None, Fate], list[Growth]] = {}
    for growth in found:
        groups.setdefault((growth.line, growth.fate), []).append(growth)
    lines = [LineGrowth(tuple(stacks)) for stacks in groups.values()]
    return tuple(sorted(lines, key=lambda one: (not one.fate.goes_on, -one.block_bytes, one.frames)))


@dataclass(frozen=True, slots=True)
class _Kept:
    """Allocations that were live when their iteration ended, and the iterations that made and freed them.

    ``key`` is what they are compared by: a stack or a line. ``is_weak_evidence``: three iterations do.
    ``after_last_step``: made when the last optimizer step of the trace was over.
    """

    row: Int64Column
    key: Int64Column
    made: Int64Column
    freed: Int64Column
    n_bytes: Int64Column
    is_weak_evidence: BoolColumn
    after_last_step: BoolColumn


# Growth of NEVER_FREED, with the bytes of each of its iterations.
_Run = tuple[Growth, Int64Column]


def find_growth(analysis: DeviceAnalysis) -> tuple[Growth, ...]:
    """Find the stacks that grow: those that still do first, most bytes first.

    Without optimizer steps, iterations may be parts of one step, which may keep memory until its end: then
    nothing is found.
    """
    allocations, phases, iteration = analysis.allocations, analysis.phases, analysis.iteration
    stacks, category = analysis.snapshot.stacks, analysis.classification.category
    if not phases.has_steps or phases.n_iterations < LEAST_ITERATIONS:
        return ()
    kept = _kept(allocations, phases, iteration, category, has_frames=np.diff(stacks.offsets) > 0)
    found = list(_never_freed(kept, phases.n_iterations))
    line_of_stack = innermost_frames(stacks, analysis.project.is_project)
    found += _of_lines(kept, phases.n_iterations, allocations, line_of_stack, [one.stack_id for one in found])
    done = {one.stack_id for one in found}
    found += [one for one in _freed_late(kept, phases.n_iterations) if one.stack_id not in done]
    found += _replaced(kept, phases.n_iterations, allocations.requested_bytes)
    order = sorted(found, key=lambda one: (not one.fate.goes_on, -one.block_bytes, one.stack_id))
    lines = ProjectLines(stacks, analysis.project)
    return tuple(read_only(replace(one, frames=lines.of(one.stack_id))) for one in order)


def _kept(
    allocations: AllocationTable,
    phases: Phases,
    iteration: Int32Column,
    category: Int8Column,
    *,
    has_frames: BoolColumn,
) -> _Kept:
    freed_event = allocations.freed_event
    made, freed = iteration.astype(np.int64), np.full(len(allocations), phases.n_iterations, np.int64)
    freed[freed_event >= 0] = phases.iteration[freed_event[freed_event >= 0]]
    row = np.flatnonzero((made >= 0) & (freed > made))
    stack = allocations.stack_id[row].astype(np.int64)
    # Without frames it may be anyone's; where the last iteration was cut short, what it would have freed is
    # still there.
    is_evidence = np.concatenate((has_frames, [False]))[stack] & np.bool_(_is_last_complete(phases))
    is_evidence &= ~np.isin(category[row], _MADE_ON_FIRST_USE)
    steps = np.flatnonzero(phases.certain == Phase.OPTIMIZER)
    after = allocations.alloc_event[row] > (steps[-1] if len(steps) else len(phases.certain))
    after &= made[row] == phases.n_iterations - 1
    return _Kept(row, stack, made[row], freed[row], allocations.block_bytes[row], is_evidence, after)


def _is_last_complete(phases: Phases) -> bool:
    """Whether the last iteration came to its optimizer, or at least to as many events as the one before."""
    last = phases.n_iterations - 1
    first, before, end = np.searchsorted(phases.iteration, (last - 1, last, last + 1)).tolist()
    if phases.ends_in_oom:
        return False
    return bool(np.any(phases.certain[before:end] == Phase.OPTIMIZER)) or end - before >= 0.9 * (
        before - first
    )


def _never_freed(kept: _Kept, n_iterations: int) -> Iterator[Growth]:
    """Find the stacks that keep something of every iteration up to the end."""
    for growth, sums, one in _runs(kept, n_iterations):
        is_weak = growth.confidence is Confidence.WEAK
        if not is_weak or (one.is_weak_evidence.all() and sums.min() * 2 >= sums.max()):
            yield growth


def _of_lines(
    kept: _Kept,
    n_iterations: int,
    allocations: AllocationTable,
    line_of_stack: Int32Column,
    done: Sequence[int],
) -> Iterator[Growth]:
    """Find the lines of the project that grow by one stack or another, none of which does so every time."""
    line = np.where(kept.key >= 0, line_of_stack[kept.key] if len(line_of_stack) else -1, -1).astype(np.int64)
    lines_done = [int(line_of_stack[stack]) for stack in done if stack >= 0]
    wanted = (line >= 0) & ~np.isin(line, lines_done)
    for growth, _, _ in _runs(take(replace(kept, key=line), np.flatnonzero(wanted)), n_iterations):
        if growth.n_iterations >= _LEAST_OF_LINE:
            stacks, place = np.unique(allocations.stack_id[growth.rows], return_inverse=True)
            n_bytes = sums_by(place.reshape(-1), allocations.block_bytes[growth.rows], len(stacks))
            yield replace(growth, stack_id=int(stacks[n_bytes.argmax()]))


def _runs(kept: _Kept, n_iterations: int) -> Iterator[tuple[Growth, Int64Column, _Kept]]:
    """Find the keys that keep memory of every iteration to the end, with the bytes of each and all they keep.

    Not what frees a part of it later: a window that is full does, and what the collector frees.
    """
    # What the last iteration made may still be freed in the next, which the trace does not have.
    outlived = (kept.freed >= kept.made + 2) | (kept.made == n_iterations - 1)
    stays = outlived & (kept.freed == n_iterations)
    late_bytes = dict(_sums(take(kept, np.flatnonzero(outlived & ~stays))))
    for key, one in _groups(take(kept, np.flatnonzero(stays))):
        run = _longer(_last_run(one, n_iterations), _run_after_steps(one, n_iterations))
        if run and late_bytes.get(key, 0) * 10 <= run[0].block_bytes:
            yield *run, one


def _sums(kept: _Kept) -> Iterator[tuple[int, int]]:
    """Sum up the bytes by key."""
    keys, place = np.unique(kept.key, return_inverse=True)
    n_bytes = sums_by(place.reshape(-1), kept.n_bytes, len(keys))
    return zip(keys.tolist(), n_bytes.tolist(), strict=True)


def _groups(kept: _Kept) -> Iterator[tuple[int, _Kept]]:
    """Group the allocations by key, where a key has some of enough iterations."""
    ordered = take(kept, np.lexsort((kept.row, kept.made, kept.key)))
    is_first = np.diff(ordered.key, prepend=-2) != 0
    starts = np.flatnonzero(is_first)
    is_new = is_first | (np.diff(ordered.made + ordered.after_last_step, prepend=-2) != 0)
    n_made = np.add.reduceat(is_new.astype(np.int64), starts) if len(starts) else starts
    ends = [*starts[1:].tolist(), len(ordered.row)]
    for start, end, n in zip(starts.tolist(), ends, n_made.tolist(), strict=False):
        if n >= LEAST_ITERATIONS:
            yield int(ordered.key[start]), take(ordered, np.arange(start, end))


def _last_run(one: _Kept, n_iterations: int) -> _Run | None:
    """Find the last iterations, equally far apart, that each kept something, with the bytes of each.

    None where there are too few, or where the next one should have come before the end of the trace.
    """
    made, sums = _by_iteration(one, one.n_bytes)
    # The last iteration counts only where it has no more than the others kept: the rest may be freed yet.
    if len(made) > 1 and made[-1] == n_iterations - 1 and sums[-1] > sums[:-1].max():
        made, sums = made[:-1], sums[:-1]
    if len(made) < LEAST_ITERATIONS:
        return None
    gaps = np.diff(made)
    period = int(gaps[-1])
    start = _begins(gaps == period)
    least = LEAST_ITERATIONS + (period > 1)
    if len(made) - start < least or int(made[-1]) + period < n_iterations - 1:
        return None
    first, last = int(made[start]), int(made[-1])
    rows = one.row[(one.made >= first) & (one.made <= last)]
    n_bytes = int(sums[start:].sum())
    growth = Growth(int(one.key[0]), Fate.NEVER_FREED, first, last, period, n_bytes, rows)
    return growth, sums[start:]


def _run_after_steps(one: _Kept, n_iterations: int) -> _Run | None:
    """Find the run of memory that is made after each step, in the next iteration; the last step has none."""
    if not one.after_last_step.any():
        return None
    found = _last_run(replace(one, made=one.made + one.after_last_step), n_iterations + 1)
    if not found:
        return None
    growth, sums = found
    first, last = max(growth.first_iteration - 1, 0), growth.last_iteration - 1
    return replace(growth, first_iteration=first, last_iteration=last), sums


def _longer(one: _Run | None, other: _Run | None) -> _Run | None:
    """Choose the run of more iterations; of equals the first."""
    if one and other:
        return other if other[0].n_iterations > one[0].n_iterations else one
    return one or other


def _by_iteration(one: _Kept, n_bytes: Int64Column) -> tuple[Int64Column, Int64Column]:
    """Sum up the bytes by the iteration that made them."""
    made, place = np.unique(one.made, return_inverse=True)
    return made, sums_by(place.reshape(-1), n_bytes, len(made))


def _begins(holds: BoolColumn) -> int:
    """Find the beginning of the run that lasts to the end."""
    others = np.flatnonzero(~holds)
    return int(others[-1]) + 1 if len(others) else 0


def _freed_late(kept: _Kept, n_iterations: int) -> Iterator[Growth]:
    """Find the stacks whose memory of several iterations is freed at once, most of it so.

    A window that frees the oldest in every iteration is none of them.
    """
    is_late = (kept.freed >= kept.made + 2) & (kept.freed < n_iterations)
    for key, one in _groups(take(kept, np.flatnonzero(is_late))):
        freed, place = np.unique(one.freed, return_inverse=True)
        place = place.reshape(-1)
        n_bytes = sums_by(place, one.n_bytes, len(freed))
        n_made = np.bincount(np.unique(np.stack((place, one.made)), axis=1)[0], minlength=len(freed))
        is_bulk = n_made >= LEAST_ITERATIONS
        if 2 * int(n_bytes[is_bulk].sum()) > int(n_bytes.sum()):
            at_once = place == int(np.where(is_bulk, n_bytes, -1).argmax())
            made, rows = one.made[at_once], one.row[at_once]
            n_freed = int(one.n_bytes[at_once].sum())
            yield Growth(key, Fate.FREED_LATE, int(made.min()), int(made.max()), 1, n_freed, rows)


def _replaced(kept: _Kept, n_iterations: int, requested_bytes: Int64Column) -> Iterator[Growth]:
    """Find the stacks that replace their memory by something larger, as ``torch.cat`` in a loop does."""
    # The last event of an optimizer ends an iteration: what is freed right after it is freed in the next.
    is_replaced = (kept.freed <= kept.made + 2) & (
        (kept.freed < n_iterations) | (kept.made >= n_iterations - 2)
    )
    for key, one in _groups(take(kept, np.flatnonzero(is_replaced & (kept.key >= 0)))):
        made, n_bytes = _by_iteration(one, requested_bytes[one.row])
        more = np.where(np.diff(made) == 1, np.diff(n_bytes), 0)
        if made[-1] != n_iterations - 1 or not len(more) or more[-1] <= 0:
            continue
        start = _begins(more > 0)
        if len(made) - start < _LEAST_LARGER:
            start = _begins(more == more[-1])
        if len(made) - start >= _LEAST_EQUALLY_LARGER:
            grown = int(n_bytes[-1] - n_bytes[start])
            rows = one.row[one.made >= made[start]]
            yield Growth(key, Fate.REPLACED, int(made[start]), int(made[-1]), 1, grown, rows)


def why_unknown(phases: Phases, *, n_events: int) -> str:
    """Say why growth cannot be seen in a trace, and what would show it; empty where it can."""
    if not n_events:
        return "the file has no events"
    if not phases.has_steps:
        return (
            "no optimizer step ends an iteration in this trace; without an optimizer, call snapconv.step() "
            "under `snapconv record`"
        )
    n = phases.n_iterations
    if n < LEAST_ITERATIONS:
        return (
            f"the trace has {counted(n, 'iteration')}, and {LEAST_ITERATIONS} are needed; record more "
            "(`snapconv record --iterations 4`)"
        )
    return ""


def growth_notes(analysis: DeviceAnalysis, found: Sequence[Growth]) -> Iterator[Note]:
    """Report how much every iteration adds for good, and which line of the project made the most of it."""
    going_on = [one for one in found if one.fate.goes_on]
    per_iteration = sum(one.bytes_per_iteration for one in going_on)
    if not going_on or per_iteration * _ITERATIONS_THAT_MATTER < analysis.replay.allocated.peak:
        return
    most = going_on[0]
    where = f"; most by {most.line.place}" if most.line else ""
    yield Note(
        "growth",
        f"every iteration from {most.first_iteration} to {most.last_iteration} adds "
        f"{format_bytes(per_iteration)} that are never freed in this trace{where} "
        f"(confidence: {most.confidence.value}); see snapconv growth",
        analysis.device.device,
        is_minor=True,
    )
