"""The features of every allocation: columns that are known before any fact decides a category."""

from dataclasses import dataclass
from functools import cached_property
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
    has_code,
    is_among,
    last_before,
    next_of,
    rows_of,
    run_starts,
    sums_by,
)
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.phases.trace_phases import Phase, Phases, is_engine
from snapconv.replay.device_replay import AllocationTable, Replay
from snapconv.stacks.stack_roles import StackRoles
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.frame_patterns import Role

# A later step finds most of its memory reserved; a piece more may be for fragments.
_LEAST_RESERVED = 0.1
# Blocks without frames beside what was placed, in its bytes: the gradients of all of it, and as
# much again.
_MOST_BESIDE_PLACED = 2
# Code that is no line of the program's own between modules.
_ROLES_INSIDE = (
    Role.MODULE_CALL,
    Role.LOSS,
    Role.ENGINE,
    Role.OPTIMIZER,
    Role.STATES,
    Role.PLACEMENT,
)


@dataclass(frozen=True)
class Features:
    """The features of every allocation of one device: a column is computed when it is first needed.

    Events are indices into the trace. An event that never comes is ``n_events``, for comparisons.
    """

    allocations: AllocationTable
    phases: Phases
    roles: StackRoles
    user_rules: UserRules
    # The allocations that a recorder named.
    recorded: RecordedMatches | None
    # What was reserved before the trace is too little for it: no step like it came before. None: no
    # trace, or one in which the allocated bytes do not grow.
    reserves_more: bool | None
    n_events: int
    # Stacks have C++ frames, anywhere in the file.
    has_cpp: bool
    # The requested size in bytes.
    sizes: Int64Column
    # The event of the alloc; -1 for what is pre-existing.
    alloc: EventColumn
    # A position in profiler_categories.CATEGORIES, -1 for none; None where torch.profiler wrote
    # nothing.
    profiled: Int8Column | None = None

    # --- when an allocation came and went

    @cached_property
    def is_freed(self) -> BoolColumn:
        """The program freed it in the trace."""
        return self.allocations.freed_event >= 0

    @cached_property
    def end(self) -> EventColumn:
        """The event of the program's own free (free_requested), or else of the end of the block."""
        return np.where(
            self.is_freed, self.allocations.freed_event, np.int32(self.n_events)
        )

    @cached_property
    def is_traced(self) -> BoolColumn:
        """Allocated in the trace."""
        return self.alloc >= 0

    @cached_property
    def is_live_at_dump(self) -> BoolColumn:
        """The block is still there when the snapshot is taken."""
        return self.allocations.end_event < 0

    @cached_property
    def lasts_throughout(self) -> BoolColumn:
        """Pre-existing, and still there at the dump."""
        return ~self.is_traced & self.is_live_at_dump

    @cached_property
    def alloc_phase(self) -> Int8Column:
        """The phase that the alloc's event shows by itself; 0 where it shows none."""
        return at(self.phases.certain, self.alloc)

    @cached_property
    def end_phase(self) -> Int8Column:
        """The phase that the event of the end shows by itself; 0 where it shows none."""
        return at(self.phases.certain, self.allocations.freed_event)

    @cached_property
    def alloc_run_end(self) -> EventColumn:
        """The last event that shows the phase of the alloc's run; -1 for what is pre-existing."""
        return at(self.phases.run_end, self.alloc, -1)

    @cached_property
    def next_backward(self) -> EventColumn:
        """The first event after the alloc that shows backward."""
        return self.phases.next_after(Phase.BACKWARD, self.alloc)

    @cached_property
    def next_forward(self) -> EventColumn:
        """The first event after the alloc that shows forward."""
        return self.phases.next_after(Phase.FORWARD, self.alloc)

    @cached_property
    def has_next_backward(self) -> BoolColumn:
        """A backward follows."""
        return self.next_backward < self.n_events

    @cached_property
    def reaches_backward(self) -> BoolColumn:
        """A backward follows, and the allocation is in use when it begins."""
        return self.has_next_backward & (self.end >= self.next_backward)

    @cached_property
    def iteration(self) -> EventColumn:
        """The iteration of the alloc; -1 for what is pre-existing."""
        return at(self.phases.iteration, self.alloc, -1)

    @cached_property
    def alloc_run_last(self) -> Int32Column:
        """The last event that may be of the alloc's run.

        Where frees have no stacks, up to the next run.
        """
        if self.phases.free_sites_known:
            return self.alloc_run_end
        return at(self.phases.run_last, self.alloc, -1)

    # --- who made it, and who freed it

    @cached_property
    def has_stack(self) -> BoolColumn:
        """Has a stack, if only an empty one."""
        return self.allocations.stack_id >= 0

    @cached_property
    def has_no_frames(self) -> BoolColumn:
        """Without a stack, or with one that has no frame."""
        is_empty = np.append(self.roles.is_empty, np.True_)
        return np.take(is_empty, self.allocations.stack_id)

    def made_through(self, role: Role) -> BoolColumn:
        """Allocations made through code of this role; read-only."""
        if role not in self._made_through:
            marked = self.roles.of(role, self.allocations.stack_id)
            marked.setflags(write=False)
            self._made_through[role] = marked
        return self._made_through[role]

    @cached_property
    def _made_through(self) -> dict[Role, BoolColumn]:
        return {}

    def freed_through(self, role: Role) -> BoolColumn:
        """Allocations freed from code of this role, where the file has the stacks of frees."""
        return self._if_free_sites_known(
            self.roles.of(role, self.allocations.free_stack_id)
        )

    def _if_free_sites_known(self, marked: BoolColumn) -> BoolColumn:
        return marked if self.phases.free_sites_known else np.zeros(len(marked), bool)

    def _is_engine_at_work(self, stack_id: Int32Column, phase: Int8Column) -> BoolColumn:
        """Whether the engine was at work: by the recorded phases, or else by the stacks."""
        if self.phases.is_recorded:
            return has_code(phase, Phase.BACKWARD)
        return is_engine(self.roles, stack_id)

    @cached_property
    def by_engine(self) -> BoolColumn:
        """Allocated by the autograd engine, or in a recorded backward."""
        is_at_work = self._is_engine_at_work(self.allocations.stack_id, self.alloc_phase)
        return self.is_traced & is_at_work

    @cached_property
    def is_freed_by_engine(self) -> BoolColumn:
        """Freed by the autograd engine, or in a backward.

        Never where frees have no stacks of their own.
        """
        is_at_work = self._is_engine_at_work(self.allocations.free_stack_id, self.end_phase)
        is_at_work = is_at_work | has_code(self.end_phase, Phase.BACKWARD)
        return self._if_free_sites_known(self.is_freed & is_at_work)

    @cached_property
    def _is_forward_code(self) -> BoolColumn:
        """Made through a module or a loss, whoever called it."""
        return self.made_through(Role.MODULE_CALL) | self.made_through(Role.LOSS)

    @cached_property
    def in_forward(self) -> BoolColumn:
        """Allocated by a module or a loss; where phases were recorded, by anything in forward."""
        marked = self._is_forward_code
        if self.phases.is_recorded:
            marked = marked | has_code(self.alloc_phase, Phase.FORWARD)
        return marked & self.is_traced & ~self.by_engine

    @cached_property
    def by_module(self) -> BoolColumn:
        """Allocated in forward by a module that is no loss."""
        is_module = self.made_through(Role.MODULE_CALL) & ~self.made_through(Role.LOSS)
        return self.in_forward & is_module

    @cached_property
    def is_freed_in_own_forward(self) -> BoolColumn:
        """Made in forward, and freed inside a module's call before that forward is over.

        No backward needs it, even if autograd had saved it. Never where frees have no stacks of
        their own.
        """
        is_backward = self._is_engine_at_work(
            self.allocations.free_stack_id, self.end_phase
        )
        is_own_run = self.is_freed & ~self.outlives_run
        return (
            self.in_forward
            & self.freed_through(Role.MODULE_CALL)
            & ~is_backward
            & is_own_run
        )

    @cached_property
    def made_in_step(self) -> BoolColumn:
        """Allocated where an event shows an optimizer's step."""
        return has_code(self.alloc_phase, Phase.OPTIMIZER)

    @cached_property
    def outlives_run(self) -> BoolColumn:
        """In use when the run of the phase is over in which it was made."""
        return self.end > self.alloc_run_last

    @cached_property
    def outside(self) -> BoolColumn:
        """Allocated neither by the engine, nor in forward, nor in a step."""
        return self.is_traced & ~(self.by_engine | self.in_forward | self.made_in_step)

    @cached_property
    def is_cache(self) -> BoolColumn:
        """Keys and values that a cache keeps, with a graph or without."""
        return self.made_through(Role.CACHE) | self.made_through(Role.CACHE_UPDATE)

    @cached_property
    def is_copied_or_filled(self) -> BoolColumn:
        """Copied to the device or filled there, and not computed from other tensors."""
        return self.made_through(Role.COPY) | self.made_through(Role.FACTORY)

    @cached_property
    def preexisting_in_forward(self) -> BoolColumn:
        """Pre-existing, and made by a module or a loss, as the stack of the live block shows."""
        return self._is_forward_code & ~(self.is_traced | self.made_through(Role.ENGINE))

    @cached_property
    def preexisting_outside(self) -> BoolColumn:
        """Pre-existing, and made by the program's code, as the stack of the live block shows.

        Not by modules, the engine or an optimizer, and not where a model is built.
        """
        is_excluded = self.has_no_frames | self.is_traced
        for role in _ROLES_INSIDE:
            is_excluded |= self.made_through(role)
        return ~is_excluded

    @cached_property
    def unrecorded(self) -> BoolColumn:
        """Pre-existing, live at the dump, and made before the recording: without a frame.

        With Python-only stacks the engine's blocks have none either: gradients of what was placed
        there.
        """
        n_bytes = self.sizes
        frameless = self.lasts_throughout & self.has_no_frames
        framed = self.lasts_throughout & ~self.has_no_frames
        placed_bytes = n_bytes[framed & self.made_through(Role.PLACEMENT)].sum()
        if self.has_cpp or not placed_bytes:
            return frameless
        # The engine may keep workspaces beside the gradients. A metric may be all that was placed.
        max_engine_bytes = min(_MOST_BESIDE_PLACED * placed_bytes, n_bytes[framed].sum())
        return frameless & np.bool_(n_bytes[frameless].sum() > max_engine_bytes)

    # --- what it may be used for, by what ran after it

    @cached_property
    def feeds_module(self) -> BoolColumn:
        """A module allocates next, before any loss or backward does."""
        is_loss = self.in_forward & ~self.by_module
        next_module = next_of(self.alloc[self.by_module], self.alloc, self.n_events)
        next_loss = next_of(self.alloc[is_loss], self.alloc, self.n_events)
        return np.asarray(next_module < np.minimum(next_loss, self.next_backward))

    @cached_property
    def mid_forward(self) -> BoolColumn:
        """Outside, after a forward began, where a backward comes next.

        It is part of the loss, or computed between modules. Not what may be part of a batch and was
        made before the first module that keeps anything for the next backward: what ran before that
        was another forward, such as one that acts or labels without gradients.
        """
        phase = self.phases.phase
        alloc = self.alloc
        marked = self.outside & has_code(at(phase, alloc), Phase.FORWARD)
        marked &= has_code(at(phase, self._next_run), Phase.BACKWARD)
        if self.phases.free_sites_known:
            is_kept = self.is_freed_by_engine
        else:
            is_kept = self.end >= self.next_backward
        keeping_rows = rows_of(self.by_module & is_kept)
        first = first_before(self.next_backward, alloc, keeping_rows, self.n_events)
        rows = rows_of(marked & (alloc < first) & (first < self.n_events))
        if len(rows):
            marked[rows[self._is_data(rows)]] = False
        return marked

    @property
    def _next_run(self) -> EventColumn:
        """The beginning of the run after the alloc's; what lies between phases is no run.

        Gradients may be freed just before backward. What comes after a run is where another one
        begins.
        """
        phase = self.phases.phase
        begins = run_starts(phase)
        begins = begins[~has_code(phase[begins], Phase.OTHER)]
        return next_of(begins, at(self.phases.run_last, self.alloc), self.n_events)

    def _is_data(self, rows: Int64Column) -> BoolColumn:
        """Find which of the rows, made by lines outside of modules, may be part of a batch.

        What is computed once data has come is part of it, also by modules that have no weights, as
        a spectrogram is, or an augmentation: but not what layers made of it, such as the answers of
        a teacher. What is as large as a copied batch is that batch, mixed or augmented.
        """
        stack = self.allocations.stack_id
        sizes = self.sizes
        alloc = self.alloc
        row_alloc = alloc[rows]
        is_collected = self.made_through(Role.COLLECTED)
        is_copied = self.outside & (self.made_through(Role.COPY) | is_collected)
        is_layer = self.made_through(Role.LAYER) | self.made_through(Role.COMPILED)

        last_data = last_before(alloc[is_copied], row_alloc)
        last_forward = last_before(alloc[self.in_forward], row_alloc)
        last_layer = last_before(alloc[self.in_forward & is_layer], row_alloc)
        last_training = last_before(self.phases.events_of_training, row_alloc)
        marked = (self.is_copied_or_filled | is_collected)[rows] | (
            last_data > last_forward
        )
        is_renewed = is_among(stack[rows], stack[self.outside & self.is_freed])
        may_be_data = np.maximum(last_data, last_training) > last_layer
        may_be_data |= is_among(sizes[rows], sizes[is_copied])
        return marked | (self.feeds_module[rows] & is_renewed & may_be_data)

    @cached_property
    def may_be_input(self) -> BoolColumn:
        """In use when the next forward begins, and made outside.

        Within a forward, a module comes next.
        """
        is_placed = self.made_through(Role.PLACEMENT)
        may_feed = self.outside & ~is_placed & (~self.mid_forward | self.feeds_module)
        is_used = (self.next_forward < self.n_events) & (self.end >= self.next_forward)
        return may_feed & is_used

    # --- tools

    def lines_of(self, stack_id: Int32Column) -> Int32Column:
        """Return the innermost Python frame of stacks; -1 for none, and for no stack."""
        return np.take(np.append(self.roles.python.innermost, np.int32(-1)), stack_id)

    def mask(self, rows: Int64Column) -> BoolColumn:
        """Return one bool per allocation, True for these rows."""
        marked = np.zeros(len(self.alloc), bool)
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
    profiler_category: Int8Column | None = None,
) -> Features:
    """Return the features of one device."""
    table = replayed.allocations
    profiled = None
    if profiler_category is not None:
        profiled = at(profiler_category, table.alloc_event, -1)
    return Features(
        allocations=table,
        phases=phases,
        roles=roles,
        user_rules=user_rules,
        recorded=recorded,
        reserves_more=_reserves_more(replayed),
        n_events=len(phases.certain),
        has_cpp=roles.has_cpp,
        sizes=table.requested_bytes,
        alloc=table.alloc_event,
        profiled=profiled,
    )


