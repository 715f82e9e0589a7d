"""Faults: memory that is kept for nothing, each found in the trace by one function.

A previous output, loss, graph or batch that is in use while its replacement is made: ``out = model(batch)``
in a loop keeps the previous ``out`` until the new one is there, since Python gives the name its new value
last. Gradients that stay through forward. Graphs that no backward uses, of a forward without one and of
earlier steps.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.changes import Change, freed_from
from snapconv.answers.advice.evidence import Detected, Evidence, LineCalls
from snapconv.answers.advice.references import ends_without_graph
from snapconv.answers.cycles import find_garbage
from snapconv.answers.growth import Fate, by_line, find_growth, growth_notes
from snapconv.classification.categories import ABOUT, Category, Trait, categories_with
from snapconv.classification.features import at
from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int32Column,
    Int64Column,
    distinct,
    grouped,
    has_code,
    is_among,
    number_groups,
    rows_of,
    run_starts,
    stable_order,
    sums_by,
)
from snapconv.phases.trace_phases import Phase, Phases
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.units import format_bytes

# Of the bytes of a burst, or of what a forward leaves: the rest may be temporaries of the call.
_NEARLY = 0.9
# A graph has tensors of many lines of modules.
_LEAST_STACKS, _LEAST_ROWS = 5, 8
# Lines whose operations left two results each, such as a norm its statistics: so many show a graph.
_LEAST_OF_TWO = 3
# More bursts than this are not looked at, nor more allocations of one.
_MOST_BURSTS, _MOST_ROWS = 2000, 1 << 16


@dataclass(frozen=True, slots=True)
class _Burst:
    """Old allocations that one line freed together, and the first event of the call that replaced them.

    ``path``: the Python frames down to that line; ``maker``: those down to the call, if another line has it.
    """

    rows: Int64Column
    call: int
    path: tuple[int, ...]
    is_graph: bool
    maker: tuple[int, ...] = ()


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
        if not evidence.is_large(mine):
            continue
        every = list(finder.everywhere(bursts[0].path))
        known = np.concatenate([*(burst.rows for burst in every), mine[:0]])
        every += [burst for burst in bursts if not np.isin(burst.rows, known).any()]
        change = freed_from(
            evidence.analysis,
            np.concatenate([burst.rows for burst in every]),
            np.concatenate([np.full(len(burst.rows), burst.call) for burst in every]),
        )
        is_graph = any(burst.is_graph for burst in bursts)
        path, of_maker = bursts[0].path, bursts[0].maker
        where, maker = (evidence.calls.line_of(one) for one in (path, of_maker or path))
        categories = distinct(evidence.analysis.classification.category[mine]).tolist()
        thing = ABOUT[Category(categories[0])].returned if len(categories) == 1 else "output"
        if is_graph:
            thing = "output (and its graph)"
        has_backward = not is_graph or len(evidence.analysis.phases.events_of_training)
        when = "" if has_backward else "If a backward is meant, "
        is_freed = evidence.analysis.allocations.freed_event[change.rows] >= 0
        could_be = _could_be(evidence.analysis, mine, is_freed.any()) if is_graph else ("state",)
        held = f" ({where.place} assigns it)" if of_maker and where else ""
        texts = {"thing": thing, "when": when, "held": held}
        texts["maker"] = maker.place if maker else "library code"
        yield evidence.found(change, mine, where, could_be=could_be, **texts)


class _Finder:
    """Bursts of frees on one device. A burst ends where something is allocated."""

    def __init__(self, analysis: DeviceAnalysis, calls: LineCalls) -> None:
        self.analysis, self.calls, self.table = analysis, calls, analysis.allocations
        # A row's, once: there are thousands of bursts, and each looks at a few rows.
        # What autocast drops at its exit was no name's.
        self.freed = freed = np.where(
            analysis.features.freed_through(Role.UNCACHED), -1, self.table.freed_event
        )
        self.burst = at(calls.n_allocs, freed, -1)
        # A number for the Python frames that freed each allocation; stacks differ in C++ too. The key is the
        # bytes of their ids, the innermost first: a path has them the other way round.
        self._python, known = analysis.facts.roles.python, dict[bytes, int]()
        number_of = np.zeros(len(analysis.snapshot.stacks) + 1, np.int32)  # the last: no stack
        for stack in distinct(self.table.free_stack_id).tolist():
            number_of[stack] = known.setdefault(self._python.frames_of(stack).tobytes(), len(known))
        self.path_id, self._paths = np.take(number_of, self.table.free_stack_id), known
        self._n_events = len(analysis.device.events)
        self._frees: dict[int, tuple[Int64Column, Int64Column]] = {}

    @cached_property
    def _allocs(self) -> tuple[Int32Column, EventColumn, Int64Column]:
        """The allocs of each stack, in their order: stacks, events, and both as one number.

        The last row is of no stack and behind all others, so that a search always ends at a row.
        """
        traced = np.flatnonzero(self.table.alloc_event >= 0)
        order = traced[stable_order(self.table.stack_id[traced])]
        stack, alloc = self.table.stack_id[order], self.table.alloc_event[order]
        keys = stack.astype(np.int64) * (self._n_events + 1) + alloc
        behind = np.iinfo(np.int64).max
        return np.append(stack, -2), np.append(alloc, self._n_events), np.append(keys, behind)

    @cached_property
    def _kind(self) -> Int64Column:
        """A number for the stack and the size of each allocation."""
        return number_groups(self.table.stack_id, self.table.requested_bytes)[1]

    @cached_property
    def is_cache(self) -> BoolColumn:
        """What a cache of keys and values keeps, with a graph or without."""
        return _is_cache(self.analysis)

    def bursts(
        self, evidence: Evidence, rows: Int64Column, kept: Int64Column
    ) -> Iterator[tuple[Int64Column, Int64Column]]:
        """Group allocations by the burst and the line that freed them, or those like them that are ``kept``.

        Only groups are found that are worth a finding.
        """
        first, group = number_groups(self.path_id[rows], self.burst[rows])
        n_bytes = sums_by(group, self.table.block_bytes[kept], len(first))
        is_worth = n_bytes >= evidence.least_bytes()
        for places in grouped(rows_of(is_worth[group]), group):
            yield rows[places], kept[places]

    def finished(self, evidence: Evidence) -> Iterator[_Burst]:
        """Find bursts whose old allocations are in use at the moment, while their replacement is made."""
        freed, moment = self.freed, evidence.moment.event
        live = np.flatnonzero(evidence.live & (freed > moment) & (self.table.free_stack_id >= 0))
        for rows, _ in self.bursts(evidence, live, live):
            found = self.replaced(rows)
            if found and found.call <= moment and (found.is_graph or self.is_never_read(found)):
                yield found

    def unfinished(self, evidence: Evidence, finished: Sequence[_Burst]) -> Iterator[_Burst]:
        """Find other allocations that the call at the moment would have replaced, as its line did before.

        Each is as the last one of its stack that was freed.
        """
        moment = evidence.moment.event
        stack = int(self.analysis.device.events.stack_id[moment]) if moment >= 0 else -1
        if stack < 0:
            return
        is_open = evidence.live & (self.table.alloc_event >= 0)
        for burst in finished:
            is_open[burst.rows] = False
        live = np.flatnonzero(is_open)
        done = np.flatnonzero((self.table.alloc_event >= 0) & (self.freed >= 0) & (self.freed <= moment))
        newest = np.full(len(self.analysis.snapshot.stacks) + 1, -1)
        newest[self.table.stack_id[done]] = done  # of several, what is written last stays
        newest[-1] = -1
        earlier = newest[self.table.stack_id[live]]
        live, earlier = live[earlier >= 0], earlier[earlier >= 0]
        for freed, rows in self.bursts(evidence, earlier, live):
            found = self.replaced(distinct(freed))
            if found is None or not self.calls.is_within(found.path)[stack]:
                continue
            call = self.calls.began(found.path, moment)
            rows = rows[np.isin(freed, found.rows)]
            rows = rows[self.table.alloc_event[rows] < call]
            if len(rows) and (found.is_graph or self.is_never_read(found)):
                yield _Burst(rows, call, found.path, found.is_graph)

    def everywhere(self, path: tuple[int, ...]) -> Iterator[_Burst]:
        """Find what a line freed too late, in the whole trace."""
        number = self._paths[np.array(path[::-1], np.int32).tobytes()]
        rows = rows_of((self.path_id == number) & (self.burst >= 0))
        yield from filter(None, map(self.replaced, grouped(rows, self.burst)[:_MOST_BURSTS]))

    def replaced(self, rows: Int64Column) -> _Burst | None:
        """Find which allocations of a burst were replaced by the call that had just ended; None for none."""
        free_stack, freed = int(self.table.free_stack_id[rows[0]]), int(self.freed[rows[0]])
        path = self.calls.path(free_stack)
        roles, stack = self.analysis.features.roles, np.array([free_stack], np.int32)
        # In the engine, the collector, or within a module, a line is not the program's own loop.
        elsewhere = (Role.ENGINE, Role.MODULE_CALL, Role.COLLECTOR)
        if not path or any(roles.of(role, stack)[0] for role in elsewhere):
            return None
        within = self.calls.is_within(path)
        rows = rows[:_MOST_ROWS]
        has_stack = self.table.stack_id[rows] >= 0
        next_alloc = self._next_alloc(rows, self.table.alloc_event[rows].astype(np.int64))
        is_old = within[self.table.stack_id[rows]] & (~has_stack | (next_alloc < freed))
        # What was made since the line last freed anything are temporaries of the call that has just ended.
        is_older = self.table.alloc_event[rows] < self._freed_before(int(rows[0]))
        is_old &= is_older | ~is_older.any()
        rows = rows[is_old & (has_stack | (self.table.alloc_event[rows] < 0))]
        if not len(rows):
            return None
        newest = int(self.table.alloc_event[rows].max())
        call, is_graph = self.calls.began(path, freed), self._is_graph(rows)
        if call <= newest:  # nothing but this line in the loop, or a temporary of the call itself
            made = self.table.alloc_event[rows] == newest
            call = self.calls.began_last(int(self.table.stack_id[rows[made][0]]), freed)
        if call <= newest:
            place = int(np.searchsorted(self.calls.alloc_events, newest, side="right"))
            call = int(np.append(self.calls.alloc_events, self._n_events)[place])
            if not is_graph:
                return None
        is_made_anew = self._is_made_anew(rows, newest, (call, freed), is_graph=is_graph)
        n_bytes = self.table.block_bytes[rows]
        if call < freed and n_bytes[is_made_anew].sum() >= _NEARLY * n_bytes.sum():
            return _Burst(rows, call, path, is_graph)
        # A loss keeps the graph: its own line frees the old one, once the model has made the next.
        is_project = self.analysis.lines.of_frame(path[-1]) is not None
        return self._replaced_by_forward(rows, path) if newest < 0 and is_graph and is_project else None

    def _replaced_by_forward(self, rows: Int64Column, path: tuple[int, ...]) -> _Burst | None:
        """Find the forward that left what a graph of before the trace had, size by size, when that was freed.

        Blocks of a model, or of batches, are made anew outside of a forward. Where as many more of before the
        trace stay in use, a cache dropped its oldest entry.
        """
        table, sizes = self.table, self.table.requested_bytes
        least = _NEARLY * sizes[rows].sum()
        is_like = table.live_at(int(self.freed[rows].max())) & is_among(sizes, sizes[rows])
        new = rows_of(is_like & self.analysis.features.in_forward)
        others = rows_of(is_like & (table.alloc_event < 0))
        old, *like = (Counter(sizes[part].tolist()) for part in (rows, new, others))
        n_new, n_others = (sum((old & part).elements()) for part in like)
        if n_new < least or n_others >= least:
            return None
        maker = self.calls.module_call(int(table.stack_id[new[0]]), outermost=True)
        call = self.calls.began(maker, int(table.alloc_event[new[0]])) if maker else -1
        return _Burst(rows, call, path, is_graph=True, maker=maker[:-1]) if maker else None

    def _freed_before(self, row: int) -> int:
        """Return when an allocation's line last freed anything before this burst; -1 for never."""
        path = int(self.path_id[row])
        if path not in self._frees:
            mine = (self.path_id == path) & (self.burst >= 0)
            self._frees[path] = np.sort(self.burst[mine]), np.sort(self.freed[mine])
        bursts, freed = self._frees[path]
        return int(np.append(freed, -1)[np.searchsorted(bursts, self.burst[row]) - 1])

    def _next_alloc(self, rows: Int64Column, after: Int64Column) -> Int64Column:
        """Return the next alloc of each allocation's stack after an event; the number of events for none."""
        (stacks, allocs, keys), stack = self._allocs, self.table.stack_id[rows].astype(np.int64)
        place = np.searchsorted(keys, stack * (self._n_events + 1) + after, side="right")
        is_same = (stacks[place] == stack) & (allocs[place] > after)
        return np.where(is_same, allocs[place], self._n_events)

    def _is_made_anew(
        self, rows: Int64Column, newest: int, span: tuple[int, int], *, is_graph: bool
    ) -> BoolColumn:
        """Mark allocations with a replacement: of the same stack, or without one of the same size.

        Equal layers of one call share a stack: of a graph each allocation has one of its own.
        """
        stacks, kind, n_old = np.unique(self.table.stack_id[rows], return_inverse=True, return_counts=True)
        events = stacks.astype(np.int64)[:, None] * (self._n_events + 1) + (newest + 1, span[1])
        n_made = np.diff(np.searchsorted(self._allocs[2], events))[:, 0]
        first, after = np.searchsorted(self.calls.alloc_events, span)
        sizes = self.analysis.device.events.size[self.calls.alloc_events[first:after]]
        is_again = np.isin(self.table.requested_bytes[rows], sizes)
        return np.where(
            self.table.stack_id[rows] >= 0, (n_made >= (n_old if is_graph else 1))[kind.reshape(-1)], is_again
        )

    def _is_graph(self, rows: Int64Column) -> bool:
        """Whether allocations are a graph: tensors of many lines of modules, or of before the trace."""
        features = self.analysis.features
        in_forward = features.in_forward[rows] | features.preexisting_in_forward[rows]
        unknown = self.table.stack_id[rows] < 0
        unknown |= np.append(self.analysis.features.roles.is_empty, True)[self.table.stack_id[rows]]
        mine = rows[(in_forward | unknown) & ~self.is_cache[rows]]
        n_kinds = len(distinct(self.table.stack_id[mine])) + len(
            distinct(self.table.requested_bytes[rows[unknown]])
        )
        return len(mine) >= _LEAST_ROWS and n_kinds >= _LEAST_STACKS

    def is_never_read(self, burst: _Burst) -> bool:
        """Whether the line's first call in the trace had no tensor of that size to read.

        Its output has the same size each time: one that grows is read to make the next.
        """
        rows, table, recorded = burst.rows, self.table, self.analysis.recorded
        is_input = recorded is not None and np.isin(rows, recorded.inputs).any()
        if is_input or not (table.stack_id[rows] >= 0).all():
            return False
        stacks, allocs, _ = self._allocs
        first = int(allocs[np.searchsorted(stacks, table.stack_id[rows])].min())
        began = self.calls.began(burst.path, first)
        live = np.flatnonzero(table.live_at(began - 1))
        category = self.analysis.classification.category[live]
        live = live[~is_among(category, categories_with(Trait.READ_BY_EVERYTHING))]
        is_read = np.isin(table.requested_bytes[rows], table.requested_bytes[live])
        # Of its stack: equal modules share one, so the next of a stack may be another module's.
        n_before = int(np.searchsorted(table.alloc_event, 0))
        bounds = (int(table.alloc_event[rows].max()) + 1, self.freed[rows[0]])
        made = slice(*n_before + np.searchsorted(table.alloc_event[n_before:], bounds))
        is_same = is_among(self._kind[rows], self._kind[made])
        n_bytes = table.block_bytes[rows]
        return bool(n_bytes[~is_read & is_same].sum() >= _NEARLY * n_bytes.sum())


