"""The operation of every allocation: by the user's rules, its stack, or the node of backward that freed it.

Where a line of source has several operations, the allocations of its stack come in the order in which
CPython evaluates them, once per visit of the line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from snapconv.classification.user_rules import UserRules
from snapconv.columns import Int32Column, Int64Column, distinct, read_only
from snapconv.phases.trace_phases import Phases
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.operations.operation_of_stack import (
    BY_ORDER,
    StackOperation,
    name_of_node,
)
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.operation_catalog import UNNAMED

if TYPE_CHECKING:  # what reads sources is imported where there are some
    from snapconv.stacks.operations.source_lines import Line
    from snapconv.stacks.operations.source_steps import Step

_Known = dict[StackOperation, int]

BY_NODE = "the node of backward that freed it"


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of one device: each a name and its source; ``id`` has one entry per allocation.

    ``names`` are distinct, that of position 0 is UNNAMED; ``name_id`` is a position in them.
    """

    names: tuple[str, ...]
    name_id: Int32Column
    found: tuple[StackOperation, ...]
    id: Int32Column


@stage
def name_allocations(
    stacks: StackTable,
    by_stack: Sequence[StackOperation],
    allocations: AllocationTable,
    phases: Phases,
    user: UserRules,
) -> Operations:
    """Name every allocation, with the source of each name; ``by_stack`` has the operation of every stack."""
    known: _Known = {StackOperation(UNNAMED, "no known frame"): 0}
    id_of_stack = np.array([_id(known, operation) for operation in by_stack] or [0], np.int32)
    has_stack = allocations.stack_id >= 0
    ids = np.where(has_stack, id_of_stack[np.where(has_stack, allocations.stack_id, 0)], 0).astype(np.int32)
    _name_by_order(ids, known, stacks, by_stack, allocations)
    _name_by_node(ids, known, stacks, allocations)
    # Backwards, so that the first rule wins.
    for number, rule in reversed(list(enumerate(user.rules))):
        if rule.operation is not None:
            where = user.matches(number, allocations, free_sites_known=phases.free_sites_known)
            ids[where] = _id(known, StackOperation(rule.operation, f"your rule {rule.slug}"))
    names: dict[str, int] = {}
    name_of = np.array([names.setdefault(operation.name, len(names)) for operation in known], np.int32)
    return read_only(Operations(tuple(names), name_of[ids], tuple(known), ids))


def _id(known: _Known, operation: StackOperation) -> int:
    return known.setdefault(replace(operation, line=None, frame=-1), len(known))


def _name_by_node(ids: Int32Column, known: _Known, stacks: StackTable, allocations: AllocationTable) -> None:
    named = np.array([operation.name != UNNAMED for operation in known], np.bool_)
    unnamed = ~named[ids] & (allocations.free_stack_id >= 0)
    freed_by, inverse = np.unique(allocations.free_stack_id[unnamed], return_inverse=True)
    nodes = [name_of_node(stacks, stack) for stack in freed_by.tolist()]
    found = [0 if name == UNNAMED else _id(known, StackOperation(name, BY_NODE)) for name in nodes]
    ids[unnamed] = np.array(found, np.int32)[inverse]


def _name_by_order(
    ids: Int32Column,
    known: _Known,
    stacks: StackTable,
    by_stack: Sequence[StackOperation],
    allocations: AllocationTable,
) -> None:
    """Give the allocations of a stack whose line has several operations to these, visit by visit."""
    traced = np.flatnonzero(allocations.alloc_event >= 0)
    rows = traced[np.argsort(allocations.alloc_event[traced], kind="stable")]
    places = _Places(allocations.stack_id[rows], len(stacks))
    lines = {stack: (by_stack[stack].frame, by_stack[stack].line) for stack in places.stacks}
    several = {stack: (frame, line) for stack, (frame, line) in lines.items() if line is not None}
    if not several:
        return
    from snapconv.stacks.operations.statements import statements

    for statement in statements(stacks, places.stacks, several):
        ran = np.sort(np.concatenate([places.of(stack) for stack in statement.below]))
        # Where another line allocated in between, the statement was left.
        begins = ran[np.diff(ran, prepend=-2) != 1]
        for stack in statement.several:
            mine = places.of(stack)
            visit = np.searchsorted(begins, mine, side="right")
            is_cut = bool(visit[0] == 1 and begins[0] == 0)
            for number, same in enumerate(_split(rows[mine], visit)):
                _, line = several[stack]
                order = order_of(
                    line, same.shape[1], is_cut=is_cut and not number, is_alone=statement.is_alone
                )
                if order is not None:
                    found = [_id(known, StackOperation(line.steps[step].name, BY_ORDER)) for step in order]
                    ids[same] = np.array(found, np.int32)


