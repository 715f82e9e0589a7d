"""Bursts of frees: old memory that a line of the program frees once its replacement is there.

``out = model(batch)`` in a loop frees the previous ``out`` when the new one is made, since Python
gives the name its new value last. A burst is a line's frees without an allocation between them. A
graph is what a forward leaves for its backward. A line has the number of the first stack with its
Python frames.
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
    Int32Column,
    Int64Column,
    distinct,
    grouped,
    is_among,
    number_groups,
    rows_of,
    sums_by,
    unknown_column,
)
from snapconv.hypotheses.line_calls import CallPath
from snapconv.torch_knowledge.frame_patterns import Role

# This part of the bytes of a burst, or of a forward, is enough: the rest may be temporaries.
NEARLY = 0.9
# Fewer allocations, or of fewer lines, may be the results of one operation; a model's graph has
# more.
_LEAST_STACKS, _LEAST_ROWS = 5, 8
# More bursts than this are not looked at, nor more allocations of one.
_MOST_BURSTS, _MOST_ROWS = 2000, 1 << 16
# No event has a larger number.
_EVENT_BITS = 32
# What the engine, the collector or a module frees is not replaced by a line of the program's loop;
# autocast drops its copies at its exit, whichever line that is.
_NOT_BY_LINES = (Role.ENGINE, Role.MODULE_CALL, Role.COLLECTOR, Role.UNCACHED)


def is_graph(evidence: Evidence, rows: Int64Column) -> bool:
    """Return whether allocations are a graph, by the number of lines of modules that made them.

    Allocations without frames may be of any line: each of their sizes counts as one.
    """
    features = evidence.features
    is_frameless = features.has_no_frames[rows]
    is_of_forward = features.in_forward[rows] | features.preexisting_in_forward[rows]
    parts = rows[(is_of_forward | is_frameless) & ~features.is_cache[rows]]
    n_stacks = len(distinct(evidence.stack_id[parts]))
    n_sizes = len(distinct(features.sizes[rows[is_frameless]]))
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


class _NumberedEvents:
    """The events of numbered things, such as the allocs of every stack.

    A number and an event are one integer, the event in its low bits; all of them are sorted.
    """

    def __init__(self, number: NDArray[Any], event: EventColumn) -> None:
        self._keys = np.sort(_first_key(number) + event)

    def count(self, number: ArrayLike, begin: int | EventColumn, end: int) -> Int64Column:
        """Return how many events of each number are at ``begin`` or later, and before ``end``."""
        first_key = _first_key(number)
        first = np.searchsorted(self._keys, first_key + begin)
        after = np.searchsorted(self._keys, first_key + end)
        return after - first

    def last_before(self, number: int, event: int) -> int:
        """Return a number's last event before another event; -1 for none."""
        first_key = _first_key(number)
        n_before = np.searchsorted(self._keys, first_key + event)
        # Events of smaller numbers stand before those of this one.
        if not n_before or self._keys[n_before - 1] < first_key:
            return -1
        return int(self._keys[n_before - 1] - first_key)


def _first_key(number: ArrayLike) -> Int64Column:
    return np.asarray(number, np.int64) << _EVENT_BITS


