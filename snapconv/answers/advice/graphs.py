"""Graphs that no backward uses: of a forward without one, and of earlier steps."""

from collections.abc import Iterator

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.changes import freed_from
from snapconv.answers.advice.evidence import Detected, Evidence
from snapconv.columns import BoolColumn, Int64Column, grouped, sums_by
from snapconv.stacks.project_lines import SourceLine
from snapconv.torch_knowledge.frame_roles import Role

# A graph has tensors of many lines of modules.
_LEAST_STACKS, _LEAST_ROWS = 5, 8
# Of the bytes that a forward leaves.
_NEARLY = 0.9
# Allocations of forwards that are followed through their functions.
_MOST_ALLOCS = 200_000
# Forwards whose graphs are in use together: two may be one forward and its replacement.
_LEAST_GRAPHS = 3


def unused_graphs(evidence: Evidence) -> Iterator[Detected]:
    """Find forwards whose activations were kept for a backward, and freed without one."""
    analysis, table = evidence.analysis, evidence.analysis.allocations
    unused, features = _never_used(analysis), analysis.features
    freed = np.flatnonzero(unused & (table.freed_event >= 0))
    n_allocs = evidence.calls.n_allocs[np.maximum(table.freed_event, 0)]
    thrown = [rows for rows in grouped(freed, n_allocs) if _is_whole_graph(analysis, rows)]
    if not thrown:
        return
    stacks = np.unique(table.stack_id[np.concatenate(thrown)])
    last = np.flatnonzero(unused & (table.freed_event < 0) & np.isin(table.stack_id, stacks))
    thrown += [last] if _is_whole_graph(analysis, last) else []
    rows = np.concatenate(thrown)
    # A cache of keys and values stays without a graph too.
    rows = rows[~(features.made_through(Role.CACHE) | features.made_through(Role.CACHE_UPDATE))[rows]]
    mine = rows[evidence.live[rows]]
    if evidence.bytes_of(mine) < evidence.least_bytes:
        return
    dies = _Scopes(evidence).deaths(rows)
    yield Detected(
        freed_from(analysis, rows, dies),
        evidence.main_line(mine),
        _caller(evidence, mine),
        is_certain=True,
        values={},
    )


def kept_graphs(evidence: Evidence) -> Iterator[Detected]:
    """Find graphs of several earlier forwards, in use together, that no backward has used."""
    analysis, table = evidence.analysis, evidence.analysis.allocations
    rows = np.flatnonzero(_never_used(analysis) & (table.alloc_event >= 0))
    for of_call, begins in _by_forward(evidence, rows):
        number = np.searchsorted(begins, table.alloc_event[of_call], side="right") - 1
        live = evidence.live[of_call]
        graphs = grouped(of_call[live], _spread(number, of_call, len(table)))
        graphs = [part for part in graphs if _is_graph(analysis, part)]
        if len(graphs) < _LEAST_GRAPHS:
            continue
        after = np.append(begins, len(analysis.device.events))[number + 1]
        mine = np.concatenate(graphs[:-1])
        if evidence.bytes_of(mine) < evidence.least_bytes:
            continue
        yield Detected(
            freed_from(analysis, of_call, after),
            evidence.main_line(mine),
            _caller(evidence, mine),
            is_certain=bool((table.freed_event[mine] >= 0).all()),
            values={"number": str(len(graphs))},
        )


def _spread(number: Int64Column, rows: Int64Column, n_rows: int) -> Int64Column:
    """Return numbers of some rows as a column of all."""
    column = np.full(n_rows, -1, np.int64)
    column[rows] = number
    return column


def _never_used(analysis: DeviceAnalysis) -> BoolColumn:
    """Mark what a forward made and the program itself freed, or nobody, with no backward in between.

    Where memory ran out meanwhile, the exception may have kept it from its backward.
    """
    features, table = analysis.features, analysis.allocations
    found = (features.in_forward | features.preexisting_in_forward) & ~features.is_freed_by_engine
    found &= features.next_backward >= features.end
    if not analysis.phases.free_sites_known:
        return np.zeros_like(found)
    failed = analysis.phases.oom_events
    ends = np.where(table.freed_event >= 0, table.freed_event, len(analysis.device.events))
    found &= np.searchsorted(failed, table.alloc_event) == np.searchsorted(failed, ends)
    # What is freed within a module's call is no graph.
    return np.asarray(found & ~features.freed_through(Role.MODULE_CALL))


def _is_graph(analysis: DeviceAnalysis, rows: Int64Column) -> bool:
    stacks = analysis.allocations.stack_id[rows]
    return len(rows) >= _LEAST_ROWS and len(np.unique(stacks)) >= _LEAST_STACKS