def _split(rows: Int64Column, visit: Int64Column) -> Iterator[Int64Column]:
    """Rows, visit by visit: those of the first, then all visits of a length together, each a line."""
    begins = np.flatnonzero(np.diff(visit, prepend=-1))
    lengths = np.diff(begins, append=len(visit))
    yield rows[None, : lengths[0]]
    for length in distinct(lengths[1:]).tolist():
        yield rows[begins[1:][lengths[1:] == length][:, None] + np.arange(length)]


class _Places:
    """Where the allocations of every stack come among those of the trace."""

    def __init__(self, stack_ids: Int32Column, n_stacks: int) -> None:
        self._by_id = np.argsort(stack_ids, kind="stable")
        self._begin = np.searchsorted(stack_ids[self._by_id], np.arange(n_stacks + 1))
        self.stacks: list[int] = np.flatnonzero(np.diff(self._begin)).tolist()

    def of(self, stack: int) -> Int64Column:
        """The places of a stack, in their order."""
        return self._by_id[self._begin[stack] : self._begin[stack + 1]]


def order_of(
    line: "Line", n_allocations: int, *, is_cut: bool = False, is_alone: bool = True
) -> list[int] | None:
    """Which operation made which of the allocations of one visit; None where their number does not decide.

    It decides in three cases: only the operations allocated that always do; all allocated that can (or one
    operation made all the surplus), unless several visits in a row would give the same number; or all visits
    in the row must be equal. ``is_cut``: nothing came before it in the trace, which may have begun within
    the line. ``is_alone``: nothing else of its function, or of its loop, separates its visits.
    """
    steps = line.steps
    least = [step.least for step in steps]
    most = [step.least if step.most is None else step.most for step in steps]
    n_least, n_most = sum(least), sum(most)
    n_open = sum(step.most is None for step in steps)
    if n_allocations == n_least:
        return _spread(least)
    if _are_alternatives(steps):
        return None
    if is_cut and n_allocations < n_most:
        return _spread(most)[-n_allocations:]
    n_visits, rest = divmod(n_allocations, n_most or 1)
    if least == most and not rest and (line.loop or not n_open):
        return _spread(most) * n_visits
    if not n_least or (is_alone and least != most and _may_be_several(n_allocations, n_least, line)):
        return None
    if n_allocations == n_most:
        return _spread(most)
    if n_open == 1 and n_allocations > n_most:
        place = next(place for place, step in enumerate(steps) if step.most is None)
        most[place] += n_allocations - n_most
        return _spread(most)
    return None


def _are_alternatives(steps: "Sequence[Step]") -> bool:
    """Whether two of them are in different arms of an expression: they never both run in one visit."""
    arms = {arm for step in steps for arm in step.arms}
    return len({place for place, _ in arms}) < len(arms)


def _may_be_several(n_allocations: int, n_least: int, line: "Line") -> bool:
    """Whether as many allocations may be those of several visits in a row.

    Outside of a loop these are assumed equal: what copies in one of them copies in all.
    """
    if line.loop:
        return n_allocations >= 2 * n_least
    return any(n_allocations % n == 0 for n in range(n_least, n_allocations // 2 + 1))


def _spread(counts: Sequence[int]) -> list[int]:
    return [step for step, n in enumerate(counts) for _ in range(n)]
