"""The operation of every allocation: by the user's rules, its stack, or the node of backward that freed it.

Where a line of source has several operations, the allocations of its stack come in the order in which
CPython evaluates them, once per visit of the line.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.columns import read_only
from snapconv.analysis.operation_words import UNNAMED
from snapconv.analysis.operations import BY_ORDER, Told, find_sources, name_of_node, tell_operations, view
from snapconv.analysis.phases import Phases
from snapconv.analysis.replay import AllocationTable
from snapconv.analysis.source_lines import Line, SourceLines
from snapconv.analysis.user_rules import UserRules
from snapconv.snapshot.stacks import StackTable

Int32Column = NDArray[np.int32]
Int64Column = NDArray[np.int64]
_Known = dict[Told, int]

BY_NODE = "the node of backward that freed it"


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of one device: each a name and what told it; ``id`` has one entry per allocation.

    ``names`` are distinct, that of position 0 is UNNAMED; ``name_id`` is a position in them.
    """

    names: tuple[str, ...]
    name_id: Int32Column
    told: tuple[Told, ...]
    id: Int32Column


def name_allocations(
    stacks: StackTable,
    sources: SourceLines | None,
    allocations: AllocationTable,
    phases: Phases,
    user: UserRules,
) -> Operations:
    """Name every allocation, and say what told the name."""
    by_stack = tell_operations(stacks, find_sources(stacks.frames, sources.lines if sources else None))
    known: _Known = {Told(UNNAMED, "no frame tells"): 0}
    id_of_stack = np.array([_id(known, told) for told in by_stack] or [0], np.int32)
    has_stack = allocations.stack_id >= 0
    ids = np.where(has_stack, id_of_stack[np.where(has_stack, allocations.stack_id, 0)], 0).astype(np.int32)
    _name_by_order(ids, known, stacks, by_stack, allocations)
    _name_by_node(ids, known, stacks, allocations)
    # Backwards, so that the first rule has the last word.
    for number, rule in reversed(list(enumerate(user.rules))):
        if rule.operation is not None:
            where = user.matches(number, allocations, free_sites_known=phases.free_sites_known)
            ids[where] = _id(known, Told(rule.operation, f"your rule {rule.slug}"))
    names: dict[str, int] = {}
    name_of = np.array([names.setdefault(told.name, len(names)) for told in known], np.int32)
    return read_only(Operations(tuple(names), name_of[ids], tuple(known), ids))


def _id(known: _Known, told: Told) -> int:
    return known.setdefault(replace(told, line=None), len(known))


def _name_by_node(ids: Int32Column, known: _Known, stacks: StackTable, allocations: AllocationTable) -> None:
    named = np.array([told.name != UNNAMED for told in known], np.bool_)
    nameless = ~named[ids] & (allocations.free_stack_id >= 0)
    freed_by, inverse = np.unique(allocations.free_stack_id[nameless], return_inverse=True)
    nodes = [name_of_node(stacks, stack) for stack in freed_by.tolist()]
    told = [0 if name == UNNAMED else _id(known, Told(name, BY_NODE)) for name in nodes]
    ids[nameless] = np.array(told, np.int32)[inverse]


def _name_by_order(
    ids: Int32Column,
    known: _Known,
    stacks: StackTable,
    by_stack: Sequence[Told],
    allocations: AllocationTable,
) -> None:
    """Give the allocations of a stack whose line has several operations to these, visit by visit."""
    traced = np.flatnonzero(allocations.alloc_event >= 0)
    rows = traced[np.argsort(allocations.alloc_event[traced], kind="stable")]
    stack_ids = allocations.stack_id[rows]
    several = {stack: told.line for stack, told in enumerate(by_stack) if told.line is not None}
    by_id = np.argsort(stack_ids, kind="stable")
    begin, end = (np.searchsorted(stack_ids[by_id], list(several), side) for side in ("left", "right"))
    for number, (stack, inside) in enumerate(_statements(stacks, several)):
        line = several[stack]
        places = by_id[begin[number] : end[number]]
        for nth, visit in enumerate(_visits(stack_ids, places, inside)):
            is_cut = nth == 0 and _is_first(stack_ids, int(visit[0]), inside)
            order = order_of(line, len(visit), is_cut=is_cut)
            if order is not None:
                told = [_id(known, Told(line.steps[step].name, BY_ORDER)) for step in order]
                ids[rows[visit]] = np.array(told, np.int32)


