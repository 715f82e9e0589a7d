"""Pair the events of one device into allocations: alloc, free_requested, free_completed.

Events in, one row per lifetime out. Uses addresses and order, not sizes of blocks.
"""

import ctypes
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int64Column,
    chunks,
    count_of,
    has_code,
    is_among,
    plain_rows,
    read_only,
    rows_by,
    rows_of,
    take,
    unknown_column,
)
from snapconv.native.library import address, closing, core, goes_on, random_seed
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.segment_table import BlockState, BlockTable
from snapconv.stop_signals import stage

# The columns of a lifetime while events are paired.
_ALLOC, _REQUESTED, _COMPLETED, _END, _ADDR = range(5)
_STEPS = {
    int(Action.ALLOC): _ALLOC,
    int(Action.FREE_REQUESTED): _REQUESTED,
    int(Action.FREE_COMPLETED): _COMPLETED,
    int(Action.FREE): _COMPLETED,
}
_Number = TypeVar("_Number", bound=np.integer[Any])


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """One row per allocation; -1 where there is no such event or block.

    ``end_event`` is where the memory became free: the free_completed, or the event by which it must
    have happened where that is missing. ``block_id`` is the row in the BlockTable of an allocation
    that is live at the dump. Rows: pre-existing ones by address, then by their alloc event.
    """

    alloc_event: EventColumn
    free_requested_event: EventColumn
    free_completed_event: EventColumn
    end_event: EventColumn
    addr: Int64Column
    block_id: Int64Column
    n_orphan_frees: int
    n_implicit_frees: int
    n_missing_from_segments: int


@stage
def pair_events(events: EventTable, blocks: BlockTable) -> Lifetimes:
    """Match every free with its alloc by address, and open allocations with the final blocks.

    A free whose address was not allocated in the trace belongs to a pre-existing allocation; a
    second such free at one address (lost events, skipped actions) is counted and left out.
    """
    is_release = releases(events, blocks)
    columns, n_orphans, n_implicit = _pair_compiled(events, is_release) or _pair(
        events, is_release
    )
    *traced_events, addr = columns
    is_untraced = blocks.is_live
    live = rows_of(is_untraced)
    is_open = traced_events[-1] < 0
    open_blocks = _rows_at(addr[is_open], blocks.addr[live], live)
    block_id = unknown_column(len(addr))
    block_id[is_open] = open_blocks
    is_untraced[open_blocks[open_blocks >= 0]] = False
    untraced = rows_of(is_untraced)
    no_events = unknown_column(len(untraced), np.int32)
    alloc, requested, completed, end = (
        _joined(no_events, column.astype(np.int32)) for column in traced_events
    )
    lifetimes = Lifetimes(
        alloc_event=alloc,
        free_requested_event=requested,
        free_completed_event=completed,
        end_event=end,
        addr=_joined(blocks.addr[untraced], addr),
        block_id=_joined(untraced, block_id),
        n_orphan_frees=n_orphans,
        n_implicit_frees=n_implicit,
        n_missing_from_segments=count_of(open_blocks < 0),
    )
    alloc = lifetimes.alloc_event
    if np.all(alloc[1:] > alloc[:-1]):
        return read_only(lifetimes)
    return take(lifetimes, _order(alloc, lifetimes.addr))


def _joined(first: NDArray[_Number], second: NDArray[_Number]) -> NDArray[_Number]:
    return np.concatenate((first, second)) if len(first) else second


def _order(alloc: EventColumn, addr: Int64Column) -> Int64Column:
    """Return the rows without an alloc by address, then the others by their alloc.

    The latter are nearly in order, for which NumPy's stable sort is fast.
    """
    order = np.argsort(alloc, kind="stable")
    earlier = order[: np.count_nonzero(alloc < 0)]
    earlier[:] = rows_by(addr, earlier)
    return order


def releases(events: EventTable, blocks: BlockTable) -> BoolColumn:
    """Return the mask of events that make memory free again.

    A trace recorded with ``skip_actions`` may lack every free_completed; then a request frees at
    once, unless it is the last one at an address where the dump shows that the block still waits.
    """
    completed = has_code(events.action, Action.FREE_COMPLETED)
    free = has_code(events.action, Action.FREE)
    if completed.any():
        return completed | free
    requests = has_code(events.action, Action.FREE_REQUESTED)
    waiting = blocks.addr[has_code(blocks.state, BlockState.PENDING_FREE)]
    newest_first = rows_of(requests & is_among(events.addr, waiting))[::-1]
    _, last = np.unique(events.addr[newest_first], return_index=True)
    requests[newest_first[last]] = False
    return free | requests


