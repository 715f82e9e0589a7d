"""Replay one device: every allocation with its size, and the four curves with their peaks.

What was live before the first event follows from the final segments and the trace undone, because
such blocks are never in the trace, and a ring buffer overwrites the oldest events. Columns in,
columns out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from snapconv.allocator.allocator_settings import MIN_BLOCK_BYTES
from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int32Column,
    Int64Column,
    chunks,
    count_of,
    first_known,
    has_code,
    is_among,
    offsets_of,
    read_only,
    rows_of,
    values_of,
)
from snapconv.notes import Note
from snapconv.replay.block_sizes import (
    BlockSizes,
    SizeCheck,
    derive_checked_sizes,
    segment_moves,
    size_notes,
)
from snapconv.replay.lifetimes import Lifetimes, pair_events, real_events
from snapconv.replay.rounding import RoundingRules
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot, SegmentSource, Snapshot
from snapconv.snapshot.segment_table import BlockState
from snapconv.snapshot.stack_table import FrameTable
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.backends import NO_ALLOCATOR
from snapconv.units import counted, format_bytes

_CURVES_OF_BLOCKS = ("requested", "allocated", "active")
# A hundredth of the peak: a smaller amount of bytes that may be missing is a minor note.
_MINOR_PART = 100


@dataclass(frozen=True)
class AllocationTable:
    """Every allocation of one device, one row per lifetime: pre-existing ones first, then by event.

    Events are row numbers of the EventTable, -1 where missing: no ``alloc_event`` means
    pre-existing, no ``end_event`` live at the dump. ``end_event`` is where the memory became free
    again, ``free_requested_event`` where the program freed it. Ids are -1 where the file does not
    contain it. ``is_exact`` is False where the block's size is only known to be between the rounded
    request (which is in ``block_bytes``) and the space it had.
    """

    alloc_event: EventColumn
    free_requested_event: EventColumn
    free_completed_event: EventColumn
    end_event: EventColumn
    addr: Int64Column
    stream: Int64Column
    requested_bytes: Int64Column
    block_bytes: Int64Column
    is_exact: BoolColumn
    is_pending_at_end: BoolColumn
    pool_id: Int32Column
    stack_id: Int32Column
    free_stack_id: Int32Column

    def __len__(self) -> int:
        return len(self.addr)

    @cached_property
    def freed_event(self) -> EventColumn:
        """The event that ends each as allocated memory: its free_requested, or else its end."""
        return first_known(self.free_requested_event, self.end_event)

    def bytes_of(self, rows: Int64Column | BoolColumn) -> int:
        """Return the bytes of some allocations."""
        return int(self.block_bytes[rows].sum())

    def live_at(self, event: int) -> BoolColumn:
        """Return the mask of what is allocated just after an event; -1: before the first one."""
        freed = self.freed_event
        return (self.alloc_event <= event) & ((freed < 0) | (freed > event))

    @cached_property
    def is_freed_late(self) -> BoolColumn:
        """The mask of frees that waited, because another stream used the block (record_stream).

        Without that torch completes a free in the next event (CUDACachingAllocator.cpp, 2.0 to
        2.15). Where the file ends first, or has lost the completion, the block's state at the dump
        decides.
        """
        is_late = self.free_completed_event > self.free_requested_event + 1
        waits_at_end = (self.end_event < 0) & self.is_pending_at_end
        return (self.free_requested_event >= 0) & (is_late | waits_at_end)

    def waiting_at(self, event: int) -> BoolColumn:
        """Return the mask of what the program has freed, and another stream still uses."""
        is_open = (self.end_event < 0) | (self.end_event > event)
        return self.is_freed_late & (self.free_requested_event <= event) & is_open


class Curve:
    """Bytes before the first event, and after each one (int64, as long as the EventTable).

    The latter are computed when they are first needed, and stay: 10^7 events have 80 MB of them,
    and a report needs one curve of four. ``at`` computes a single value without them.
    """

    def __init__(
        self,
        start: int,
        make: Callable[[], Int64Column],
        at: Callable[[int], int] | None = None,
    ) -> None:
        self.start = start
        self._make = make
        self._at = at or (lambda event: int(self.after[event]))

    @cached_property
    def after(self) -> Int64Column:
        """Bytes after each event; read-only."""
        after = self._make()
        after.setflags(write=False)
        return after

    def __getstate__(self) -> dict[str, object]:
        return {"start": self.start, "after": self.after}  # the functions cannot be pickled

    @property
    def end(self) -> int:
        """Bytes after the last event."""
        return int(self.after[-1]) if len(self.after) else self.start

    @cached_property
    def peak_event(self) -> int:
        """The first event after which the bytes are maximal; -1 if they never exceed the start."""
        after = self.__dict__.get("after")
        if after is None:
            after = self._make()  # a peak needs the values once: they do not stay
        if not len(after):
            return -1
        event = int(after.argmax())
        return event if after[event] > self.start else -1

    @property
    def peak(self) -> int:
        """The most bytes at any moment."""
        return self.at(self.peak_event)

    def at(self, event: int) -> int:
        """Return bytes just after an event; -1: before the first one."""
        if event < 0:
            return self.start
        return int(self.after[event]) if "after" in self.__dict__ else self._at(event)


@dataclass(frozen=True, slots=True)
class Replay:
    """One device, replayed. All bytes; see Curve for the moments.

    ``requested`` and ``active`` count until free_completed, ``allocated`` until free_requested, as
    torch's own statistics do; ``reserved`` moves with the segments. ``lower_bounds`` names the
    curves that are lower bounds. ``n_missing_events`` counts allocs and frees that must have been
    but are not in the trace, within it.
    """

    allocations: AllocationTable
    requested: Curve
    allocated: Curve
    active: Curve
    reserved: Curve
    rules: RoundingRules
    size_check: SizeCheck
    n_missing_events: int
    notes: tuple[Note, ...]
    lower_bounds: frozenset[str] = frozenset()


@stage
def replay(snapshot: Snapshot, device: DeviceSnapshot) -> Replay:
    """Replay one device of a snapshot; pure, linear in its events (plus a sort by address)."""
    device = replace(device, events=real_events(device.events))
    lifetimes = pair_events(device.events, device.blocks)
    settings = snapshot.settings_of(device)
    backend = snapshot.era.backend
    sizes, check = derive_checked_sizes(device, lifetimes, settings, backend=backend)
    allocations = _allocation_table(device, lifetimes, sizes)
    n_events = len(device.events)
    curves = {name: _block_curve(allocations, n_events, name) for name in _CURVES_OF_BLOCKS}
    reserved, is_raised = _reserved_curve(device, curves["active"])
    lower_bounds: tuple[str, ...] = ()
    if device.source is SegmentSource.PART_OF_TRACE:
        lower_bounds = ("reserved", *_CURVES_OF_BLOCKS)
    elif is_raised:
        lower_bounds = ("reserved",)
    result = Replay(
        allocations=allocations,
        **curves,
        reserved=reserved,
        rules=sizes.rules,
        size_check=check,
        n_missing_events=lifetimes.n_orphan_frees + lifetimes.n_implicit_frees,
        notes=(),
        lower_bounds=frozenset(lower_bounds),
    )
    has_allocator = snapshot.era.backend != NO_ALLOCATOR
    frames = snapshot.stacks.frames
    notes = _notes(device, lifetimes, sizes, result, frames, has_allocator=has_allocator)
    device_notes = tuple(replace(note, device=device.device) for note in notes if note)
    return replace(result, notes=device_notes)


def _allocation_table(
    device: DeviceSnapshot, lifetimes: Lifetimes, sizes: BlockSizes
) -> AllocationTable:
    events = device.events
    alloc = lifetimes.alloc_event
    # A value comes from the alloc, else from the final block, else from the first free.
    event = first_known(alloc, lifetimes.free_requested_event, lifetimes.end_event)
    table = AllocationTable(
        alloc_event=alloc,
        free_requested_event=lifetimes.free_requested_event,
        free_completed_event=lifetimes.free_completed_event,
        end_event=lifetimes.end_event,
        addr=lifetimes.addr,
        stream=values_of(events.stream, event),
        requested_bytes=values_of(events.size, event),
        block_bytes=values_of(sizes.event_bytes, alloc),
        is_exact=np.ones(len(alloc), bool),
        is_pending_at_end=np.zeros(len(alloc), bool),
        pool_id=events.pools(event),
        stack_id=values_of(events.stack_id, alloc),
        free_stack_id=values_of(events.stack_id, lifetimes.free_requested_event),
    )
    _complete_live(table, lifetimes, device)
    _complete_sizes(table, lifetimes, sizes)
    return read_only(table)


def _complete_live(
    table: AllocationTable, lifetimes: Lifetimes, device: DeviceSnapshot
) -> None:
    """Fill in the values of the final blocks and their segments, in allocations that are live."""
    blocks = device.blocks
    segments = device.segments
    live = rows_of(lifetimes.block_id >= 0)
    block = lifetimes.block_id[live]
    segment = blocks.segment_id[block]
    table.block_bytes[live] = blocks.block_bytes[block]
    table.is_pending_at_end[live] = has_code(blocks.state[block], BlockState.PENDING_FREE)
    table.pool_id[live] = first_known(segments.pool_id[segment], table.pool_id[live])
    table.stack_id[live] = first_known(table.stack_id[live], blocks.stack_id[block])
    is_old = table.alloc_event[live] < 0
    old = live[is_old]
    table.requested_bytes[old] = blocks.requested_bytes[block[is_old]]
    table.stream[old] = segments.stream[segment[is_old]]


def _complete_sizes(
    table: AllocationTable, lifetimes: Lifetimes, sizes: BlockSizes
) -> None:
    """Fill in the sizes of blocks that were allocated before the trace and freed in it.

    A remainder that the allocator splits off is never smaller than ``least_remainder``, and no free
    block of the pool is either: a smaller gap up to the next neighbour belongs to the block itself
    (0 of 17,295 wrong when cutting real traces where the size is known).
    """
    rows = rows_of((lifetimes.alloc_event < 0) & (lifetimes.block_id < 0))
    addr = table.addr[rows]
    rounded = sizes.rules.rounded(table.requested_bytes[rows])
    space = _space(addr, sizes.least_space)
    least_remainder = sizes.rules.least_remainder(rounded, addr)
    fits = space >= rounded
    fills = fits & (space < rounded + least_remainder)
    is_tight = fits & (_max_excess(space, rounded, least_remainder) == 0)
    table.block_bytes[rows] = np.where(fills, space, rounded)
    table.is_exact[rows] = fills | is_tight | (least_remainder <= MIN_BLOCK_BYTES)


def _space(addr: Int64Column, least_space: dict[int, int]) -> Int64Column:
    spaces = (least_space.get(number, -1) for number in addr.tolist())
    return np.fromiter(spaces, np.int64, len(addr))


def _max_excess(
    space: Int64Column, rounded: Int64Column, least_remainder: Int64Column
) -> Int64Column:
    """Return the most bytes beyond its rounded request that a block can have, if space is left.

    It has less than would have been split off, and what it leaves free is no less than that.
    """
    excess = np.minimum(space - rounded - least_remainder, least_remainder - 1)
    whole_blocks = excess // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES
    return np.asarray(np.maximum(whole_blocks, 0))


def _block_curve(allocations: AllocationTable, n_events: int, name: str) -> Curve:
    n_bytes = (
        allocations.requested_bytes if name == "requested" else allocations.block_bytes
    )
    # A free requested before the first event leaves no trace but its completion: until then the
    # block counts as allocated, since it was in use shortly before.
    end = allocations.freed_event if name == "allocated" else allocations.end_event
    alloc = allocations.alloc_event
    n_before = int(np.searchsorted(alloc, 0))  # pre-existing allocations stand first

    def make() -> Int64Column:
        # An event begins one allocation at most, and ends one at most. What has no end (-1) is
        # subtracted from the last entry, which is no event.
        change = np.zeros(n_events + 1, np.int64)
        # Without the pre-existing rows, slices are three times as fast as an index.
        np.add.at(change, alloc[n_before:], n_bytes[n_before:])
        for part in chunks(len(end)):
            np.subtract.at(change, end[part], n_bytes[part])
        change[0] += start
        return np.cumsum(change[:-1], out=change[:-1])

    def at(event: int) -> int:
        n_begun = int(np.searchsorted(alloc, event, side="right"))
        begun_end = end[:n_begun]
        is_live = (begun_end < 0) | (begun_end > event)
        return int(n_bytes[:n_begun][is_live].sum())

    start = int(n_bytes[:n_before].sum())
    return Curve(start, make, at)


def _reserved_curve(device: DeviceSnapshot, active: Curve) -> tuple[Curve, bool]:
    """Return the curve, and whether it was raised.

    It is raised to 0, and without the file's segments to what is in use.
    """
    n_events = len(device.events)
    moves = segment_moves(device.events)
    if not len(moves) and not device.has_segments:
        return active, True
    recorded = _reserved_totals(device, moves)
    minimum = np.zeros_like(recorded)
    if not device.has_segments:
        # Nothing is obtained or returned between two moves: the most that was in use there was
        # reserved.
        in_use = np.append(active.start, active.after)
        minimum = np.maximum.reduceat(in_use, np.append(0, moves + 1))
    totals = np.maximum(recorded, minimum)

    def make() -> Int64Column:
        bounds = np.concatenate(([0], moves, [n_events]))
        return np.repeat(totals, np.diff(bounds))

    def at(event: int) -> int:
        return int(totals[np.searchsorted(moves, event, side="right")])

    curve = Curve(int(totals[0]), make, at)
    curve.peak_event = int(np.append(-1, moves)[totals.argmax()])
    return curve, bool(np.any(totals > recorded))


def _reserved_totals(device: DeviceSnapshot, moves: Int64Column) -> Int64Column:
    """Return the bytes reserved before the first move of segments, and after each one.

    The last of them are those of the segments at the dump.
    """
    action = device.events.action[moves]
    n_bytes = device.events.size[moves]
    is_obtained = is_among(action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    change = np.where(is_obtained, n_bytes, -n_bytes)
    totals = offsets_of(change)
    totals += int(device.segments.total_bytes.sum()) - int(totals[-1])
    return totals


_COUNTED_NOTES = {
    "orphan-free": (
        "frees have no alloc although their address was used before (lost or skipped events): they "
        "are left out, so curves may be too high before and too low after them"
    ),
    "implicit-free": (
        "allocations have no free, but their address is allocated again: they are "
        "taken as freed just then, so curves may be too high before"
    ),
    "missing-from-segments": (
        "allocations are live at the trace's end but not in the segments (freed between the two "
        "copies, or the dump covers one memory pool only): they count as live"
    ),
    "trace-contradicts-segments": (
        "events do not fit the final segments (blocks that overlap or are outside): the block "
        "sizes of these are their rounded requests, so allocated and active bytes are approximate"
    ),
}


def _notes(
    device: DeviceSnapshot,
    lifetimes: Lifetimes,
    sizes: BlockSizes,
    result: Replay,
    frames: FrameTable,
    *,
    has_allocator: bool,
) -> Iterator[Note | None]:
    """Yield the notes on figures that are not exact, None for one that is."""
    yield _inexact_note(result, sizes)
    yield from size_notes(result.size_check, result.rules)
    counts = (
        lifetimes.n_orphan_frees,
        lifetimes.n_implicit_frees,
        lifetimes.n_missing_from_segments * device.has_segments,
        sizes.n_conflicts * device.has_segments,
    )
    for (slug, text), count in zip(_COUNTED_NOTES.items(), counts, strict=True):
        yield Note(slug, f"{count} {text}") if count else None
    if has_allocator:
        yield _segments_note(device, result)
    yield _pending_note(device.events, result.allocations)
    yield _skipped_note(device.events, result.allocations)
    if not device.is_host and _has_graph_trees(frames):
        # They restore a pool by freeing and allocating everything in it at once.
        yield Note(
            "cuda-graph-pools",
            "CUDA graph trees were used: restoring a pool shows as bursts of frees and "
            "allocs that never happened, so a peak within one is too high, and replays "
            "of a graph leave no events",
        )
    yield _checkpoint_note(device.events, result.active)


def _segments_note(device: DeviceSnapshot, result: Replay) -> Note | None:
    """Say that reserved bytes are missing or raised, and what the figures are then."""
    if device.has_segments:
        message = (
            "reserved bytes would fall below zero: events are missing, and the figures are "
            "too low"
        )
        return Note("negative-bytes", message) if result.lower_bounds else None
    basis = "every free in its trace has an alloc, so memory is replayed from nothing"
    if device.source is SegmentSource.PART_OF_TRACE:
        basis = (
            "its trace begins with memory in use that it does not show: every figure "
            "is a lower bound"
        )
    elif result.lower_bounds:
        basis += (
            "; the trace has no segments either, so reserved bytes are at least what was "
            "in use"
        )
    return Note("no-segments", f"the file has no segments; {basis}")


def _pending_note(events: EventTable, table: AllocationTable) -> Note | None:
    # A trace that has no request at all lost none: recording was set to skip them.
    has_requests = np.any(has_code(events.action, Action.FREE_REQUESTED))
    completes = (table.free_completed_event >= 0) & has_requests
    earlier = (table.alloc_event < 0) & (table.free_requested_event < 0)
    waits = table.is_pending_at_end
    in_use_at_dump = "but still in use by a stream at the dump"
    cases = (
        (waits & ~earlier, in_use_at_dump),
        (waits & earlier, f"{in_use_at_dump}, and counted as allocated"),
        (
            completes & earlier,
            "before the first event, but counted as allocated until free_completed",
        ),
    )
    parts = []
    for is_case, moment in cases:
        if is_case.any():
            n_bytes = format_bytes(table.bytes_of(is_case))
            blocks = counted(
                count_of(is_case), f"block ({n_bytes}) was", f"blocks ({n_bytes}) were"
            )
            parts.append(f"{blocks} freed {moment}")
    return Note("pending-free", "; ".join(parts)) if parts else None


def _inexact_note(result: Replay, sizes: BlockSizes) -> Note | None:
    allocations = result.allocations
    rules = result.rules
    rows = ~allocations.is_exact
    if not rows.any():
        return None
    rounded = allocations.block_bytes[rows]
    addr = allocations.addr[rows]
    space = _space(addr, sizes.least_space)
    excess = _max_excess(space, rounded, rules.least_remainder(rounded, addr))
    n_bytes = int(excess.sum())
    if not n_bytes:
        return None
    blocks = counted(len(rounded), "block")
    return Note(
        "inexact-block-sizes",
        f"allocated bytes may be up to {format_bytes(n_bytes)} higher: the exact sizes "
        f"of {blocks} from before the trace are not recorded",
        is_minor=n_bytes * _MINOR_PART <= result.allocated.peak,
    )


def _skipped_note(events: EventTable, allocations: AllocationTable) -> Note | None:
    has_completed = bool(np.any(has_code(events.action, Action.FREE_COMPLETED)))
    if not has_completed:
        ended_at_request = (allocations.end_event >= 0) & (
            allocations.free_completed_event < 0
        )
        message = (
            "the trace has no free_completed events: memory is taken as free at free_requested, so "
            "active bytes are too low while a stream still used a block"
        )
        return Note("skipped-actions", message) if ended_at_request.any() else None
    has_alloc = np.any(has_code(events.action, Action.ALLOC))
    if len(events) > 1 and not has_alloc:
        return Note(
            "skipped-actions",
            "the trace has no alloc events: only what was live at the ends is known",
        )
    return None


def _has_graph_trees(frames: FrameTable) -> bool:
    restores = any("setCheckpointPoolState" in name for name in set(frames.names))
    return restores or any(name.endswith("cudagraph_trees.py") for name in frames.files)


def _checkpoint_note(events: EventTable, active: Curve) -> Note | None:
    """Compare with the active total that torch itself wrote at every ``snapshot`` event."""
    checkpoints = rows_of(has_code(events.action, Action.SNAPSHOT) & (events.size > 0))
    if not len(checkpoints):
        return None
    difference = np.abs(active.after[checkpoints] - events.size[checkpoints])
    n_different = np.count_nonzero(difference)
    if not n_different:
        return None
    return Note(
        "checkpoint-mismatch",
        f"at {n_different} of {len(checkpoints)} snapshot events the active bytes differ from "
        f"torch's own count, by up to {format_bytes(int(difference.max()))}",
    )