# Gradients times steps.
_MOST_RANGES = 1 << 22


def kept_gradients(evidence: Evidence) -> Iterator[Detected]:
    """Find gradients in use at the moment, between a step and the next backward.

    Between the two nothing adds to them: they are freed or zeroed before the backward. Where they stay, and
    several backwards come before each step, they may be added up on purpose; nothing is found then.
    """
    analysis, moment = evidence.analysis, evidence.moment.event
    table, phases = analysis.allocations, analysis.phases
    is_gradient = has_code(analysis.classification.category, Category.GRADIENT)
    if not evidence.is_large(rows_of(is_gradient & evidence.live)):
        return
    idle = _idle_ranges(phases)
    begun = idle[idle[:, 0] <= moment]
    if not len(begun) or moment > phases.run_end[begun[-1, 1]]:
        return
    # Those of before the trace may be a sum, unless they are freed before the first backward.
    is_idle = (table.alloc_event >= 0) | (table.freed_event >= 0) & (table.freed_event <= idle[0, 1])
    rows = rows_of(is_gradient & is_idle)
    mine = rows[evidence.live[rows] & (table.alloc_event[rows] < begun[-1, 0])]
    if not evidence.is_large(mine) or len(rows) * len(idle) > _MOST_RANGES:
        return
    stays = (table.freed_event[mine] < 0) | (table.freed_event[mine] > begun[-1, 1])
    iterations = phases.iteration[_runs(phases, Phase.BACKWARD)]
    if stays.any() and len(distinct(iterations)) < len(iterations):
        return
    free_stacks = table.free_stack_id[mine]
    where = evidence.calls.lines.innermost(int(next(iter(free_stacks[free_stacks >= 0]), -1)))
    when = f"freed only after it{f', at {where.place}' if where else ''}"
    when = "not freed before backward" if stays.any() else when
    change = _without(evidence, rows, idle)
    # A step without notes of its own shows only by what it allocates: one may come unseen.
    is_last = (phases.in_step.any() or phases.is_recorded) and not phases.optimizers.may_be_several
    could_be = ("accumulation",) * bool(stays.any()) + ("later-step",) * (not is_last)
    yield evidence.found(change, mine, where, could_be=could_be, when=when)