_FREE_KIND = np.int8(4)
# The columns of lifetimes in the order of _ALLOC to _ADDR; the number of frees without an alloc;
# the number of allocations without a free, whose address is allocated again.
_Pairs = tuple[list[NDArray[Any]], int, int]


def _pair_compiled(events: EventTable, is_release: BoolColumn) -> _Pairs | None:
    """Pair events in the compiled core, in the order in which lifetimes begin.

    A call is short, for some events, so that Ctrl-C never waits long. Returns None where the core
    finds something odd.
    """
    compiled = core()
    if compiled is None:
        return None
    # The core's kinds are the codes of alloc, free_requested and free_completed, 4 for a free, and
    # 0 for all else. A table of codes would be turned into int64 for every event.
    has_own_code = events.action <= int(Action.FREE_COMPLETED)
    kind = events.action * has_own_code
    kind += _FREE_KIND * has_code(events.action, Action.FREE)
    columns = [np.empty(len(kind), np.int64) for _ in range(_ADDR + 1)]
    outputs = [address(column) for column in columns]
    is_release = np.ascontiguousarray(is_release)
    new_pairing = compiled.snapconv_pairing_new(
        random_seed(), address(is_release), *outputs
    )
    with closing(new_pairing, compiled.snapconv_pairing_free) as pairing:
        for part in chunks(len(kind)):
            kinds = np.ascontiguousarray(kind[part])
            addrs = np.ascontiguousarray(events.addr[part])
            status = compiled.snapconv_pairing_add(
                pairing, part.start, len(kinds), address(kinds), address(addrs)
            )
            if not goes_on(status):
                return None
        counts = (ctypes.c_int64 * 3)()
        compiled.snapconv_pairing_finish(pairing, ctypes.byref(counts))
    n_rows, n_orphans, n_implicit = counts
    return [column[:n_rows] for column in columns], n_orphans, n_implicit


def _pair(events: EventTable, is_release: BoolColumn) -> _Pairs:
    """Pair events in Python, as the compiled core does."""
    rows: list[list[int]] = []
    last: dict[int, list[int]] = {}
    n_orphans = n_implicit = 0
    event_rows = plain_rows(events.action, events.addr, is_release)
    for event, (action, addr, is_end) in enumerate(event_rows):
        step = _STEPS.get(action)
        if step is None:
            continue
        row = last.get(addr)
        # Within one address the order is alloc, requested, completed; a step back begins another
        # lifetime.
        if row is None or max(row[step:_END]) >= 0:
            is_orphan = row is not None and step != _ALLOC
            if row is not None and step == _ALLOC and row[_END] < 0:
                row[_END] = event
                n_implicit += 1
            row = last[addr] = [-1, -1, -1, -1, addr]
            if is_orphan:
                n_orphans += 1
            else:
                rows.append(row)
        row[step] = event
        if is_end:
            row[_END] = event
        if action == Action.FREE and row[_REQUESTED] < 0:
            row[_REQUESTED] = event
    table = np.array(rows, np.int64).reshape(-1, _ADDR + 1)
    return list(table.T.copy()), n_orphans, n_implicit


def _rows_at(addr: Int64Column, row_addr: Int64Column, rows: Int64Column) -> Int64Column:
    """Return for each address the row that has it in ``row_addr``, -1 where none has."""
    if not len(row_addr):
        return unknown_column(len(addr))
    order = np.argsort(row_addr, kind="stable")
    position = np.searchsorted(row_addr, addr, sorter=order)
    candidate = order[np.minimum(position, len(row_addr) - 1)]
    return np.where(row_addr[candidate] == addr, rows[candidate], -1)


def real_events(events: EventTable) -> EventTable:
    """Clear action and stack in the rows of the events that describe torch_npu's workspaces.

    At every dump torch_npu puts three entries per workspace before the trace: a workspace_snapshot,
    and a segment_alloc and an alloc of one address (NPUWorkspaceAllocator.cpp, get_trace). They
    describe memory outside the caching allocator, which was there at some time or other, and the
    first real event follows at once: so no more than these three are left out.
    """
    action = events.action
    addr = events.addr
    marker = rows_of(has_code(action[:-2], Action.WORKSPACE_SNAPSHOT))
    if not len(marker):
        return events
    is_pair = (action[marker + 1] == Action.SEGMENT_ALLOC) & (
        action[marker + 2] == Action.ALLOC
    )
    marker = marker[is_pair & (addr[marker + 1] == addr[marker + 2])]
    described = np.concatenate((marker, marker + 1, marker + 2))
    action = action.copy()
    stack_id = events.stack_id.copy()
    action[described] = Action.UNKNOWN
    stack_id[described] = -1
    return read_only(replace(events, action=action, stack_id=stack_id))