def _is_whole_graph(analysis: DeviceAnalysis, rows: Int64Column) -> bool:
    """Whether allocations are nearly all that their forward left: copies of autocast are no graph."""
    if not _is_graph(analysis, rows):
        return False
    table = analysis.allocations
    alloc, freed = table.alloc_event, table.freed_event
    end = int(freed[rows].min())
    first, after = np.searchsorted(alloc, alloc[rows].min()), np.searchsorted(alloc, alloc[rows].max() + 1)
    made = np.arange(first, after)  # rows are in the order of their allocs
    is_left = analysis.features.in_forward[made] & ((freed[made] < 0) | ((freed[made] >= end) & (end >= 0)))
    n_bytes = table.block_bytes
    return bool(n_bytes[rows].sum() >= _NEARLY * n_bytes[made[is_left]].sum())


def _root(evidence: Evidence, stack: int) -> tuple[int, ...]:
    """Return the Python frames down to the line that calls the outermost module."""
    path = evidence.calls.path(stack)
    is_call = evidence.calls.is_module_call
    place = next((place for place, frame in enumerate(path) if is_call(frame)), 0)
    return path[:place]


def _caller(evidence: Evidence, rows: Int64Column) -> SourceLine | None:
    stacks = evidence.analysis.allocations.stack_id[rows]
    known = stacks[stacks >= 0]
    root = _root(evidence, int(known[0])) if len(known) else ()
    return evidence.calls.line_of(root, evidence.lines)


def _by_forward(evidence: Evidence, rows: Int64Column) -> Iterator[tuple[Int64Column, Int64Column]]:
    """Group allocations by the line that calls the model, each with the events at which its calls began."""
    table = evidence.analysis.allocations
    stacks, group = np.unique(table.stack_id[rows], return_inverse=True)
    roots: dict[tuple[int, ...], int] = {}
    root_of = np.array(
        [roots.setdefault(_root(evidence, one), len(roots)) for one in stacks.tolist()], np.int64
    )
    number_of = root_of[group.reshape(-1)]
    live = sums_by(number_of, table.block_bytes[rows] * evidence.live[rows], len(roots))
    largest = max((number for root, number in roots.items() if root), key=lambda one: live[one], default=-1)
    if () in roots:  # losses that are no modules go with the model
        number_of = np.where(number_of == roots[()], largest, number_of)
    for root, number in roots.items():
        if root and live[number] >= evidence.least_bytes:
            yield rows[number_of == number], evidence.calls.begins(root)


class _Scopes:
    """The functions in which a forward's tensors are local: without a graph they end with them.

    Estimated from stacks: a tensor ends when its function makes the next one at the same line or two others,
    or when the function returns another one; what it returns goes on in its caller.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.table = evidence, evidence.analysis.allocations
        frames = evidence.analysis.snapshot.stacks.frames
        self.function = [*zip(frames.filenames, frames.names, strict=True)]
        self.path: tuple[int, ...] = ()
        self.values: dict[int, list[list[int]]] = {}  # by depth: row, frame, how many came after it
        self.dies: dict[int, int] = {}

    def deaths(self, rows: Int64Column) -> Int64Column:
        """Return the event from which each allocation would be free; -1 for those of before the trace."""
        table = self.table
        first = int(table.alloc_event[rows].min())
        in_forward = self.evidence.analysis.features.in_forward & (table.alloc_event >= max(first, 0))
        last = int(table.alloc_event[rows].max())
        made = np.flatnonzero(in_forward & (table.alloc_event <= last))[:_MOST_ALLOCS]
        paths = [self.evidence.calls.path(stack) for stack in table.stack_id[made].tolist()]
        for row, event, path in zip(made.tolist(), table.alloc_event[made].tolist(), paths, strict=True):
            self._add(row, event, path)
        return np.array([self.dies.get(row, self._default(row)) for row in rows.tolist()], np.int64)

    def _default(self, row: int) -> int:
        return -1 if self.table.alloc_event[row] < 0 else len(self.evidence.analysis.device.events)

    def _add(self, row: int, event: int, path: tuple[int, ...]) -> None:
        common = 0
        for mine, other in zip(self.path, path, strict=False):
            if mine != other:
                break
            common += 1
        is_same = len(self.path) > common < len(path) and (
            self.function[self.path[common]] == self.function[path[common]]
        )
        for depth in range(len(self.path) - 1, common - 1 + is_same, -1):
            self._close(depth, event)
        self.path = path
        self._put(len(path) - 1, row, path[-1] if path else -1, event)

    def _close(self, depth: int, event: int) -> None:
        """End a function: its last tensor goes on in the caller."""
        values = self.values.pop(depth, [])
        for row, _, _ in values[:-1]:
            self.dies[row] = event
        if values and depth:
            self._put(depth - 1, values[-1][0], self.path[depth - 1], event)

    def _put(self, depth: int, row: int, frame: int, event: int) -> None:
        kept = []
        for value in self.values.get(depth, ()):
            value[2] += 1
            if value[1] == frame or value[2] >= 2:
                self.dies[value[0]] = event
            else:
                kept.append(value)
        self.values[depth] = [*kept, [row, frame, 0]]
