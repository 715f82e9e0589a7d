"""Memory that is still in use while its replacement is made: a previous output, loss, graph or batch.

``out = model(batch)`` in a loop keeps the previous ``out`` until the new one is there, since Python gives the
name its new value last. The trace shows it: allocations are freed by a line, in one burst, right after the
same line's call made allocations of the same stacks. They could have been freed before the call began, unless
the call reads them. It does not read a graph that is freed with the name; of other tensors an earlier call
of the line shows whether it needs one of that size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.calls import LineCalls
from snapconv.answers.advice.changes import freed_from
from snapconv.answers.advice.evidence import Detected, Evidence
from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, Int64Column, grouped
from snapconv.torch_knowledge.frame_roles import Role

# Of the bytes of a burst: the rest may be temporaries of the call.
_NEARLY = 0.9
# A graph has tensors of many lines; a list of states that the next call reads has those of one or two.
_LEAST_STACKS_OF_GRAPH, _LEAST_ROWS_OF_GRAPH = 5, 8
# More bursts than this are not looked at, nor more allocations of one.
_MOST_BURSTS, _MOST_ROWS = 2000, 1 << 16
_READ_BY_EVERYTHING = (Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True)
class _Burst:
    """Old allocations that one line freed together, and the first event of the call that replaced them.

    ``path``: the Python frames down to that line. ``is_unfinished``: the moment is within that call, and the
    line does not free the old allocations, as when memory runs out in it.
    """

    rows: Int64Column
    call: int
    path: tuple[int, ...]
    is_graph: bool
    is_unfinished: bool = False


def previous_kept(evidence: Evidence) -> Iterator[Detected]:
    """Find what lines keep until its replacement is made, at the moment and everywhere else in the trace."""
    if not evidence.analysis.phases.free_sites_known:
        return
    finder = _Finder(evidence.analysis, evidence.calls)
    found: dict[tuple[int, ...], list[_Burst]] = {}
    finished = list(finder.finished(evidence))
    for burst in (*finished, *finder.unfinished(evidence, finished)):
        found.setdefault(burst.path, []).append(burst)
    for bursts in found.values():
        mine = np.concatenate([burst.rows for burst in bursts])
        if evidence.bytes_of(mine) < evidence.least_bytes:
            continue
        every = [*finder.everywhere(bursts[0].path), *(burst for burst in bursts if burst.is_unfinished)]
        change = freed_from(
            evidence.analysis,
            np.concatenate([burst.rows for burst in every]),
            np.concatenate([np.full(len(burst.rows), burst.call) for burst in every]),
        )
        is_graph = any(burst.is_graph for burst in bursts)
        yield Detected(
            change,
            evidence.main_line(mine),
            evidence.calls.line_of(bursts[0].path, evidence.lines),
            is_certain=is_graph,
            values={"thing": _thing(evidence.analysis, mine, is_graph=is_graph)},
        )


def _thing(analysis: DeviceAnalysis, rows: Int64Column, *, is_graph: bool) -> str:
    if is_graph:
        return "output and the graph of its forward"
    category = analysis.classification.category[rows]
    names = {Category.INPUT: "batch", Category.KV_CACHE: "cache of keys and values"}
    return names.get(Category(int(category[0])), "output") if len(set(category.tolist())) == 1 else "output"


class _Finder:
    """Bursts of frees on one device. A burst ends where something is allocated."""

    def __init__(self, analysis: DeviceAnalysis, calls: LineCalls) -> None:
        self.analysis, self.calls, self.table = analysis, calls, analysis.allocations
        # A row's, once: there are thousands of bursts, and each looks at a few rows.
        self.freed = freed = self.table.freed_event.astype(np.int64)
        self.burst = np.where(freed >= 0, calls.n_allocs[np.maximum(freed, 0)], -1)
        self._paths: dict[tuple[int, ...], int] = {}
        self.path_id = self._path_ids()
        # The allocs of each stack, in their order.
        traced = np.flatnonzero(self.table.alloc_event >= 0)
        order = traced[np.argsort(self.table.stack_id[traced], kind="stable")]
        self._stack, self._alloc = self.table.stack_id[order], self.table.alloc_event[order].astype(np.int64)
        self._row = order
        self._n_events = len(analysis.device.events)
        self._key = self._stack.astype(np.int64) * (self._n_events + 1) + self._alloc

    def _path_ids(self) -> Int64Column:
        """Return a number for the Python frames that freed each allocation; stacks differ in C++ too."""
        known = self._paths
        stacks, group = np.unique(self.table.free_stack_id, return_inverse=True)
        ids = [known.setdefault(self.calls.path(stack), len(known)) for stack in stacks.tolist()]
        return np.array(ids, np.int64)[group.reshape(-1)] if len(ids) else np.zeros(0, np.int64)

    def bursts(self, rows: Int64Column) -> Iterator[Int64Column]:
        """Group allocations by the burst and the line that freed them."""
        for of_path in grouped(rows, self.path_id):
            yield from grouped(of_path, self.burst)

    def finished(self, evidence: Evidence) -> Iterator[_Burst]:
        """Find bursts whose old allocations are in use at the moment, while their replacement is made."""
        freed, moment = self.freed, evidence.moment.event
        live = np.flatnonzero(evidence.live & (freed > moment) & (self.table.free_stack_id >= 0))
        for rows in self.bursts(live):
            if evidence.bytes_of(rows) < evidence.least_bytes:
                continue
            found = self.replaced(rows)
            if found and found.call <= moment and (found.is_graph or self.is_never_read(found)):
                yield found

    def unfinished(self, evidence: Evidence, finished: Sequence[_Burst]) -> Iterator[_Burst]:
        """Find other allocations that the call at the moment would have replaced, as its line did before.

        Each is as the last one of its stack that was freed.
        """
        moment, stack = evidence.moment.event, -1
        if moment >= 0:
            stack = int(self.analysis.device.events.stack_id[moment])
        is_open = evidence.live & (self.table.alloc_event >= 0)
        for burst in finished:
            is_open[burst.rows] = False
        live = np.flatnonzero(is_open)
        freed = self.freed[self._row]
        done = self._row[(freed >= 0) & (freed <= moment)]
        if stack < 0 or not len(done):
            return
        earlier = self._last_of_stack(done, live)
        is_known = (earlier >= 0) & (self.table.stack_id[live] >= 0)
        live, earlier = live[is_known], earlier[is_known]
        for rows_of_burst in self.bursts(np.unique(earlier)):
            rows = live[np.isin(earlier, rows_of_burst)]
            if evidence.bytes_of(rows) < evidence.least_bytes:
                continue
            found = self.replaced(rows_of_burst)
            if found is None or not self.calls.is_within(found.path)[stack]:
                continue
            call = self.calls.began(found.path, moment)
            rows = live[np.isin(earlier, found.rows)]
            rows = rows[self.table.alloc_event[rows] < call]
            if len(rows) and (found.is_graph or self.is_never_read(found)):
                yield _Burst(rows, call, found.path, found.is_graph, is_unfinished=True)

    def _last_of_stack(self, done: Int64Column, rows: Int64Column) -> Int64Column:
        """Return the last of allocations (in the order of stacks) with the stack of each row; -1: none."""
        stacks = self.table.stack_id[done]
        place = np.searchsorted(stacks, self.table.stack_id[rows], side="right") - 1
        found = done[np.maximum(place, 0)]
        return np.where(self.table.stack_id[found] == self.table.stack_id[rows], found, -1)

    def everywhere(self, path: tuple[int, ...]) -> Iterator[_Burst]:
        """Find what a line freed too late, in the whole trace."""
        rows = np.flatnonzero((self.path_id == self._paths[path]) & (self.burst >= 0))
        for number, of_burst in enumerate(grouped(rows, self.burst)):
            if number == _MOST_BURSTS:
                return
            if found := self.replaced(of_burst):
                yield found

    def replaced(self, rows: Int64Column) -> _Burst | None:
        """Find which allocations of a burst were replaced by the call that had just ended; None for none."""
        free_stack, freed = int(self.table.free_stack_id[rows[0]]), int(self.freed[rows[0]])
        path = self.calls.path(free_stack)
        if not path or self._is_library_loop(free_stack):
            return None
        within = self.calls.is_within(path)
        rows = rows[:_MOST_ROWS]
        has_stack = self.table.stack_id[rows] >= 0
        next_alloc = self._next_alloc(rows, self.table.alloc_event[rows].astype(np.int64))
        is_old = within[self.table.stack_id[rows]] & (~has_stack | (next_alloc < freed))
        rows = rows[is_old & (has_stack | (self.table.alloc_event[rows] < 0))]
        if not len(rows):
            return None
        newest = int(self.table.alloc_event[rows].max())
        call, is_graph = self.calls.began(path, freed), self._is_graph(rows)
        if call <= newest:  # nothing but this line in the loop, or a temporary of the call itself
            call = self.calls.alloc_after(newest)
            if not is_graph and not self._is_after_another(rows, newest, call):
                return None
        is_made_anew = self._is_made_anew(rows, newest, call, freed)
        n_bytes = self.table.block_bytes[rows]
        if call >= freed or n_bytes[is_made_anew].sum() < _NEARLY * n_bytes.sum():
            return None
        return _Burst(rows, call, path, is_graph)

    def _is_library_loop(self, free_stack: int) -> bool:
        """Whether a line is not the program's own loop: it runs in the engine, or within a module."""
        stack = np.array([free_stack], np.int32)
        roles = self.analysis.roles
        return bool(roles.of(Role.ENGINE, stack)[0] | roles.of(Role.MODULE_CALL, stack)[0])

    def _is_after_another(self, rows: Int64Column, newest: int, call: int) -> bool:
        """Whether the line freed an earlier one of the same stacks right after it had made these.

        They were made by functions that the line calls: its own operations all have the same stack.
        """
        free_stack = int(self.table.free_stack_id[rows[0]])
        depth = len(self.calls.path(free_stack))
        stacks = np.unique(self.table.stack_id[rows])
        if any(len(self.calls.path(stack)) <= depth for stack in stacks.tolist()):
            return False
        ranges = zip(*(np.searchsorted(self._stack, stacks, side) for side in ("left", "right")), strict=True)
        same = np.concatenate([self._row[first:after] for first, after in ranges])
        freed = self.freed[same]
        is_earlier = (self.path_id[same] == self.path_id[rows[0]]) & (freed > newest) & (freed < call)
        return bool(is_earlier.any())

    def _next_alloc(self, rows: Int64Column, after: Int64Column) -> Int64Column:
        """Return the next alloc of each allocation's stack after an event; the number of events for none."""
        wanted = self.table.stack_id[rows].astype(np.int64) * (self._n_events + 1) + after
        place = np.minimum(np.searchsorted(self._key, wanted, side="right"), len(self._key) - 1)
        is_same = (self._stack[place] == self.table.stack_id[rows]) & (self._alloc[place] > after)
        return np.where(is_same, self._alloc[place], self._n_events)

    def _is_made_anew(self, rows: Int64Column, newest: int, call: int, freed: int) -> BoolColumn:
        """Mark the allocations with a replacement: of the same stack, or without one of the same size."""
        has_stack = self.table.stack_id[rows] >= 0
        again = self._next_alloc(rows, np.full(len(rows), newest, np.int64)) < freed
        if has_stack.all():
            return again
        first, after = np.searchsorted(self.calls.alloc_events, (call, freed))
        sizes = self.analysis.device.events.size[self.calls.alloc_events[first:after]]
        return np.where(has_stack, again, np.isin(self.table.requested_bytes[rows], sizes))

    def _is_graph(self, rows: Int64Column) -> bool:
        """Whether allocations are a graph: tensors of many lines of modules, or of before the trace."""
        features = self.analysis.features
        in_forward = features.in_forward[rows] | features.preexisting_in_forward[rows]
        unknown = self.table.stack_id[rows] < 0
        unknown |= np.append(self.analysis.roles.is_empty, True)[self.table.stack_id[rows]]
        mine = rows[in_forward | unknown]
        n_kinds = len(np.unique(self.table.stack_id[mine])) + len(
            np.unique(self.table.requested_bytes[rows[unknown]])
        )
        return len(mine) >= _LEAST_ROWS_OF_GRAPH and n_kinds >= _LEAST_STACKS_OF_GRAPH

    def is_never_read(self, burst: _Burst) -> bool:
        """Whether the line's first call in the trace had no tensor of that size to read.

        Its output has the same size each time: one that grows is read to make the next.
        """
        rows, table = burst.rows, self.table
        if not (table.stack_id[rows] >= 0).all() or self._is_recorded_input(rows):
            return False
        places = np.searchsorted(self._stack, table.stack_id[rows])
        first = int(self._alloc[places].min())
        began = self.calls.began(burst.path, first)
        live = np.flatnonzero(table.live_at(began - 1))
        live = live[~np.isin(self.analysis.classification.category[live], _READ_BY_EVERYTHING)]
        is_read = np.isin(table.requested_bytes[rows], table.requested_bytes[live])
        next_alloc = self._next_alloc(rows, table.alloc_event[rows].astype(np.int64))
        made = self._row_at(next_alloc)
        is_same = table.requested_bytes[made] == table.requested_bytes[rows]
        n_bytes = table.block_bytes[rows]
        return bool(n_bytes[~is_read & is_same].sum() >= _NEARLY * n_bytes.sum())

    def _row_at(self, alloc: Int64Column) -> Int64Column:
        """Return the allocations that events made."""
        n_before = int(np.searchsorted(self.table.alloc_event, 0))
        return n_before + np.searchsorted(self.table.alloc_event[n_before:], alloc)

    def _is_recorded_input(self, rows: Int64Column) -> bool:
        recorded = self.analysis.recorded
        return recorded is not None and bool(np.isin(rows, recorded.inputs).any())
