"""Pair the events of one device into allocations: alloc, free_requested, free_completed.

Events in, one row per lifetime out. Uses addresses and order, not sizes of blocks.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int8Column,
    Int64Column,
    first_known,
    has_code,
    is_among,
    read_only,
    take,
)
from snapconv.native.library import core
from snapconv.replay.compiled_replay import pair_compiled
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.segment_table import BlockState, BlockTable
from snapconv.stop_signals import stage

_ALLOC, _REQUESTED, _COMPLETED = 0, 1, 2
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

    def __len__(self) -> int:
        return len(self.addr)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The allocations as the trace alone shows them: the columns of Lifetimes that follow from events."""

    alloc_event: EventColumn
    free_requested_event: EventColumn
    free_completed_event: EventColumn
    end_event: EventColumn
    addr: Int64Column
    n_orphan_frees: int
    n_implicit_frees: int


@stage
def pair_events(events: EventTable, blocks: BlockTable) -> Lifetimes:
    """Match every free with its alloc by address, and what is open at the end with the final blocks.

    A free whose address was not allocated in the trace belongs to a pre-existing allocation; a second
    such free at one address (lost events, skipped actions) is counted and left out.
    """
    is_release = releases(events, blocks)
    traced = _pair_compiled(events, is_release) or _pair(events, is_release)
    live = np.flatnonzero(blocks.state != BlockState.INACTIVE)
    is_open = traced.end_event < 0
    block_of_open = _find(traced.addr[is_open], blocks.addr[live], live)
    block_id = np.full(len(traced.addr), -1, np.int64)
    block_id[is_open] = block_of_open
    is_untraced = blocks.state != BlockState.INACTIVE
    is_untraced[block_of_open[block_of_open >= 0]] = False
    untraced = np.flatnonzero(is_untraced)
    none = np.full(len(untraced), -1, np.int64)
    rows = Lifetimes(
        alloc_event=_joined(none, traced.alloc_event),
        free_requested_event=_joined(none, traced.free_requested_event),
        free_completed_event=_joined(none, traced.free_completed_event),
        end_event=_joined(none, traced.end_event),
        addr=_joined(blocks.addr[untraced], traced.addr),
        block_id=_joined(untraced, block_id),
        n_orphan_frees=traced.n_orphan_frees,
        n_implicit_frees=traced.n_implicit_frees,
        n_missing_from_segments=int(np.count_nonzero(block_of_open < 0)),
    )
    is_in_order = bool(np.all(rows.alloc_event[1:] > rows.alloc_event[:-1]))
    return read_only(rows) if is_in_order else take(rows, _order(rows.alloc_event, rows.addr, len(events)))


def _joined(first: Int64Column, then: NDArray[_Number]) -> NDArray[_Number]:
    return np.concatenate((first.astype(then.dtype), then)) if len(first) else then


def _order(alloc: EventColumn, addr: Int64Column, n_events: int) -> Int64Column:
    """Return the rows without an alloc by address, then the others by their alloc, without a sort."""
    first = np.flatnonzero(alloc < 0)
    first = first[np.argsort(addr[first], kind="stable")]
    row_of_event = np.full(n_events, -1, np.int64)
    row_of_event[alloc[alloc >= 0]] = np.flatnonzero(alloc >= 0)
    return np.concatenate((first, row_of_event[row_of_event >= 0]))


def releases(events: EventTable, blocks: BlockTable) -> BoolColumn:
    """Return the mask of events that make memory free again.

    A trace recorded with ``skip_actions`` may lack every free_completed; then a request frees at once,
    unless it is the last one at an address where the dump shows that the block still waits.
    """
    completed, free = has_code(events.action, Action.FREE_COMPLETED), has_code(events.action, Action.FREE)
    if completed.any():
        return completed | free
    requests = has_code(events.action, Action.FREE_REQUESTED)
    waiting = blocks.addr[blocks.state == BlockState.PENDING_FREE]
    newest_first = np.flatnonzero(requests & is_among(events.addr, waiting))[::-1]
    _, last = np.unique(events.addr[newest_first], return_index=True)
    requests[newest_first[last]] = False
    return free | requests


def _pair_compiled(events: EventTable, is_release: BoolColumn) -> _Pairs | None:
    compiled = core()
    if compiled is None:
        return None
    # The first three have their codes; a table of codes would be turned into int64 for every event.
    kind = events.action * (events.action <= int(Action.FREE_COMPLETED))
    kind += np.int8(4) * has_code(events.action, Action.FREE)
    found = pair_compiled(compiled, kind, events.addr, is_release)
    if found is None:
        return None
    (*found_events, addr), n_orphans, n_implicit = found
    alloc, requested, completed, end = (column.astype(np.int32) for column in found_events)
    return _Pairs(alloc, requested, completed, end, addr, n_orphans, n_implicit)