def _visits(stack_ids: Int32Column, places: Int64Column, inside: NDArray[np.bool_]) -> list[Int64Column]:
    """Split the allocations of a stack where another line ran in between: its statement was left.

    ``inside`` has the stacks that are of the statement, or of what it calls.
    """
    if not len(places):
        return []
    first = int(places[0])
    between = stack_ids[first : int(places[-1]) + 1]
    is_outside = np.where(between >= 0, ~inside[between], True)
    n_outside = np.cumsum(is_outside)[places - first]
    return np.split(places, np.flatnonzero(np.diff(n_outside)) + 1)


def _is_first(stack_ids: Int32Column, place: int, inside: NDArray[np.bool_]) -> bool:
    """Whether the trace has nothing but the same statement before this place."""
    before = stack_ids[:place]
    if place and (before[0] < 0 or not inside[before[0]]):  # as nearly always, which spares a long look
        return False
    return bool((before >= 0).all() and inside[before].all())


def _statements(stacks: StackTable, several: dict[int, Line]) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """For each of these stacks, which stacks are of the same statement in the same call, or below it."""
    names, files, lines = stacks.frames.names, stacks.frames.filenames, stacks.frames.lines.tolist()
    every = [tuple(stacks.frames_of(stack).tolist()) for stack in range(len(stacks))]
    above: dict[int, tuple[int, tuple[int, ...]]] = {}
    for stack in several:
        leaf = view(stacks, stack).python[0]
        above[stack] = leaf, every[stack][every[stack].index(leaf) + 1 :]
    wanted = {callers for _, callers in above.values()}
    below: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for length in {len(callers) for callers in wanted}:
        for stack, frames in enumerate(every):
            callers = frames[len(frames) - length :]
            if len(frames) > length and callers in wanted:
                below[callers].append(stack)
    for stack, (leaf, callers) in above.items():
        inside = np.zeros(len(stacks), np.bool_)
        for other in below[callers]:
            frame = every[other][len(every[other]) - len(callers) - 1]
            is_same = names[frame] == names[leaf] and files[frame] == files[leaf]
            line = several[stack]
            inside[other] = is_same and line.first_line <= lines[frame] <= line.last_line
        yield stack, inside


def order_of(line: Line, n_allocations: int, *, is_cut: bool = False) -> list[int] | None:
    """Which operation made which of the allocations of one visit; None where their number does not tell.

    It tells where all operations that may allocate did, or only those that must; where the visit is one of
    several in a row, as in a loop of one line; and where one operation alone may allocate any number.
    ``is_cut``: nothing came before it in the trace, which may have begun in the midst of the line.
    """
    steps = line.steps
    least = [step.least for step in steps]
    most = [step.least if step.most is None else step.most for step in steps]
    n_open = sum(step.most is None for step in steps)
    for counts in (most, least):
        if sum(counts) == n_allocations:
            return _spread(counts)
    if is_cut and n_allocations < sum(most):
        return _spread(most)[-n_allocations:]
    n_visits, rest = divmod(n_allocations, sum(most) or 1)
    if least == most and not rest and (line.in_loop or not n_open):
        return _spread(most) * n_visits
    if n_open == 1:
        place = next(place for place, step in enumerate(steps) if step.most is None)
        for counts in (most, least):
            counts[place] += n_allocations - sum(counts)
            if counts[place] >= steps[place].least:
                return _spread(counts)
    return None


def _spread(counts: Sequence[int]) -> list[int]:
    return [step for step, n in enumerate(counts) for _ in range(n)]