def _idle_ranges(phases: Phases) -> Int64Column:
    """Return the ranges in which no gradient is read: from the end of a step up to the next backward.

    A step that allocates nothing is known by the iteration that ends with it; before the trace, one may have
    ended.
    """
    ends = phases.run_end[_runs(phases, Phase.OPTIMIZER)].astype(np.int64) + 1
    if phases.has_steps:
        ends = np.concatenate((ends, np.flatnonzero(np.diff(phases.iteration)) + 1))
    ends, backwards = distinct(np.append(ends, 0)), _runs(phases, Phase.BACKWARD)
    before = np.concatenate(([-1], phases.run_end[backwards].astype(np.int64)))[:-1]
    place = np.searchsorted(ends, backwards, side="right") - 1
    ranges = np.stack((ends[place], backwards), axis=1)
    return np.asarray(ranges[ends[place] > before], np.int64)


def _runs(phases: Phases, phase: Phase) -> Int64Column:
    """Return the first event of every run of a phase."""
    begins = run_starts(phases.phase)
    return begins[has_code(phases.phase[begins], phase)]


def _without(evidence: Evidence, rows: Int64Column, idle: Int64Column) -> Change:
    """Return the change that frees gradients at the end of each step, until backward makes them anew.

    It makes them in the order in which the first backward did. Where there is none, autograd takes over what
    it would add to it (torch/csrc/autograd/functions/accumulate_grad.h): neither is there twice.
    """
    table, phases = evidence.analysis.allocations, evidence.analysis.phases
    alloc = table.alloc_event[rows].astype(np.int64)
    freed = table.freed_event[rows].astype(np.int64)
    freed = np.where(freed >= 0, freed, evidence.demand.n_events)
    begins = run_starts(phases.phase)
    of_run = np.searchsorted(begins, alloc, side="right") - 1
    run_first, run_end = begins[of_run], phases.run_end[alloc].astype(np.int64)
    place = (alloc - run_first) / np.maximum(run_end - run_first + 1, 1)
    is_gradient = has_code(evidence.analysis.classification.category, Category.GRADIENT)
    incoming, parts = rows_of(evidence.analysis.features.by_engine & ~is_gradient), []
    for ends, backward in idle.tolist():
        is_kept = (alloc < ends) & (freed > ends)
        length = int(phases.run_end[backward]) - backward + 1
        again = backward + (place[is_kept] * length).astype(np.int64)
        mine = rows[is_kept]
        first, after = np.searchsorted(table.alloc_event[incoming], (backward, backward + length))
        again = _taken_over(evidence, mine, again, incoming[first:after])
        last = np.where(freed[is_kept] <= backward, freed[is_kept], again)
        parts.append(np.stack((mine, np.full(len(mine), ends), last, table.block_bytes[mine])))
    return Change(*np.concatenate(parts, axis=1))


