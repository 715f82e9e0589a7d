"""What is known of every allocation before anything is decided: where and when it came and went.

Allocations, phases and roles of stacks in; one bool or one event per allocation out. Knows no category
but those that it is told.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category
from snapconv.analysis.persistent import Persistent
from snapconv.analysis.phases import Phase, Phases, is_engine
from snapconv.analysis.replay import AllocationTable
from snapconv.analysis.rules import Role
from snapconv.analysis.stack_roles import StackRoles

BoolColumn = NDArray[np.bool_]
Int64Column = NDArray[np.int64]


class Facts:
    """What is known of each allocation before anything is decided; one bool or event per row."""

    def __init__(self, allocations: AllocationTable, phases: Phases, roles: StackRoles) -> None:
        self.allocations, self.phases, self.roles = allocations, phases, roles
        n_events = len(phases.certain)
        self.alloc = allocations.alloc_event
        # The program's own end of use: an end far in the future for what is live at the dump.
        end = np.where(
            allocations.free_requested_event >= 0, allocations.free_requested_event, allocations.end_event
        )
        self.end = np.where(end >= 0, end, n_events)
        self.is_traced = self.alloc >= 0
        self.is_live_at_dump = allocations.end_event < 0
        self.is_freed = end >= 0
        self.alloc_phase = at(phases.certain, self.alloc)
        self.alloc_run_end = at(phases.run_end, self.alloc, -1)
        # Frees that show nothing may belong to the run up to where the next one begins.
        run_last = at(phases.run_last, self.alloc, -1)
        self.alloc_run_last = self.alloc_run_end if phases.free_sites_known else run_last
        self.next_run_phase = at(phases.phase, run_last + 1)
        self.end_phase = np.where(self.is_freed, at(phases.certain, end), 0)
        self.next_backward = phases.next_after(Phase.BACKWARD, self.alloc)
        self.next_forward = phases.next_after(Phase.FORWARD, self.alloc)
        self.iteration = at(phases.iteration, self.alloc, -1)
        self.is_engine = self._is_backward(allocations.stack_id, self.alloc_phase) & self.is_traced
        self.is_freed_by_engine = (
            phases.free_sites_known
            & self.is_freed
            & (
                self._is_backward(allocations.free_stack_id, self.end_phase)
                | (self.end_phase == Phase.BACKWARD)
            )
        )
        self.n_events = n_events
        self.in_forward = self.is_traced & ~self.is_engine & self._is_forward()
        self.outside = (
            self.is_traced & ~self.is_engine & ~self.in_forward & (self.alloc_phase != Phase.OPTIMIZER)
        )
        self.mid_forward, self.feeds_module = self._between_modules()

    def _is_backward(self, stack_id: NDArray[np.int32], phase: NDArray[np.int8]) -> BoolColumn:
        """Whether the engine was at work: by the marks of a recorder, or else by the stacks."""
        if self.phases.is_recorded:
            return np.asarray(phase == Phase.BACKWARD)
        return is_engine(self.roles, stack_id)

    def _is_forward(self) -> BoolColumn:
        """Made by a module or a loss; where a recorder marked the phases, by whatever ran in forward."""
        by_stack = self.has(Role.MODULE_CALL) | self.has(Role.LOSS)
        if self.phases.is_recorded:
            return np.asarray(by_stack | (self.alloc_phase == Phase.FORWARD))
        return by_stack

    def _between_modules(self) -> tuple[BoolColumn, BoolColumn]:
        """What code outside of modules makes in the middle of a forward, and whether a module runs next.

        Where a loss or backward comes next, it belongs to the loss and is no input.
        """
        carried, run_last = at(self.phases.phase, self.alloc), at(self.phases.run_last, self.alloc, -1)
        # Gradients may be dropped just before backward.
        after = next_of(np.flatnonzero(self.phases.phase != Phase.OTHER), run_last, self.n_events)
        is_last = at(self.phases.phase, after) == Phase.BACKWARD
        mid_forward = self.outside & (carried == Phase.FORWARD) & is_last
        in_loss = self.in_forward & ~self.made_by_module
        next_module = next_of(self.alloc[self.made_by_module], self.alloc, self.n_events)
        next_loss = next_of(self.alloc[in_loss], self.alloc, self.n_events)
        return mid_forward, next_module < np.minimum(next_loss, self.next_backward)

    @cached_property
    def made_by_module(self) -> BoolColumn:
        """What modules make in forward, as opposed to losses."""
        return self.has(Role.MODULE_CALL) & ~self.has(Role.LOSS) & self.in_forward

    @cached_property
    def made_from_nothing(self) -> BoolColumn:
        """What is copied to the device or filled there, and not computed."""
        return self.has(Role.COPY) | self.has(Role.FACTORY)

    @property
    def is_computed(self) -> BoolColumn:
        """What a line makes from another result of its own, of the same size, which it then drops."""
        stack, sizes = self.allocations.stack_id, self.allocations.requested_bytes
        rows = np.flatnonzero(self.is_traced)
        rows = rows[np.argsort(self.alloc[rows])]
        before, row = rows[:-1], rows[1:]
        after = np.append(self.alloc[rows[2:]], self.n_events)[: len(row)]
        alike = (stack[before] == stack[row]) & (stack[row] >= 0) & (sizes[before] == sizes[row])
        dropped = (self.end[before] > self.alloc[row]) & (self.end[before] < after)
        found = np.zeros(len(stack), np.bool_)
        found[row[alike & dropped]] = True
        return found

    @cached_property
    def may_be_input(self) -> BoolColumn:
        """What is made outside of modules and is there when one runs."""
        used_in_forward = (self.next_forward < self.n_events) & (self.end >= self.next_forward)
        own = self.outside & ~self.has(Role.PLACEMENT) & (~self.mid_forward | self.feeds_module)
        return np.asarray(own & used_in_forward)

    @property
    def before_backward_without_modules(self) -> BoolColumn:
        """What is made since the last backward or step, if a backward comes next and no module runs."""
        certain, modules = self.phases.certain, np.sort(self.alloc[self.made_by_module])
        others = np.flatnonzero((certain == Phase.BACKWARD) | (certain == Phase.OPTIMIZER))
        is_next = self.next_backward < next_of(modules, self.alloc, self.n_events)
        is_first = _last_of(modules, self.alloc) <= _last_of(others, self.alloc)
        return np.asarray(self.outside & is_next & is_first)

    @property
    def is_freed_after_own(self) -> BoolColumn:
        """What goes when backward has dropped something of its own, that it was seen to make.

        Before that, where the trace begins in backward, what goes may be what it had just made.
        """
        own = self.is_traced & self.is_engine & self.is_freed_by_engine
        return np.asarray(self.end > self.end[own].min(initial=self.n_events))

    @cached_property
    def old_in_forward(self) -> BoolColumn:
        """What is older than the trace and was made by a module or a loss, as the block's own stack says."""
        made = (self.has(Role.MODULE_CALL) | self.has(Role.LOSS)) & ~self.has(Role.ENGINE)
        return np.asarray(~self.is_traced & made)

    @cached_property
    def old_outside(self) -> BoolColumn:
        """What is older than the trace, has a stack all the same, and was made outside of modules."""
        elsewhere = self.has(Role.MODULE_CALL) | self.has(Role.LOSS) | self.has(Role.ENGINE)
        elsewhere |= self.has(Role.OPTIMIZER) | self.has(Role.PLACEMENT)
        return np.asarray(~self.is_traced & ~self.has_no_frames & ~elsewhere)

    @cached_property
    def has_no_frames(self) -> BoolColumn:
        """Rows without a stack, or with one that has no frame."""
        stack = self.allocations.stack_id
        if not len(self.roles.is_empty):
            return np.asarray(stack < 0)
        return np.asarray((stack < 0) | self.roles.is_empty[np.maximum(stack, 0)])

    def has(self, role: Role) -> BoolColumn:
        """Allocations made through code of this role."""
        return self.roles.of(role, self.allocations.stack_id)

    def freed_by(self, role: Role) -> BoolColumn:
        """Allocations freed from code of this role, where the file has the stacks of frees."""
        if not self.phases.free_sites_known:
            return np.zeros(len(self.alloc), np.bool_)
        return self.roles.of(role, self.allocations.free_stack_id)

    def persistent_candidates(self, category: NDArray[np.int8]) -> Persistent:
        """What sort_persistent needs: the undecided blocks without a birth, and the known gradients."""
        undecided = category == Category.UNKNOWN
        in_backward = self.is_engine & (category == Category.TEMPORARY)
        return Persistent(
            candidates=undecided & ~self.is_traced & self.is_live_at_dump & self.has_no_frames,
            gradients=category == Category.GRADIENT,
            states=category == Category.OPTIMIZER_STATE,
            summed=in_backward,
            iteration=self.iteration,
            whole=self._whole_iterations(),
            n_states=self.phases.n_states,
            has_several_steps=self.phases.has_several_steps,
        )

    def _whole_iterations(self) -> Int64Column:
        """The iterations of which the trace has the backward from its beginning: forward comes before it."""
        iteration, certain = self.phases.iteration, self.phases.certain
        forward, first_forward = np.unique(iteration[certain == Phase.FORWARD], return_index=True)
        backward, first_backward = np.unique(iteration[certain == Phase.BACKWARD], return_index=True)
        first_forward = np.flatnonzero(certain == Phase.FORWARD)[first_forward]
        first_backward = np.flatnonzero(certain == Phase.BACKWARD)[first_backward]
        both, in_forward, in_backward = np.intersect1d(forward, backward, return_indices=True)
        return np.asarray(both[first_forward[in_forward] < first_backward[in_backward]], np.int64)


def at(column: NDArray[Any], rows: Int64Column, missing: int = 0) -> NDArray[Any]:
    """``column[rows]``, with ``missing`` where a row is -1 or beyond the end."""
    if not len(column):
        return np.full(len(rows), missing, column.dtype)
    known = (rows >= 0) & (rows < len(column))
    return np.where(known, column[np.where(known, rows, 0)], np.asarray(missing, column.dtype))


def next_of(events: Int64Column, after: Int64Column, missing: int) -> Int64Column:
    """For each event the first later one of ``events``."""
    found = np.append(np.sort(events), missing)
    return np.asarray(found[np.searchsorted(found[:-1], after, side="right")])


def first_before(following: Int64Column, alloc: Int64Column, rows: Int64Column, missing: int) -> Int64Column:
    """For each row the first alloc of the given rows that the same event follows; ``missing`` for none."""
    first = np.full(missing + 1, missing)
    np.minimum.at(first, following[rows], alloc[rows])
    return np.asarray(first[following])


def _last_of(events: Int64Column, before: Int64Column) -> Int64Column:
    """For each event the last earlier one of ``events``, which are in order; -1 where there is none."""
    found = np.append(events, -1)
    return np.asarray(found[np.searchsorted(events, before) - 1])