def _reserves_more(replayed: Replay) -> bool | None:
    reserved = replayed.reserved
    allocated = replayed.allocated
    grown_bytes = allocated.peak - allocated.at(-1)
    if not grown_bytes:
        return None
    return reserved.peak - reserved.at(-1) > _LEAST_RESERVED * grown_bytes


def fullest_part(
    rows: Int64Column, part: NDArray[np.integer[Any]], n_bytes: Int64Column
) -> Int64Column:
    """Return the rows of the part, such as an iteration, with most of their bytes.

    Of equals the last: of the first iterations less is known. ``part`` and ``n_bytes`` have one
    entry per allocation.
    """
    if not len(rows):
        return rows
    parts, inverse = np.unique(part[rows], return_inverse=True)
    part_bytes = sums_by(inverse, n_bytes[rows], len(parts))
    fullest = parts[part_bytes == part_bytes.max()][-1]
    return np.asarray(rows[part[rows] == fullest])


def at(
    column: NDArray[Any], rows: NDArray[np.integer[Any]], missing: int = 0
) -> NDArray[Any]:
    """Return ``column[rows]``, with ``missing`` where a row is -1, or just beyond the end."""
    padding = np.full(2, missing, column.dtype)
    return np.take(np.concatenate((column, padding)), rows)


def first_before(
    following: EventColumn, alloc: EventColumn, rows: Int64Column, missing: int
) -> EventColumn:
    """For each row the first alloc of the given rows that the same event follows.

    ``missing`` where there is none.
    """
    first = np.full(missing + 1, missing, alloc.dtype)
    first[following[rows[::-1]]] = alloc[rows[::-1]]
    return np.asarray(first[following])