def _taken_over(
    evidence: Evidence, rows: Int64Column, again: Int64Column, incoming: Int64Column
) -> Int64Column:
    """Return where gradients begin if each is the nearest of what one backward makes of its size."""
    table, last = evidence.analysis.allocations, np.array(again)
    for size in distinct(table.requested_bytes[rows]).tolist():
        mine = rows_of(table.requested_bytes[rows] == size)
        same = incoming[table.requested_bytes[incoming] == size]
        if len(same):
            distance = np.abs(table.alloc_event[same] - again[mine, None])
            last[mine] = np.maximum(
                again[mine], evidence.analysis.features.end[same[distance.argmin(axis=1)]]
            )
    return last


# Forwards whose graphs are in use together: two may be one forward and its replacement.
_LEAST_GRAPHS = 3


def unused_graphs(evidence: Evidence) -> Iterator[Detected]:
    """Find forwards whose activations were kept for a backward, and freed without one."""
    analysis, table = evidence.analysis, evidence.analysis.allocations
    unused, is_cache = _never_used(analysis), _is_cache(analysis)
    ends = np.where(table.freed_event >= 0, table.freed_event, evidence.demand.n_events)
    number_of = np.zeros(len(table), np.int64)
    for _, of_call, begins in _by_forward(evidence, np.flatnonzero(unused)):
        number_of[of_call] = number = _number(evidence, of_call, begins)
        # In use while two more forwards of its line began: something keeps it. Of graphs see kept_graphs.
        is_kept = np.searchsorted(begins, ends[of_call]) - number >= _LEAST_GRAPHS
        unused[of_call] = ~is_kept & (not _is_graph(analysis, of_call[is_kept]))
    # Without a graph, too, a cache is a part of what the call returns, and an input stays up to its end.
    is_other = (unused & is_cache) | has_code(analysis.classification.category, Category.INPUT)
    others = np.flatnonzero(is_other & (table.freed_event >= 0) & (table.alloc_event >= 0))
    unused &= ~is_cache
    freed = np.flatnonzero(unused & (table.freed_event >= 0))
    n_allocs = evidence.calls.n_allocs[np.maximum(table.freed_event, 0)].astype(np.int64)
    together = n_allocs * (evidence.demand.n_events + 1) + number_of
    thrown = [rows for rows in grouped(freed, together) if _is_whole_graph(analysis, rows, is_cache)]
    replaced = [] if thrown else _replaced_graphs(evidence, unused)
    if not thrown and not replaced:
        return
    stacks = distinct(table.stack_id[np.concatenate(thrown + replaced)])
    stacks = stacks[stacks >= 0]
    last = np.flatnonzero(unused & (table.freed_event < 0) & np.isin(table.stack_id, stacks))
    thrown += [last] if _is_whole_graph(analysis, last, is_cache) else []
    rows = distinct(np.concatenate(thrown + replaced))
    mine = rows[evidence.live[rows]]
    if evidence.is_large(mine):
        rows = np.concatenate((rows, others[is_among(n_allocs[others], n_allocs[rows])]))
        change = freed_from(analysis, rows, ends_without_graph(evidence.calls, analysis, rows))
        callers = (evidence.calls.module_call(stack, outermost=True) for stack in stacks.tolist())
        where = evidence.calls.line_of(next(filter(None, callers), ()))
        calls = "the call and those before it, whose graph is still there" if replaced else "the call"
        # What the same call left before was freed without a backward.
        could_be = _could_be(analysis, mine, (table.freed_event[rows] >= 0).any())
        yield evidence.found(change, mine, where, could_be=could_be, calls=calls)


