"""What is known of every allocation before any rule is evaluated: one table, one row per allocation.

Allocations, phases and roles of stacks in; columns out. It does not depend on categories.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.user_rules import NO_RULES, UserRules
from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    distinct,
    is_among,
    read_only,
    run_starts,
    sums_by,
)
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.phases.trace_phases import Phase, Phases, is_engine
from snapconv.replay.device_replay import AllocationTable, Replay
from snapconv.stacks.stack_roles import StackRoles, innermost_python
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.frame_roles import Role


@dataclass(frozen=True, slots=True)
class Features:
    """The features of every allocation of one device, and the tables that they were computed from.

    Events are indices into the trace. An event that never comes is ``n_events``, for comparisons.
    """

    allocations: AllocationTable
    phases: Phases
    roles: StackRoles
    user_rules: UserRules
    recorded: RecordedMatches | None
    n_events: int
    # Stacks have C++ frames (anywhere in the file).
    has_cpp: bool

    # The requested size in bytes.
    sizes: Int64Column
    # The event of the alloc; -1 for what is pre-existing.
    alloc: EventColumn
    # The end of use: the program's own free (free_requested), or else the end of the block.
    end: EventColumn
    # alloc >= 0: allocated in the trace.
    is_traced: BoolColumn
    # The block is still there when the snapshot is taken.
    is_live_at_dump: BoolColumn
    # end < n_events: the program freed it in the trace.
    is_freed: BoolColumn
    # The phase that the alloc's event shows by itself; 0 where it shows none.
    alloc_phase: Int8Column
    # The last event that shows the phase of the alloc's run; -1 for what is pre-existing.
    alloc_run_end: Int32Column
    # The last event that may belong to the alloc's run: where frees have no stacks, up to the next run.
    alloc_run_last: Int32Column
    # The phase of the run after the alloc's.
    next_run_phase: Int8Column
    # The phase that the event of the end shows by itself; 0 where it shows none.
    end_phase: Int8Column
    # The first event after the alloc that shows backward.
    next_backward: EventColumn
    # The first event after the alloc that shows forward.
    next_forward: EventColumn
    # The iteration of the alloc; -1 for what is pre-existing.
    iteration: Int32Column
    # Allocated by the autograd engine, or in a recorded backward.
    by_engine: BoolColumn
    # Freed by the autograd engine, or in a backward; never where frees have no stacks of their own.
    is_freed_by_engine: BoolColumn
    # Allocated by a hook of a gradient, which the engine called.
    made_in_hook: BoolColumn
    # Freed by such a hook; never where frees have no stacks of their own.
    is_freed_in_hook: BoolColumn
    # Allocated by a module or a loss; where phases were recorded, by anything in forward.
    in_forward: BoolColumn
    # in_forward, and freed inside a module's call before that forward is over: no backward needs it, even if
    # autograd had saved it. Never where frees have no stacks of their own.
    is_freed_in_own_forward: BoolColumn
    # Allocated neither by the engine, nor in forward, nor in a step.
    outside: BoolColumn
    # outside, after a forward began, where a backward comes next: part of the loss, or between modules.
    mid_forward: BoolColumn
    # A module allocates next, before any loss or backward does.
    feeds_module: BoolColumn
    # in_forward, by a module that is no loss.
    by_module: BoolColumn
    # Copied to the device or filled there, and not computed from other tensors.
    from_nothing: BoolColumn
    # outside, in use when the next forward begins, and followed by a module if it is within a forward.
    may_be_input: BoolColumn
    # Without a stack, or with one that has no frame.
    has_no_frames: BoolColumn
    # Pre-existing, live at the dump, and made before the recording: without a frame, and not by the engine.
    unrecorded: BoolColumn
    # Pre-existing, and allocated by a module or a loss as the block's own stack shows: live at the dump.
    preexisting_in_forward: BoolColumn
    # Pre-existing, with a stack, and allocated outside of modules, engine, optimizer and model building.
    preexisting_outside: BoolColumn
    # What was reserved before the trace is too little for it: no step like it came before. None: no trace.
    reserves_more: bool | None

    @property
    def has_stack(self) -> BoolColumn:
        """Allocations that have a stack, if only an empty one."""
        return np.asarray(self.allocations.stack_id >= 0)

    @property
    def lasts_throughout(self) -> BoolColumn:
        """Pre-existing, and still there at the dump."""
        return ~self.is_traced & self.is_live_at_dump

    @property
    def has_next_backward(self) -> BoolColumn:
        """A backward follows."""
        return np.asarray(self.next_backward < self.n_events)

    @property
    def reaches_backward(self) -> BoolColumn:
        """A backward follows, and the allocation is in use when it begins."""
        return self.has_next_backward & (self.end >= self.next_backward)

    def made_through(self, role: Role) -> BoolColumn:
        """Allocations made through code of this role."""
        return self.roles.of(role, self.allocations.stack_id)

    def freed_through(self, role: Role) -> BoolColumn:
        """Allocations freed from code of this role, where the file has the stacks of frees."""
        if not self.phases.free_sites_known:
            return np.zeros(len(self.alloc), np.bool_)
        return self.roles.of(role, self.allocations.free_stack_id)

    def first(self, phase: Phase) -> int:
        """Return the first event that shows a phase; ``n_events`` where none does."""
        return self.phases.first(phase)

    def lines(self) -> Int32Column:
        """Return the innermost Python frame that made each allocation, -1 for none."""
        return self.lines_of(self.allocations.stack_id)

    def lines_of(self, stack_id: Int32Column) -> Int32Column:
        """Return the innermost Python frame of stacks; -1 for none, and for no stack."""
        return np.append(innermost_python(self.roles.stacks), np.int32(-1))[stack_id]

    def mask(self, rows: Int64Column) -> BoolColumn:
        """Rows by number -> one bool per allocation."""
        marked = np.zeros(len(self.alloc), np.bool_)
        marked[rows] = True
        return marked


@stage
def find_features(
    replayed: Replay,
    phases: Phases,
    roles: StackRoles,
    *,
    user_rules: UserRules = NO_RULES,
    recorded: RecordedMatches | None = None,
) -> Features:
    """Compute the features of one device. ``recorded`` are the allocations that a recorder named."""
    allocations = replayed.allocations
    lives = _lives(allocations, phases)
    origins = _origins(allocations, phases, roles, lives)
    found = Features(
        allocations=allocations,
        phases=phases,
        roles=roles,
        user_rules=user_rules,
        recorded=recorded,
        n_events=len(phases.certain),
        has_cpp=roles.has_cpp,
        reserves_more=_reserves_more(replayed),
        sizes=allocations.requested_bytes,
        **lives,
        **origins,
        **_uses(allocations, phases, roles, lives, origins),
    )
    return read_only(found)


# A later step finds most of its memory reserved; a piece more may be for fragments.
_LEAST_RESERVED = 0.1


def _reserves_more(replayed: Replay) -> bool | None:
    """Tell whether the trace reserves memory for what it allocates."""
    reserved, allocated = replayed.reserved, replayed.allocated
    grown = allocated.peak - allocated.at(-1)
    return reserved.peak - reserved.at(-1) > _LEAST_RESERVED * grown if grown else None


# Blocks without frames beside what was placed, in its bytes: the gradients of all of it, and as much again.
_MOST_BESIDE_PLACED = 2

_Columns = dict[str, NDArray[Any]]
# Of events: as int64, or as int32 where there are many.
Rows = NDArray[np.integer[Any]]


def _lives(allocations: AllocationTable, phases: Phases) -> _Columns:
    """Compute the columns about when an allocation came and went."""
    alloc, end = allocations.alloc_event, allocations.freed_event
    is_freed = end >= 0
    run_end, run_last = at(phases.run_end, alloc, -1), at(phases.run_last, alloc, -1)
    return {
        "alloc": alloc,
        "end": np.where(is_freed, end, len(phases.certain)),
        "is_traced": alloc >= 0,
        "is_live_at_dump": allocations.end_event < 0,
        "is_freed": is_freed,
        "alloc_phase": at(phases.certain, alloc),
        "alloc_run_end": run_end,
        # Frees that show nothing may belong to the run up to where the next one begins.
        "alloc_run_last": run_end if phases.free_sites_known else run_last,
        "next_run_phase": at(phases.phase, run_last + 1),
        "end_phase": at(phases.certain, end),
        "next_backward": phases.next_after(Phase.BACKWARD, alloc),
        "next_forward": phases.next_after(Phase.FORWARD, alloc),
        "iteration": at(phases.iteration, alloc, -1),
    }


def _origins(allocations: AllocationTable, phases: Phases, roles: StackRoles, lives: _Columns) -> _Columns:
    """Compute the columns about who made an allocation, and who freed it."""
    stack, alloc_phase, end_phase = allocations.stack_id, lives["alloc_phase"], lives["end_phase"]
    is_module, is_loss = roles.of(Role.MODULE_CALL, stack), roles.of(Role.LOSS, stack)
    by_engine = _is_backward(phases, roles, stack, alloc_phase) & lives["is_traced"]
    in_backward = _is_backward(phases, roles, allocations.free_stack_id, end_phase)
    in_forward = lives["is_traced"] & ~by_engine & _is_forward(phases, roles, stack, alloc_phase)
    freed_in_backward = lives["is_freed"] & (in_backward | (end_phase == Phase.BACKWARD))
    freed_in_module = lives["is_freed"] & roles.of(Role.MODULE_CALL, allocations.free_stack_id) & ~in_backward
    in_own_run = lives["end"] <= lives["alloc_run_last"]
    return {
        "by_engine": by_engine,
        "is_freed_by_engine": np.bool_(phases.free_sites_known) & freed_in_backward,
        "made_in_hook": roles.is_in_hook(stack),
        "is_freed_in_hook": np.bool_(phases.free_sites_known) & roles.is_in_hook(allocations.free_stack_id),
        "in_forward": in_forward,
        "is_freed_in_own_forward": np.bool_(phases.free_sites_known)
        & in_forward
        & freed_in_module
        & in_own_run,
        "outside": lives["is_traced"] & ~by_engine & ~in_forward & (alloc_phase != Phase.OPTIMIZER),
        "by_module": is_module & ~is_loss & in_forward,
        "from_nothing": roles.of(Role.COPY, stack) | roles.of(Role.FACTORY, stack),
        "has_no_frames": _has_no_frames(roles, stack),
        "unrecorded": _unrecorded(allocations, roles, lives),
        "preexisting_in_forward": ~lives["is_traced"] & (is_module | is_loss) & ~roles.of(Role.ENGINE, stack),
    }


def _uses(
    allocations: AllocationTable, phases: Phases, roles: StackRoles, lives: _Columns, origins: _Columns
) -> _Columns:
    """Compute the columns about what an allocation may be used for, by what ran after it."""
    stack = allocations.stack_id
    outside, by_module, n_events = origins["outside"], origins["by_module"], len(phases.certain)
    by_loss = origins["in_forward"] & ~by_module
    mid_forward, feeds_module = _between_modules(
        phases, lives["alloc"], outside, by_module, by_loss, lives["next_backward"]
    )
    may_be_data = mid_forward & _before_graph(phases, lives, origins)
    mid_forward &= ~(may_be_data & _is_data(allocations, phases, roles, lives, origins, feeds_module))
    next_forward, is_placement = lives["next_forward"], roles.of(Role.PLACEMENT, stack)
    used_in_forward = (next_forward < n_events) & (lives["end"] >= next_forward)
    named = is_placement.copy()
    for role in (Role.MODULE_CALL, Role.LOSS, Role.ENGINE, Role.OPTIMIZER, Role.STATES):
        named |= roles.of(role, stack)
    return {
        "mid_forward": mid_forward,
        "feeds_module": feeds_module,
        "may_be_input": outside & ~is_placement & (~mid_forward | feeds_module) & used_in_forward,
        "preexisting_outside": ~lives["is_traced"] & ~origins["has_no_frames"] & ~named,
    }


def _is_data(
    allocations: AllocationTable,
    phases: Phases,
    roles: StackRoles,
    lives: _Columns,
    origins: _Columns,
    feeds_module: BoolColumn,
) -> BoolColumn:
    """Find what lines outside of modules make that may be part of a batch, between modules that keep nothing.

    What is computed once data has come is part of it, also by modules that have no weights, as a spectrogram
    is, or an augmentation: but not what layers made of it, such as the answers of a teacher. What is as large
    as a copied batch is that batch, mixed or augmented.
    """
    stack, sizes = allocations.stack_id, allocations.requested_bytes
    outside, alloc = origins["outside"], lives["alloc"]
    is_copied = roles.of(Role.COPY, stack) | roles.of(Role.COLLECTED, stack)
    of_layers = roles.of(Role.LAYER, stack) | roles.of(Role.COMPILED, stack)
    data, made = np.sort(alloc[outside & is_copied]), np.sort(alloc[origins["in_forward"]])
    layers = np.sort(alloc[origins["in_forward"] & of_layers])
    found = origins["from_nothing"] | roles.of(Role.COLLECTED, stack)
    found |= outside & (last_before(data, alloc) > last_before(made, alloc))
    is_renewed = is_among(stack, stack[outside & lives["is_freed"]])
    comes = np.maximum(last_before(data, alloc), last_before(phases.events_of_training, alloc))
    may_be = (comes > last_before(layers, alloc)) | is_among(sizes, distinct(sizes[outside & is_copied]))
    found |= feeds_module & is_renewed & may_be
    return found


def _is_backward(phases: Phases, roles: StackRoles, stack_id: Int32Column, phase: Int8Column) -> BoolColumn:
    """Whether the engine was at work: by the recorded phases, or else by the stacks."""
    if phases.is_recorded:
        return np.asarray(phase == Phase.BACKWARD)
    return is_engine(roles, stack_id)


def _is_forward(phases: Phases, roles: StackRoles, stack_id: Int32Column, phase: Int8Column) -> BoolColumn:
    by_stack = roles.of(Role.MODULE_CALL, stack_id) | roles.of(Role.LOSS, stack_id)
    if phases.is_recorded:
        return np.asarray(by_stack | (phase == Phase.FORWARD))
    return by_stack


def _between_modules(
    phases: Phases,
    alloc: EventColumn,
    outside: BoolColumn,
    by_module: BoolColumn,
    by_loss: BoolColumn,
    next_backward: EventColumn,
) -> tuple[BoolColumn, BoolColumn]:
    """Compute the columns ``mid_forward`` and ``feeds_module``.

    Where a loss or backward comes next, an allocation belongs to the loss and is no input.
    """
    n_events = len(phases.certain)
    carried, run_last = at(phases.phase, alloc), at(phases.run_last, alloc)
    # Gradients may be freed just before backward. What comes after a run is where another one begins.
    begins = run_starts(phases.phase)
    after = next_of(begins[phases.phase[begins] != Phase.OTHER], run_last, n_events)
    is_last = at(phases.phase, after) == Phase.BACKWARD
    next_module = next_of(alloc[by_module], alloc, n_events)
    next_loss = next_of(alloc[by_loss], alloc, n_events)
    mid_forward = outside & (carried == Phase.FORWARD) & is_last
    return mid_forward, next_module < np.minimum(next_loss, next_backward)


def _before_graph(phases: Phases, lives: _Columns, origins: _Columns) -> BoolColumn:
    """Made before the first module that keeps anything for the next backward, if one does.

    What ran before it was another forward, such as one that acts or labels without gradients.
    """
    kept = (
        origins["is_freed_by_engine"] if phases.free_sites_known else lives["end"] >= lives["next_backward"]
    )
    n_events, alloc = len(phases.certain), lives["alloc"]
    first = first_before(lives["next_backward"], alloc, np.flatnonzero(origins["by_module"] & kept), n_events)
    return np.asarray((alloc < first) & (first < n_events))


def _has_no_frames(roles: StackRoles, stack: Int32Column) -> BoolColumn:
    # What -1 finds stands at the end.
    return np.append(roles.is_empty, True)[stack]


def _unrecorded(allocations: AllocationTable, roles: StackRoles, lives: _Columns) -> BoolColumn:
    """Find what was made before the recording began.

    With Python-only stacks the engine's blocks have no frame either. Where more bytes have frames than have
    none, and a model as large as these was placed in the recording, they are its gradients.
    """
    stack, n_bytes = allocations.stack_id, allocations.requested_bytes
    preexisting = ~lives["is_traced"] & lives["is_live_at_dump"]
    has_no_frames = _has_no_frames(roles, stack)
    named = preexisting & ~has_no_frames
    found = preexisting & has_no_frames
    placed = named & roles.of(Role.PLACEMENT, stack)
    # The engine may keep workspaces beside the gradients. A metric may be all that was placed.
    has_model = placed.any() and n_bytes[found].sum() <= _MOST_BESIDE_PLACED * n_bytes[placed].sum()
    if not roles.has_cpp and has_model and n_bytes[found].sum() <= n_bytes[named].sum():
        return np.zeros(len(stack), np.bool_)
    return np.asarray(found)


def of_fullest(rows: Int64Column, part: NDArray[np.integer[Any]], n_bytes: Int64Column) -> Int64Column:
    """Those of the rows whose part (an iteration, a forward) has most bytes of them.

    Of equals the last part: of the first iterations less is known. ``part`` and ``n_bytes`` have one entry
    per allocation.
    """
    if not len(rows):
        return rows
    found, inverse = np.unique(part[rows], return_inverse=True)
    totals = sums_by(inverse, n_bytes[rows], len(found))
    return np.asarray(rows[part[rows] == found[totals == totals.max()][-1]])


def at(column: NDArray[Any], rows: NDArray[np.integer[Any]], missing: int = 0) -> NDArray[Any]:
    """``column[rows]``, with ``missing`` where a row is -1 or beyond the end."""
    if not len(column):
        return np.full(len(rows), missing, column.dtype)
    known = (rows >= 0) & (rows < len(column))
    return np.where(known, column[np.where(known, rows, 0)], np.asarray(missing, column.dtype))


def next_of(events: Rows, after: Rows, missing: int) -> Rows:
    """For each event the first later one of ``events``."""
    found = np.append(np.sort(events), events.dtype.type(missing))
    return np.asarray(found[np.searchsorted(found[:-1], after, side="right")])


def last_before(events: Rows, before: Rows) -> Rows:
    """For each event the last earlier one of ``events``, which are in order; -1 where there is none."""
    found = np.append(events, events.dtype.type(-1))
    return np.asarray(found[np.searchsorted(events, before) - 1])


def first_before(following: EventColumn, alloc: EventColumn, rows: Int64Column, missing: int) -> EventColumn:
    """For each row the first alloc of the given rows that the same event follows; ``missing`` for none."""
    first = np.full(missing + 1, missing, alloc.dtype)
    np.minimum.at(first, following[rows], alloc[rows])
    return np.asarray(first[following])