class Bursts:
    """The bursts of one device, and which of them the next call replaced.

    Columns have an entry for every allocation, made once: there are thousands of bursts, and each
    looks at a few rows. ``freed``: when a line of the program freed it, else -1. ``burst``: how
    many allocs the trace has before that, the same for all of a burst. ``line``: the line that
    freed it.
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
        is_freed_by_line = self.features.lines_of(table.free_stack_id) >= 0
        for role in _NOT_BY_LINES:
            is_freed_by_line &= ~self.features.freed_through(role)
        self.freed = np.where(is_freed_by_line, table.freed_event, -1)
        self.burst = at(self.calls.n_allocs, self.freed, -1)
        self.line = self._lines_of(table.free_stack_id)

    def _lines_of(self, stack_id: Int32Column) -> Int32Column:
        """Return the line of each stack; stacks with the same Python frames differ in C++ ones."""
        python = self.features.roles.python
        first_stacks: dict[bytes, int] = {}
        stack_lines = np.zeros(len(python) + 1, np.int32)  # the last: no stack
        for stack in distinct(stack_id).tolist():
            frames = python.frames_of(stack).tobytes()
            stack_lines[stack] = first_stacks.setdefault(frames, stack)
        return np.take(stack_lines, stack_id)

    @cached_property
    def _allocs(self) -> _NumberedEvents:
        """The allocs of every stack."""
        traced = self.features.is_traced
        return _NumberedEvents(self.stack_id[traced], self.alloc[traced])

    @cached_property
    def _allocs_of_kind(self) -> tuple[Int64Column, _NumberedEvents]:
        """A number for the stack and the size of each allocation, and their allocs."""
        kind = number_groups(self.stack_id, self.sizes)[1]
        return kind, _NumberedEvents(kind, self.alloc)

    @cached_property
    def _frees(self) -> _NumberedEvents:
        """The frees of every line."""
        freed = self.freed >= 0
        return _NumberedEvents(self.line[freed], self.freed[freed])

    def recorded(self) -> Iterator[Burst]:
        """Yield bursts after the moment, of a call that had begun at it.

        Their memory is in use at the moment, while its replacement is made.
        """
        moment = self.evidence.moment.event
        live = rows_of(self.evidence.live & (self.freed > moment))
        for rows, _ in self._large_groups(live, live):
            burst = self._replaced(rows)
            if burst and burst.call <= moment and self._is_unread(burst):
                yield burst

    def expected(self, recorded: Sequence[Burst]) -> Iterator[Burst]:
        """Yield bursts that are not recorded: with one, the call at the moment would have ended.

        An earlier call of its line ended so: it freed allocations of the same stacks.
        """
        moment = self.evidence.moment.event
        stack = int(self.events.stack_id[moment]) if moment >= 0 else -1
        is_open = self.evidence.live & self.features.is_traced
        for burst in recorded:
            is_open[burst.rows] = False
        live = rows_of(is_open & (stack >= 0))
        predecessors = self._last_freed_of_stack(live, moment)
        has_predecessor = predecessors >= 0
        for freed, rows in self._large_groups(
            predecessors[has_predecessor], live[has_predecessor]
        ):
            earlier = self._replaced(distinct(freed))
            if earlier is None or not self._is_unread(earlier):
                continue
            path = self.calls.path(earlier.line)
            call = self.calls.began(path, moment)
            rows = rows[is_among(freed, earlier.rows) & (self.alloc[rows] < call)]
            if len(rows) and self.calls.is_within(path)[stack]:
                yield Burst(rows, rows, call, earlier.line, earlier.is_graph)

    def _last_freed_of_stack(self, rows: Int64Column, moment: int) -> Int64Column:
        """Return the last allocation of the stack of each that was freed; -1 for none.

        Only frees up to the moment count.
        """
        is_past = (self.freed >= 0) & (self.freed <= moment)
        past = rows_of(self.features.is_traced & is_past)
        newest = unknown_column(len(self.features.roles.python) + 1)
        newest[self.stack_id[past]] = past  # of several, what is written last stays
        newest[-1] = -1  # without a stack, none is known to be the same
        return newest[self.stack_id[rows]]

    def _large_groups(
        self, freed: Int64Column, live: Int64Column
    ) -> Iterator[tuple[Int64Column, Int64Column]]:
        """Yield what of ``freed`` one line freed in one burst, with its entries of ``live``.

        ``live`` are allocations in use, each of which ``freed`` has an entry for: itself, or its
        predecessor. Only groups are yielded whose live bytes are worth a finding.
        """
        first, group = number_groups(self.line[freed], self.burst[freed])
        live_bytes = sums_by(group, self.evidence.table.block_bytes[live], len(first))
        is_large = live_bytes >= self.evidence.least_bytes()
        for positions in grouped(rows_of(is_large[group]), group):
            yield freed[positions], live[positions]

    def freed_by(self, line: int) -> Iterator[Burst]:
        """Yield the bursts of a line in the whole trace that a call replaced."""
        rows = rows_of((self.line == line) & (self.burst >= 0))
        bursts = grouped(rows, self.burst)[:_MOST_BURSTS]
        yield from filter(None, map(self._replaced, bursts))

    def _replaced(self, freed_rows: Int64Column) -> Burst | None:
        """Return the part of a burst that the call before it replaced; None for none."""
        line = int(self.line[freed_rows[0]])
        freed = int(self.freed[freed_rows[0]])
        freed_rows = freed_rows[:_MOST_ROWS]
        rows = self._made_before_call(freed_rows)
        if not len(rows):
            return None
        newest_row = int(rows[self.alloc[rows].argmax()])
        newest = int(self.alloc[newest_row])
        is_of_graph = is_graph(self.evidence, rows)
        path = self.calls.path(line)
        call = self._begin_of_call(path, newest_row, freed, is_of_graph=is_of_graph)
        if newest < call < freed and self._is_made_anew(
            rows, newest, (call, freed), is_of_graph=is_of_graph
        ):
            all_rows = np.union1d(rows, freed_rows[self.alloc[freed_rows] < newest])
            return Burst(rows, all_rows, call, line, is_of_graph)
        # A loss keeps the graph: its own line frees the old one, once the model has made the next.
        is_preexisting = newest < 0
        is_project = self.calls.lines.of_frame(path[-1]) is not None
        if is_preexisting and is_of_graph and is_project:
            return self._replaced_by_forward(rows, line)
        return None

    def _begin_of_call(
        self, path: CallPath, newest_row: int, freed: int, *, is_of_graph: bool
    ) -> int:
        """Return where the call began that ends with a free.

        It is after the newest of the old allocations, if that can be known.
        """
        newest = int(self.alloc[newest_row])
        begin = self.calls.began(path, freed)
        if begin <= newest:
            # The loop has no other line, so that one call joins the next: the model's own call
            # parts them.
            model_path = self.calls.model_call(int(self.stack_id[newest_row]))
            if model_path:
                begin = self.calls.began_last(model_path, freed)
        if begin <= newest and is_of_graph:
            # The newest allocation is the graph's last, so that what comes next is of a new one.
            begin = self.calls.next_alloc(newest)
        return begin

    def _made_before_call(self, freed_rows: Int64Column) -> Int64Column:
        """Return the allocations of a burst that its line had made before the call just ended."""
        alloc = self.alloc[freed_rows]
        stack = self.stack_id[freed_rows]
        line = int(self.line[freed_rows[0]])
        has_stack = stack >= 0
        # What the trace allocated without a stack may be of any line.
        is_known = has_stack | (alloc < 0)
        is_of_line = self.calls.is_within(self.calls.path(line))[stack]
        n_later = self._allocs.count(stack, alloc + 1, int(self.freed[freed_rows[0]]))
        is_repeated = ~has_stack | (n_later > 0)
        is_old = is_known & is_of_line & is_repeated
        # Allocations since the line last freed anything are temporaries of the call, where there
        # are earlier ones.
        last_alloc = int(at(self.calls.alloc_events, self.burst[freed_rows[0]] - 1))
        is_before_last_free = alloc < self._frees.last_before(line, last_alloc)
        if is_before_last_free.any():
            is_old &= is_before_last_free
        return freed_rows[is_old]

    def _is_made_anew(
        self, rows: Int64Column, newest: int, span: tuple[int, int], *, is_of_graph: bool
    ) -> bool:
        """Return whether nearly all have a replacement of the same stack.

        Without a stack, one of the same size in ``span``: from the call's begin up to its free.
        Layers of one call may share a stack: each allocation of a graph needs a replacement of its
        own.
        """
        begin, freed = span
        stacks, stack_number, n_old = np.unique(
            self.stack_id[rows], return_inverse=True, return_counts=True
        )
        n_new = self._allocs.count(stacks, newest + 1, freed)
        n_required = n_old if is_of_graph else 1
        is_stack_repeated = (n_new >= n_required)[stack_number]
        alloc_events = self.calls.alloc_events
        first, after = np.searchsorted(alloc_events, (begin, freed))
        new_sizes = self.events.size[alloc_events[first:after]]
        is_size_repeated = np.isin(self.sizes[rows], new_sizes)
        has_stack = self.stack_id[rows] >= 0
        return self._are_nearly_all(
            rows, np.where(has_stack, is_stack_repeated, is_size_repeated)
        )

    def _are_nearly_all(self, rows: Int64Column, marks: BoolColumn) -> bool:
        full_bytes = self.evidence.bytes_of(rows)
        return self.evidence.bytes_of(rows[marks]) >= NEARLY * full_bytes

    def _replaced_by_forward(self, rows: Int64Column, line: int) -> Burst | None:
        """Return a pre-existing graph as the burst of the forward that replaced it.

        When it is freed, the forward's own graph is in use, with the same sizes. Blocks of a model,
        or of batches, are made anew outside of a forward.
        """
        sizes = self.sizes
        required_bytes = NEARLY * sizes[rows].sum()
        live = self.evidence.table.live_at(int(self.freed[rows].max()))
        has_size = live & is_among(sizes, sizes[rows])
        new = rows_of(has_size & self.features.in_forward)
        if _shared_bytes(sizes[rows], sizes[new]) < required_bytes:
            return None
        # Where as much that is pre-existing stays in use, a cache dropped its oldest entry.
        remaining = rows_of(has_size & ~self.features.is_traced)
        if _shared_bytes(sizes[rows], sizes[remaining]) >= required_bytes:
            return None
        maker = self.calls.model_call(int(self.stack_id[new[0]]))
        if not maker:
            return None
        call = self.calls.began(maker, int(self.alloc[new[0]]))
        return Burst(rows, rows, call, line, is_graph=True, maker=maker[:-1])

    def _is_unread(self, burst: Burst) -> bool:
        """Return whether a call makes its replacement without reading the burst's memory.

        No forward reads an earlier graph. Of other memory the line's first call in the trace shows
        it, if nothing was live then that has its size: a state, which each call reads, had been
        there. What grows has another size in each call, and is read to make the next.
        """
        if burst.is_graph:
            return True
        rows = burst.rows
        stacks = self.stack_id[rows]
        recorded = self.features.recorded
        is_input = recorded is not None and np.isin(rows, recorded.inputs).any()
        is_first_call_known = (stacks >= 0).all()
        if is_input or not is_first_call_known:
            return False
        is_of_stacks = self.features.is_traced & is_among(self.stack_id, stacks)
        first_alloc = int(self.alloc[is_of_stacks].min())
        begin = self.calls.began(self.calls.path(burst.line), first_alloc)
        live = self.evidence.table.live_at(begin - 1)
        live &= ~self.evidence.has(Trait.READ_BY_EVERYTHING)
        could_be_read = np.isin(self.sizes[rows], self.sizes[live])
        # By size too: equal modules share a stack, so the next of a stack may be another module's.
        kind, allocs = self._allocs_of_kind
        newest = self.alloc[rows].max()
        n_replacements = allocs.count(kind[rows], newest + 1, int(self.freed[rows[0]]))
        return self._are_nearly_all(rows, ~could_be_read & (n_replacements > 0))


def _shared_bytes(old_sizes: Int64Column, new_sizes: Int64Column) -> int:
    """Return the bytes of the sizes that two lists have in common, each as often as in both."""
    shared = Counter(old_sizes.tolist()) & Counter(new_sizes.tolist())
    return sum(shared.elements())