def _replaced_graphs(evidence: Evidence, unused: BoolColumn) -> list[Int64Column]:
    """Return graphs that a line keeps until it has made the next one, each with that one.

    One of before the trace has no stacks that show a whole graph. One that a loss kept may be a list of
    outputs, made without a graph.
    """
    analysis, calls, table = evidence.analysis, evidence.calls, evidence.analysis.allocations
    if not analysis.phases.free_sites_known or len(analysis.phases.events_of_training):
        return []
    found, is_new = list[Int64Column](), unused & (table.stack_id >= 0)
    for burst in _Finder(analysis, calls).finished(evidence):
        if burst.is_graph and not burst.maker:
            made = is_new & calls.is_within(burst.path)[table.stack_id] & (table.alloc_event >= burst.call)
            found += [burst.rows, np.flatnonzero(made)]
    return found


def kept_graphs(evidence: Evidence) -> Iterator[Detected]:
    """Find graphs of several earlier forwards, in use together, that no backward has used."""
    analysis, table = evidence.analysis, evidence.analysis.allocations
    rows = np.flatnonzero(_never_used(analysis, is_interrupted=analysis.ran_out) & (table.alloc_event >= 0))
    for root, of_call, begins in _by_forward(evidence, rows):
        number_of = np.zeros(len(table), np.int64)
        number_of[of_call] = _number(evidence, of_call, begins)
        graphs = grouped(of_call[evidence.live[of_call]], number_of)
        graphs = [part for part in graphs if _is_graph(analysis, part)]
        if len(graphs) < _LEAST_GRAPHS:
            continue
        whole = _with_its_losses(evidence, of_call, begins, root[:-1])
        number = _number(evidence, whole, begins)
        made = np.zeros(len(begins) + 1, np.int64)
        np.maximum.at(made, number, table.alloc_event[whole].astype(np.int64))
        after = made[number] + 1
        mine = np.concatenate(graphs[:-1])
        if evidence.is_large(mine):
            yield evidence.found(
                freed_from(analysis, whole, after),
                mine,
                evidence.calls.line_of(root),
                could_be=_could_be(
                    analysis, mine, ~np.bool_(analysis.ran_out) & (table.freed_event[mine] >= 0).all()
                ),
                number=len(graphs),
            )


