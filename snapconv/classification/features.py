"""Columns of what is known of every allocation before any fact is evaluated: none depends on a category."""

from collections.abc import Callable
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


# Columns that are one expression of others, each with its meaning above it. mypy needs the three
# types.
def _bools(find: Callable[["Features"], BoolColumn]) -> cached_property[BoolColumn]:
    return cached_property(find)


def _events(find: Callable[["Features"], EventColumn]) -> cached_property[EventColumn]:
    return cached_property(find)


def _phases(find: Callable[["Features"], Int8Column]) -> cached_property[Int8Column]:
    return cached_property(find)


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
    # trace.
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

    # The program freed it in the trace.
    is_freed = _bools(lambda self: self.allocations.freed_event >= 0)
    # The event of the program's own free (free_requested), or else of the end of the block.
    end = _events(
        lambda self: np.where(self.is_freed, self.allocations.freed_event, np.int32(self.n_events))
    )
    # Allocated in the trace.
    is_traced = _bools(lambda self: self.alloc >= 0)
    # The block is still there when the snapshot is taken.
    is_live_at_dump = _bools(lambda self: self.allocations.end_event < 0)
    # Pre-existing, and still there at the dump.
    lasts_throughout = _bools(lambda self: ~self.is_traced & self.is_live_at_dump)
    # The phase that the alloc's event shows by itself; 0 where it shows none.
    alloc_phase = _phases(lambda self: at(self.phases.certain, self.alloc))
    # The phase that the event of the end shows by itself; 0 where it shows none.
    end_phase = _phases(lambda self: at(self.phases.certain, self.allocations.freed_event))
    # The last event that shows the phase of the alloc's run; -1 for what is pre-existing.
    alloc_run_end = _events(lambda self: at(self.phases.run_end, self.alloc, -1))
    # The first event after the alloc that shows backward.
    next_backward = _events(lambda self: self.phases.next_after(Phase.BACKWARD, self.alloc))
    # The first event after the alloc that shows forward.
    next_forward = _events(lambda self: self.phases.next_after(Phase.FORWARD, self.alloc))
    # A backward follows.
    has_next_backward = _bools(lambda self: self.next_backward < self.n_events)
    # A backward follows, and the allocation is in use when it begins.
    reaches_backward = _bools(
        lambda self: self.has_next_backward & (self.end >= self.next_backward)
    )
    # The iteration of the alloc; -1 for what is pre-existing.
    iteration = _events(lambda self: at(self.phases.iteration, self.alloc, -1))

    @cached_property
    def alloc_run_last(self) -> Int32Column:
        """The last event that may be of the alloc's run: where frees have no stacks, up to the next run."""
        known = self.phases.free_sites_known
        return self.alloc_run_end if known else at(self.phases.run_last, self.alloc, -1)

    # --- who made it, and who freed it

    # Has a stack, if only an empty one.
    has_stack = _bools(lambda self: self.allocations.stack_id >= 0)
    # Without a stack, or with one that has no frame.
    has_no_frames = _bools(
        lambda self: np.take(np.append(self.roles.is_empty, np.True_), self.allocations.stack_id)
    )

    def made_through(self, role: Role) -> BoolColumn:
        """Allocations made through code of this role; read-only."""
        if role not in self._made_through:
            found = self._made_through[role] = self.roles.of(role, self.allocations.stack_id)
            found.setflags(write=False)
        return self._made_through[role]

    @cached_property
    def _made_through(self) -> dict[Role, BoolColumn]:
        return {}

    def freed_through(self, role: Role) -> BoolColumn:
        """Allocations freed from code of this role, where the file has the stacks of frees."""
        return self._of_free_site(self.roles.of(role, self.allocations.free_stack_id))

    def _of_free_site(self, found: BoolColumn) -> BoolColumn:
        return found if self.phases.free_sites_known else np.zeros(len(found), bool)

    def _in_backward(self, stack_id: Int32Column, phase: Int8Column) -> BoolColumn:
        """Whether the engine was at work: by the recorded phases, or else by the stacks."""
        if self.phases.is_recorded:
            return has_code(phase, Phase.BACKWARD)
        return is_engine(self.roles, stack_id)

    # Allocated by the autograd engine, or in a recorded backward.
    by_engine = _bools(
        lambda self: self.is_traced & self._in_backward(self.allocations.stack_id, self.alloc_phase)
    )

    @cached_property
    def is_freed_by_engine(self) -> BoolColumn:
        """Freed by the autograd engine, or in a backward; never where frees have no stacks of their own."""
        by_engine = self._in_backward(self.allocations.free_stack_id, self.end_phase)
        return self._of_free_site(
            self.is_freed & (by_engine | has_code(self.end_phase, Phase.BACKWARD))
        )

    @cached_property
    def in_forward(self) -> BoolColumn:
        """Allocated by a module or a loss; where phases were recorded, by anything in forward."""
        found = self.made_through(Role.MODULE_CALL) | self.made_through(Role.LOSS)
        if self.phases.is_recorded:
            found |= has_code(self.alloc_phase, Phase.FORWARD)
        return found & self.is_traced & ~self.by_engine

    # Allocated in forward by a module that is no loss.
    by_module = _bools(
        lambda self: (
            self.in_forward & self.made_through(Role.MODULE_CALL) & ~self.made_through(Role.LOSS)
        )
    )

    @cached_property
    def is_freed_in_own_forward(self) -> BoolColumn:
        """Made in forward, and freed inside a module's call before that forward is over.

        No backward needs it, even if autograd had saved it. Never where frees have no stacks of
        their own.
        """
        in_backward = self._in_backward(self.allocations.free_stack_id, self.end_phase)
        found = self.in_forward & self.freed_through(Role.MODULE_CALL) & ~in_backward
        return found & self.is_freed & (self.end <= self.alloc_run_last)

    # Allocated neither by the engine, nor in forward, nor in a step.
    outside = _bools(
        lambda self: (
            self.is_traced
            & ~(self.by_engine | self.in_forward | has_code(self.alloc_phase, Phase.OPTIMIZER))
        )
    )
    # Keys and values that a cache keeps, with a graph or without.
    is_cache = _bools(
        lambda self: self.made_through(Role.CACHE) | self.made_through(Role.CACHE_UPDATE)
    )
    # Copied to the device or filled there, and not computed from other tensors.
    from_nothing = _bools(
        lambda self: self.made_through(Role.COPY) | self.made_through(Role.FACTORY)
    )
    # Pre-existing, and made by a module or a loss, as the block's own stack shows: live at the
    # dump.
    preexisting_in_forward = _bools(
        lambda self: (
            (self.made_through(Role.MODULE_CALL) | self.made_through(Role.LOSS))
            & ~(self.is_traced | self.made_through(Role.ENGINE))
        )
    )

    @cached_property
    def preexisting_outside(self) -> BoolColumn:
        """Pre-existing, with a stack, and made outside of modules, engine, optimizer and model building."""
        named = self.has_no_frames | self.is_traced
        for role in (
            Role.MODULE_CALL,
            Role.LOSS,
            Role.ENGINE,
            Role.OPTIMIZER,
            Role.STATES,
            Role.PLACEMENT,
        ):
            named |= self.made_through(role)
        return ~named

    @cached_property
    def unrecorded(self) -> BoolColumn:
        """Pre-existing, live at the dump, and made before the recording: without a frame.

        With Python-only stacks the engine's blocks have none either: gradients of what was placed
        there.
        """
        n_bytes = self.sizes
        found = self.lasts_throughout & self.has_no_frames
        named = self.lasts_throughout & ~self.has_no_frames
        n_placed = n_bytes[named & self.made_through(Role.PLACEMENT)].sum()
        # The engine may keep workspaces beside the gradients. A metric may be all that was placed.
        most = min(_MOST_BESIDE_PLACED * n_placed, n_bytes[named].sum())
        return found & np.bool_(self.has_cpp or not n_placed or n_bytes[found].sum() > most)

    # --- what it may be used for, by what ran after it

    @cached_property
    def feeds_module(self) -> BoolColumn:
        """A module allocates next, before any loss or backward does."""
        by_loss = self.in_forward & ~self.by_module
        next_module = next_of(self.alloc[self.by_module], self.alloc, self.n_events)
        next_loss = next_of(self.alloc[by_loss], self.alloc, self.n_events)
        return np.asarray(next_module < np.minimum(next_loss, self.next_backward))

    @cached_property
    def mid_forward(self) -> BoolColumn:
        """Outside, after a forward began, where a backward comes next: part of the loss, or between modules.

        Not what may be part of a batch and was made before the first module that keeps anything for
        the next backward: what ran before that was another forward, such as one that acts or labels
        without gradients.
        """
        phase = self.phases.phase
        alloc = self.alloc
        n_events = self.n_events
        # Gradients may be freed just before backward. What comes after a run is where another one
        # begins.
        begins = run_starts(phase)
        after = next_of(
            begins[~has_code(phase[begins], Phase.OTHER)], at(self.phases.run_last, alloc), n_events
        )
        found = self.outside & has_code(at(phase, alloc), Phase.FORWARD)
        found &= has_code(at(phase, after), Phase.BACKWARD)
        known = self.phases.free_sites_known
        kept = self.is_freed_by_engine if known else self.end >= self.next_backward
        first = first_before(self.next_backward, alloc, rows_of(self.by_module & kept), n_events)
        rows = rows_of(found & (alloc < first) & (first < n_events))
        if len(rows):
            found[rows[self._is_data(rows)]] = False
        return found

    def _is_data(self, rows: Int64Column) -> BoolColumn:
        """Find which of the rows, made by lines outside of modules, may be part of a batch.

        What is computed once data has come is part of it, also by modules that have no weights, as
        a spectrogram is, or an augmentation: but not what layers made of it, such as the answers of
        a teacher. What is as large as a copied batch is that batch, mixed or augmented.
        """
        stack = self.allocations.stack_id
        sizes = self.sizes
        alloc = self.alloc
        collected = self.made_through(Role.COLLECTED)
        is_copied = self.outside & (self.made_through(Role.COPY) | collected)
        of_layers = self.made_through(Role.LAYER) | self.made_through(Role.COMPILED)

        data = last_before(alloc[is_copied], alloc[rows])
        found = (self.from_nothing | collected)[rows] | (
            data > last_before(alloc[self.in_forward], alloc[rows])
        )
        is_renewed = is_among(stack[rows], stack[self.outside & self.is_freed])
        comes = np.maximum(data, last_before(self.phases.events_of_training, alloc[rows]))
        may_be = comes > last_before(alloc[self.in_forward & of_layers], alloc[rows])
        may_be |= is_among(sizes[rows], sizes[is_copied])
        return found | (self.feeds_module[rows] & is_renewed & may_be)

    @cached_property
    def may_be_input(self) -> BoolColumn:
        """Outside, in use when the next forward begins, and followed by a module if within a forward."""
        found = (
            self.outside
            & ~self.made_through(Role.PLACEMENT)
            & (~self.mid_forward | self.feeds_module)
        )
        return found & (self.next_forward < self.n_events) & (self.end >= self.next_forward)

    # --- tools

    def lines_of(self, stack_id: Int32Column) -> Int32Column:
        """Return the innermost Python frame of stacks; -1 for none, and for no stack."""
        return np.take(np.append(self.roles.python.innermost, np.int32(-1)), stack_id)

    def mask(self, rows: Int64Column) -> BoolColumn:
        """Rows by number -> one bool per allocation."""
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
    reserved = replayed.reserved
    allocated = replayed.allocated
    grown = allocated.peak - allocated.at(-1)
    reserves_more = reserved.peak - reserved.at(-1) > _LEAST_RESERVED * grown if grown else None
    table = replayed.allocations
    n_events = len(phases.certain)
    profiled = None if profiler_category is None else at(profiler_category, table.alloc_event, -1)
    shared = (n_events, roles.has_cpp, table.requested_bytes, table.alloc_event, profiled)
    return Features(table, phases, roles, user_rules, recorded, reserves_more, *shared)


def of_fullest(
    rows: Int64Column, part: NDArray[np.integer[Any]], n_bytes: Int64Column
) -> Int64Column:
    """Return the rows of the part, such as an iteration, with most of their bytes; of equals the last.

    Of the first iterations less is known. ``part`` and ``n_bytes`` have one entry per allocation.
    """
    if not len(rows):
        return rows
    found, inverse = np.unique(part[rows], return_inverse=True)
    totals = sums_by(inverse, n_bytes[rows], len(found))
    return np.asarray(rows[part[rows] == found[totals == totals.max()][-1]])


def at(column: NDArray[Any], rows: NDArray[np.integer[Any]], missing: int = 0) -> NDArray[Any]:
    """``column[rows]``, with ``missing`` where a row is -1, or just beyond the end."""
    return np.take(np.concatenate((column, np.full(2, missing, column.dtype))), rows)


def first_before(
    following: EventColumn, alloc: EventColumn, rows: Int64Column, missing: int
) -> EventColumn:
    """For each row the first alloc of the given rows that the same event follows; ``missing`` for none."""
    first = np.full(missing + 1, missing, alloc.dtype)
    first[following[rows[::-1]]] = alloc[rows[::-1]]
    return np.asarray(first[following])