def _kinds(events: EventTable) -> tuple[Int64Column, Int8Column, Int64Column]:
    """Return the events that begin or end allocations, sorted by address, then by time."""
    kind_of_action = np.full(len(Action), -1, np.int8)
    kind_of_action[Action.ALLOC] = _ALLOC
    kind_of_action[Action.FREE_REQUESTED] = _REQUESTED
    kind_of_action[[Action.FREE_COMPLETED, Action.FREE]] = _COMPLETED
    kind = kind_of_action[events.action]
    event = np.flatnonzero(kind >= 0)
    event = event[np.argsort(events.addr[event], kind="stable")]
    return event, kind[event], events.addr[event]


def _pair(events: EventTable, is_release: BoolColumn) -> _Pairs:
    event, kind, addr = _kinds(events)
    if not len(event):
        none, no_event = np.empty(0, np.int64), np.empty(0, np.int32)
        return _Pairs(no_event, no_event, no_event, no_event, none, 0, 0)
    is_new_addr = np.concatenate(([True], addr[1:] != addr[:-1]))
    before = np.concatenate(([np.int8(_ALLOC)], kind[:-1]))
    # Within one address the order is alloc, requested, completed; what is no step on begins another lifetime.
    begins = is_new_addr | (before >= kind)
    row = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    columns = np.full((3, len(first)), -1, np.int32)
    columns[kind, row] = event
    alloc, requested, completed = columns
    requested = np.where(_is_merged_free(events, completed) & (requested < 0), completed, requested)
    is_orphan = (alloc < 0) & ~is_new_addr[first]
    end = _ends(alloc, requested, completed, addr[first], is_release)
    keep = np.flatnonzero(~is_orphan)
    rows = _Pairs(
        alloc_event=alloc,
        free_requested_event=requested,
        free_completed_event=completed,
        end_event=end,
        addr=addr[first],
        n_orphan_frees=int(np.count_nonzero(is_orphan)),
        n_implicit_frees=int(np.count_nonzero((end >= 0) & (completed < 0) & (end != requested))),
    )
    return take(rows, keep)


def _is_merged_free(events: EventTable, completed: EventColumn) -> BoolColumn:
    return np.asarray((completed >= 0) & (events.action[completed] == Action.FREE))


def _ends(
    alloc: EventColumn,
    requested: EventColumn,
    completed: EventColumn,
    addr: Int64Column,
    is_release: BoolColumn,
) -> EventColumn:
    """Return the end of each lifetime: its completed free, or the next alloc at the same address."""
    at_request = (completed < 0) & (requested >= 0) & is_release[requested]
    completed = np.where(at_request, requested, completed)
    next_alloc = np.full(len(alloc), -1, np.int32)
    same = (addr[1:] == addr[:-1]) & (alloc[1:] >= 0)
    next_alloc[:-1][same] = alloc[1:][same]
    return first_known(completed, next_alloc)


def _find(wanted: Int64Column, addrs: Int64Column, rows: Int64Column) -> Int64Column:
    """Return the rows whose address is wanted, -1 where there is none."""
    if not len(addrs):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(addrs, kind="stable")
    place = np.minimum(np.searchsorted(addrs, wanted, sorter=order), len(addrs) - 1)
    found = order[place]
    return np.where(addrs[found] == wanted, rows[found], -1)


def real_events(events: EventTable) -> EventTable:
    """Return the events with no action and no stack in rows that describe torch_npu's workspaces.

    At every dump torch_npu puts three entries per workspace before the trace: a workspace_snapshot, and
    a segment_alloc and an alloc of one address (NPUWorkspaceAllocator.cpp, get_trace). They describe
    memory outside the caching allocator, which was there at some time or other, and the first real
    event follows at once: so no more than these three are left out.
    """
    action, addr = events.action, events.addr
    marker = np.flatnonzero(has_code(action[:-2], Action.WORKSPACE_SNAPSHOT))
    if not len(marker):
        return events
    is_pair = (action[marker + 1] == Action.SEGMENT_ALLOC) & (action[marker + 2] == Action.ALLOC)
    marker = marker[is_pair & (addr[marker + 1] == addr[marker + 2])]
    described = np.concatenate((marker, marker + 1, marker + 2))
    action, stack_id = action.copy(), events.stack_id.copy()
    action[described] = Action.UNKNOWN
    stack_id[described] = -1
    return read_only(replace(events, action=action, stack_id=stack_id))