def _number(evidence: Evidence, rows: Int64Column, begins: Int64Column) -> Int64Column:
    """Return the number of the forward that each allocation belongs to: an input to the next."""
    is_input = has_code(evidence.analysis.classification.category[rows], Category.INPUT)
    return (
        np.searchsorted(begins, evidence.analysis.allocations.alloc_event[rows], side="right") - 1 + is_input
    )


def _with_its_losses(
    evidence: Evidence, rows: Int64Column, begins: Int64Column, line: tuple[int, ...]
) -> Int64Column:
    """Return graphs with what was freed together with each: its inputs, and what its loss made after it."""
    table = evidence.analysis.allocations
    is_input = has_code(evidence.analysis.classification.category, Category.INPUT)
    fits = table.freed_event >= 0
    if line:  # what the trace does not free has no burst: then the same line
        fits |= evidence.calls.is_within(line)[table.stack_id]
    fits &= (evidence.is_computed | is_input) & (table.alloc_event >= 0)
    fits[rows] = True
    others = np.flatnonzero(fits)
    freed = table.freed_event[others]
    burst = np.where(freed >= 0, evidence.calls.n_allocs[np.maximum(freed, 0)], -1) + 1
    key = _number(evidence, others, begins) * (evidence.demand.n_events + 2) + burst
    return others[np.isin(key, key[np.isin(others, rows)])]


