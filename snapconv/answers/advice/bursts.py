"""Bursts of frees: old memory that a line of the program frees once its replacement is there.

``out = model(batch)`` in a loop frees the previous ``out`` when the new one is made, since Python
gives the name its new value last. A burst ends where something is allocated.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from snapconv.answers.advice.evidence import Evidence
from snapconv.classification.categories import Trait
from snapconv.classification.features import at
from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int64Column,
    distinct,
    grouped,
    is_among,
    number_groups,
    rows_of,
    sums_by,
    unknown_column,
)
from snapconv.torch_knowledge.frame_patterns import Role

# This part of the bytes of a burst, or of a forward, is enough: the rest may be temporaries.
NEARLY = 0.9
# A graph has tensors of many lines of modules.
_LEAST_STACKS, _LEAST_ROWS = 5, 8
# More bursts than this are not looked at, nor more allocations of one.
_MOST_BURSTS, _MOST_ROWS = 2000, 1 << 16
# No event has a larger number.
_EVENT_BITS = 32
# In the engine, the collector, or within a module, a line is not the program's own loop; what
# autocast drops at its exit was no name's.
_NOT_OF_NAMES = (Role.ENGINE, Role.MODULE_CALL, Role.COLLECTOR, Role.UNCACHED)


def is_graph(evidence: Evidence, rows: Int64Column) -> bool:
    """Return whether allocations are a graph.

    A graph is of many lines of modules, or has many sizes where stacks are unknown.
    """
    features = evidence.features
    is_unknown = features.has_no_frames[rows]
    is_part = features.in_forward[rows] | features.preexisting_in_forward[rows] | is_unknown
    parts = rows[is_part & ~features.is_cache[rows]]
    n_stacks = len(distinct(evidence.stack_id[parts]))
    n_sizes = len(distinct(features.sizes[rows[is_unknown]]))
    return len(parts) >= _LEAST_ROWS and n_stacks + n_sizes >= _LEAST_STACKS


@dataclass(frozen=True, slots=True)
class Burst:
    """Old allocations that one line freed together.

    ``call`` is the first event of the call that replaced them. ``line``: a stack with the Python
    frames that freed them. ``maker``: the frames down to the call, if another line has it.
    ``all_rows``: with what is older, of other lines, and went with them, as the inputs of a graph
    do.
    """

    rows: Int64Column
    all_rows: Int64Column
    call: int
    line: int
    is_graph: bool
    maker: tuple[int, ...] = ()


class _EventsOf:
    """The events of numbered things, such as the allocs of every stack."""

    def __init__(self, number: NDArray[Any], event: EventColumn) -> None:
        self._keys = np.sort(_first_key(number) + event)

    def count(self, number: ArrayLike, first: int | EventColumn, after: int) -> Int64Column:
        """Return how many events each has from one up to, but without, another."""
        key = _first_key(number)
        begin = np.searchsorted(self._keys, key + first)
        end = np.searchsorted(self._keys, key + after)
        return end - begin

    def last_before(self, number: int, event: int) -> int:
        """Return the last event that one has before another; -1 for none."""
        key = _first_key(number)
        position = np.searchsorted(self._keys, key + event)
        return max(int(np.append(-1, self._keys)[position] - key), -1)


def _first_key(number: ArrayLike) -> Int64Column:
    return np.asarray(number, np.int64) << _EVENT_BITS


class Bursts:
    """The bursts of one device, and which of them the next call replaced.

    Columns have an entry for every allocation, made once: there are thousands of bursts, and each
    looks at a few rows. ``freed``: when a line of the program freed it, else -1. ``line``: the
    first stack with the Python frames of the one that freed it; stacks differ in C++ too.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.events = evidence.analysis.device.events
        self.calls = evidence.calls
        self.features = evidence.features
        self.alloc = evidence.alloc
        self.sizes = evidence.sizes
        self.stack_id = evidence.stack_id
        table = evidence.table
        is_of_name = self.features.lines_of(table.free_stack_id) >= 0
        for role in _NOT_OF_NAMES:
            is_of_name &= ~self.features.freed_through(role)
        self.freed = np.where(is_of_name, table.freed_event, -1)
        self.burst = at(self.calls.n_allocs, self.freed, -1)
        python = self.features.roles.python
        first_stacks: dict[bytes, int] = {}
        stack_lines = np.zeros(len(python) + 1, np.int32)  # the last: no stack
        for stack in distinct(table.free_stack_id).tolist():
            frames = python.frames_of(stack).tobytes()
            stack_lines[stack] = first_stacks.setdefault(frames, stack)
        self.line = np.take(stack_lines, table.free_stack_id)

    @cached_property
    def _allocs(self) -> _EventsOf:
        """The allocs of every stack."""
        traced = self.features.is_traced
        return _EventsOf(self.stack_id[traced], self.alloc[traced])

    @cached_property
    def _allocs_of_kind(self) -> tuple[Int64Column, _EventsOf]:
        """A number for the stack and the size of each allocation, and their allocs."""
        kind = number_groups(self.stack_id, self.sizes)[1]
        return kind, _EventsOf(kind, self.alloc)

    @cached_property
    def _frees(self) -> _EventsOf:
        """The frees of every line."""
        freed = self.freed >= 0
        return _EventsOf(self.line[freed], self.freed[freed])

    def finished(self) -> Iterator[Burst]:
        """Find old allocations in use at the moment, while their replacement is made."""
        moment = self.evidence.moment.event
        live = rows_of(self.evidence.live & (self.freed > moment))
        for rows, _ in self._large(live, live):
            burst = self._replaced(rows)
            if (
                burst
                and burst.call <= moment
                and (burst.is_graph or self._is_never_read(burst))
            ):
                yield burst

    def unfinished(self, finished: Sequence[Burst]) -> Iterator[Burst]:
        """Find other allocations that the call at the moment would have replaced.

        Its line has replaced such before.
        """
        moment = self.evidence.moment.event
        stack = int(self.events.stack_id[moment]) if moment >= 0 else -1
        is_open = self.evidence.live & self.features.is_traced
        for burst in finished:
            is_open[burst.rows] = False
        live = rows_of(is_open & (stack >= 0))
        earlier = self._last_like(live, moment)
        for freed, rows in self._large(earlier[earlier >= 0], live[earlier >= 0]):
            like = self._replaced(distinct(freed))
            if like is None or not (like.is_graph or self._is_never_read(like)):
                continue
            path = self.calls.path(like.line)
            call = self.calls.began(path, moment)
            rows = rows[is_among(freed, like.rows) & (self.alloc[rows] < call)]
            if len(rows) and self.calls.is_within(path)[stack]:
                yield Burst(rows, rows, call, like.line, like.is_graph)

    def _last_like(self, rows: Int64Column, moment: int) -> Int64Column:
        """Return for each allocation the last one of its stack that was freed; -1 for none.

        Only frees up to the moment count.
        """
        is_past = (self.freed >= 0) & (self.freed <= moment)
        past = rows_of(self.features.is_traced & is_past)
        newest = unknown_column(len(self.features.roles.python) + 1)
        newest[self.stack_id[past]] = past  # of several, what is written last stays
        newest[-1] = -1
        return newest[self.stack_id[rows]]

    def _large(
        self, rows: Int64Column, live: Int64Column
    ) -> Iterator[tuple[Int64Column, Int64Column]]:
        """Group allocations by the burst and the line that freed them.

        ``live`` has an allocation in use for each: itself, or one like it. Only groups are yielded
        whose live bytes are worth a finding.
        """
        first, group = number_groups(self.line[rows], self.burst[rows])
        n_bytes = sums_by(group, self.evidence.table.block_bytes[live], len(first))
        is_worth = n_bytes >= self.evidence.least_bytes()
        for positions in grouped(rows_of(is_worth[group]), group):
            yield rows[positions], live[positions]

    def freed_by(self, line: int) -> Iterator[Burst]:
        """Find what a line freed too late, in the whole trace."""
        rows = rows_of((self.line == line) & (self.burst >= 0))
        bursts = grouped(rows, self.burst)[:_MOST_BURSTS]
        yield from filter(None, map(self._replaced, bursts))

    def _replaced(self, rows: Int64Column) -> Burst | None:
        """Find the allocations of a burst that the call just ended replaced; None for none."""
        line = int(self.line[rows[0]])
        freed = int(self.freed[rows[0]])
        burst = rows[:_MOST_ROWS]
        alloc = self.alloc
        path = self.calls.path(line)
        rows = self._old(burst)
        if not len(rows):
            return None
        last = int(rows[alloc[rows].argmax()])
        is_of_graph = is_graph(self.evidence, rows)
        newest = int(alloc[last])
        call = self._call(path, last, freed)
        if call <= newest and is_of_graph:
            call = self.calls.next_alloc(newest)
        if newest < call < freed and self._is_made_anew(
            rows, newest, (call, freed), is_of_graph=is_of_graph
        ):
            all_rows = np.union1d(rows, burst[alloc[burst] < newest])
            return Burst(rows, all_rows, call, line, is_of_graph)
        # A loss keeps the graph: its own line frees the old one, once the model has made the next.
        is_project = self.calls.lines.of_frame(path[-1]) is not None
        if newest < 0 and is_of_graph and is_project:
            return self._replaced_by_forward(rows, line)
        return None

    def _call(self, path: tuple[int, ...], last: int, freed: int) -> int:
        """Return where the call began that ends with a free.

        ``last`` is the newest old allocation, made before the call.
        """
        call = self.calls.began(path, freed)
        if call > self.alloc[last]:
            return call
        # Nothing but this line is in the loop, or this is a temporary of the call itself.
        module = self.calls.model_call(int(self.stack_id[last]))
        return self.calls.began_last(module, freed) if module else -1

    def _old(self, rows: Int64Column) -> Int64Column:
        """Return the allocations of a burst that its line had made before the call just ended."""
        alloc = self.alloc[rows]
        stack = self.stack_id[rows]
        line = int(self.line[rows[0]])
        has_stack = stack >= 0
        is_old = self.calls.is_within(self.calls.path(line))[stack]
        n_later = self._allocs.count(stack, alloc + 1, int(self.freed[rows[0]]))
        is_old &= ~has_stack | (n_later > 0)
        # Allocations since the line last freed anything are temporaries of the call.
        began = int(at(self.calls.alloc_events, self.burst[rows[0]] - 1))
        is_older = alloc < self._frees.last_before(line, began)
        is_old &= is_older | ~is_older.any()
        return rows[is_old & (has_stack | (alloc < 0))]

    def _is_made_anew(
        self, rows: Int64Column, newest: int, span: tuple[int, int], *, is_of_graph: bool
    ) -> bool:
        """Return whether nearly all have a replacement of the same stack.

        Without a stack, it has the same size. Equal layers of one call share a stack: of a graph
        each allocation has one of its own.
        """
        alloc_events = self.calls.alloc_events
        stack = self.stack_id[rows]
        stacks, kind, n_old = np.unique(stack, return_inverse=True, return_counts=True)
        n_new = self._allocs.count(stacks, newest + 1, span[1])
        is_enough = n_new >= (n_old if is_of_graph else 1)
        first, after = np.searchsorted(alloc_events, span)
        sizes = self.events.size[alloc_events[first:after]]
        is_again = np.isin(self.sizes[rows], sizes)
        return self._are_nearly_all(rows, np.where(stack >= 0, is_enough[kind], is_again))

    def _are_nearly_all(self, rows: Int64Column, marks: BoolColumn) -> bool:
        full_bytes = self.evidence.bytes_of(rows)
        return self.evidence.bytes_of(rows[marks]) >= NEARLY * full_bytes

    def _replaced_by_forward(self, rows: Int64Column, line: int) -> Burst | None:
        """Find the forward that replaced a graph of before the trace, size by size.

        Its memory is in use when the graph is freed. Blocks of a model, or of batches, are made
        anew outside of a forward. Where as many more of before the trace stay in use, a cache
        dropped its oldest entry.
        """
        sizes = self.sizes
        required = NEARLY * sizes[rows].sum()
        live = self.evidence.table.live_at(int(self.freed[rows].max()))
        is_like = live & is_among(sizes, sizes[rows])
        new = rows_of(is_like & self.features.in_forward)
        remaining = rows_of(is_like & ~self.features.is_traced)
        if _shared_bytes(sizes[rows], sizes[new]) < required:
            return None
        if _shared_bytes(sizes[rows], sizes[remaining]) >= required:
            return None
        maker = self.calls.model_call(int(self.stack_id[new[0]]))
        if not maker:
            return None
        call = self.calls.began(maker, int(self.alloc[new[0]]))
        return Burst(rows, rows, call, line, is_graph=True, maker=maker[:-1])

    def _is_never_read(self, burst: Burst) -> bool:
        """Return whether the line's first call in the trace had no tensor of that size to read.

        Its output has the same size each time: one that grows is read to make the next.
        """
        rows = burst.rows
        recorded = self.features.recorded
        stacks = self.stack_id[rows]
        is_input = recorded is not None and np.isin(rows, recorded.inputs).any()
        if is_input or not (stacks >= 0).all():
            return False
        is_like = self.features.is_traced & is_among(self.stack_id, stacks)
        first = int(self.alloc[is_like].min())
        began = self.calls.began(self.calls.path(burst.line), first)
        live = self.evidence.table.live_at(began - 1)
        live &= ~self.evidence.has(Trait.READ_BY_EVERYTHING)
        is_read = np.isin(self.sizes[rows], self.sizes[live])
        # The replacement has the size too: equal modules share a stack, so the next of a stack may
        # be another module's.
        kind, allocs = self._allocs_of_kind
        newest = self.alloc[rows].max()
        n_replacements = allocs.count(kind[rows], newest + 1, int(self.freed[rows[0]]))
        return self._are_nearly_all(rows, ~is_read & (n_replacements > 0))


def _shared_bytes(old_sizes: Int64Column, new_sizes: Int64Column) -> int:
    """Return the bytes of the sizes that two lists have in common, each as often as in both."""
    shared = Counter(old_sizes.tolist()) & Counter(new_sizes.tolist())
    return sum(shared.elements())