def growing(evidence: Evidence) -> Iterator[Detected]:
    """Find lines that keep memory of every iteration, which the replay frees when its iteration ends."""
    analysis, found = evidence.analysis, find_growth(evidence.analysis)
    if not any(growth_notes(analysis, found)):
        return
    ends = np.array([iteration.last_event for iteration in analysis.iterations], np.int64)
    for one in by_line(found)[:3]:
        rows, is_replaced = np.sort(one.rows), one.fate is Fate.REPLACED
        change = freed_from(analysis, rows, np.where(is_replaced, -1, ends[analysis.iteration[rows]]))
        change = replace(change, n_bytes=change.n_bytes - is_replaced * change.n_bytes.min())
        yield evidence.found(change, rows, one.line, added=format_bytes(one.bytes_per_iteration))


def garbage(evidence: Evidence) -> Iterator[Detected]:
    """Find what reference cycles keep beyond its step, up to a run of Python's collector."""
    waiting = find_garbage(evidence.analysis)
    if waiting is None:
        return
    mine = waiting.rows[evidence.live[waiting.rows] & (waiting.ends <= evidence.moment.event)]
    if evidence.is_large(mine):
        change = freed_from(evidence.analysis, waiting.rows, waiting.ends)
        could_be = () if waiting.is_certain else ("dropped",)
        yield evidence.found(change, mine, waiting.line, could_be=could_be)


def _never_used(analysis: DeviceAnalysis, *, is_interrupted: bool = False) -> BoolColumn:
    """Mark what a forward made and the program itself freed, or nobody, with no backward in between.

    Where memory ran out meanwhile, the exception may have kept it from its backward: only ``is_interrupted``.
    """
    features, table = analysis.features, analysis.allocations
    found = (features.in_forward | features.preexisting_in_forward) & ~features.is_freed_by_engine
    found &= ~_is_cast(analysis)
    if not analysis.phases.free_sites_known:
        return np.zeros_like(found)
    # A backward may come in between that is of a later forward alone.
    used = np.flatnonzero(features.in_forward & features.is_freed_by_engine)[::-1]
    began = np.full(features.n_events + 1, -1)
    began[features.next_backward[used]] = table.alloc_event[used]  # of each backward the first stays
    found &= (features.next_backward >= features.end) | (features.alloc < began[features.next_backward])
    failed = analysis.phases.oom_events[: 0 if is_interrupted else None]
    ends = np.where(table.freed_event >= 0, table.freed_event, len(analysis.device.events))
    found &= np.searchsorted(failed, table.alloc_event) == np.searchsorted(failed, ends)
    # What is freed within a module's call is no graph.
    return np.asarray(found & ~features.freed_through(Role.MODULE_CALL))


def _is_cache(analysis: DeviceAnalysis) -> BoolColumn:
    return analysis.features.made_through(Role.CACHE) | analysis.features.made_through(Role.CACHE_UPDATE)


def _is_cast(analysis: DeviceAnalysis) -> BoolColumn:
    """Mark copies of weights that autocast made in forward: its cache keeps them, without a graph too."""
    is_weight = has_code(analysis.classification.category, Category.WEIGHT)
    return np.asarray(is_weight & analysis.features.in_forward)


def _could_be(analysis: DeviceAnalysis, rows: Int64Column, is_over: np.bool_) -> tuple[str, ...]:
    """Return what else than a graph allocations could be; ``is_over``: no backward comes for them."""
    table, features = analysis.allocations, analysis.features
    by_nodes = features.freed_through(Role.RELEASE)[rows]
    stack = table.stack_id[rows]
    are_two = (np.diff(rows) == 1) & (stack[1:] == stack[:-1]) & (stack[1:] >= 0)
    is_graph = by_nodes.any() or len(distinct(stack[1:][are_two])) >= _LEAST_OF_TWO
    return ("outputs",) * (not is_graph) + ("later",) * (not is_over)


def _is_graph(analysis: DeviceAnalysis, rows: Int64Column) -> bool:
    stacks = analysis.allocations.stack_id[rows]
    return len(rows) >= _LEAST_ROWS and len(distinct(stacks)) >= _LEAST_STACKS


def _is_whole_graph(analysis: DeviceAnalysis, rows: Int64Column, is_cache: BoolColumn) -> bool:
    """Whether allocations are nearly all that their forward left."""
    table = analysis.allocations
    if not _is_graph(analysis, rows):
        return False
    alloc, freed = table.alloc_event, table.freed_event
    end = int(freed[rows].min())
    first, after = np.searchsorted(alloc, alloc[rows].min()), np.searchsorted(alloc, alloc[rows].max() + 1)
    made = np.arange(first, after)  # rows are in the order of their allocs
    is_left = analysis.features.in_forward[made] & ~(is_cache | _is_cast(analysis))[made]
    is_left &= (freed[made] < 0) | ((freed[made] >= end) & (end >= 0))
    n_bytes = table.block_bytes
    return bool(n_bytes[rows].sum() >= _NEARLY * n_bytes[made[is_left]].sum())


def _by_forward(
    evidence: Evidence, rows: Int64Column
) -> Iterator[tuple[tuple[int, ...], Int64Column, Int64Column]]:
    """Group allocations by the call of the model, each with its path and the events at which calls began."""
    table, calls = evidence.analysis.allocations, evidence.calls
    stacks, group = np.unique(table.stack_id[rows], return_inverse=True)
    roots: dict[tuple[int, ...], int] = {}
    paths = (calls.module_call(stack, outermost=True) for stack in stacks.tolist())
    number_of = np.array([roots.setdefault(path, len(roots)) for path in paths], np.int64)[group.reshape(-1)]
    live = sums_by(number_of, table.block_bytes[rows] * evidence.live[rows], len(roots))
    for root, number in roots.items():
        if root and evidence.is_worth(int(live[number])):
            yield root, rows[number_of == number], calls.begins(root)
