"""Faults: memory that is kept for nothing, each found in the trace by one function.

A previous output, loss, graph or batch that is in use while its replacement is made: ``out =
model(batch)`` in a loop keeps the previous ``out`` until the new one is there, since Python gives
the name its new value last. Gradients that stay through forward. Graphs that no backward uses, of a
forward without one and of earlier steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.bursts import NEARLY, Burst, Bursts, is_graph
from snapconv.answers.advice.changes import Change, combined, freed_from, joined
from snapconv.answers.advice.evidence import Detected, Evidence
from snapconv.answers.advice.references import ends_without_graph
from snapconv.answers.cycles import find_garbage
from snapconv.answers.growth import Fate, find_growth, growth_by_line, growth_notes
from snapconv.classification.categories import ABOUT, Category
from snapconv.classification.features import at, first_before
from snapconv.columns import (
    BoolColumn,
    Int32Column,
    Int64Column,
    distinct,
    grouped,
    is_among,
    last_before,
    rows_of,
    run_starts,
)
from snapconv.phases.trace_phases import Phase, Phases
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.units import format_bytes

_CALLS_OF_BEFORE = "this call and the calls before the trace (their graph is still alive)"
# Lines whose operations left two results each, such as a norm its statistics: so many show a graph.
_LEAST_OF_TWO = 3


def previous_kept(evidence: Evidence) -> Iterator[Detected]:
    """Find what lines keep until its replacement is made, at the moment and everywhere else in the trace."""
    if not evidence.analysis.phases.free_sites_known:
        return
    bursts = Bursts(evidence.analysis, evidence.calls)
    of_line: dict[int, list[Burst]] = {}
    finished = list(bursts.finished(evidence))
    for burst in (*finished, *bursts.unfinished(evidence, finished)):
        of_line.setdefault(burst.line, []).append(burst)
    for line, here in of_line.items():
        if evidence.is_large(np.concatenate([burst.rows for burst in here])):
            every = (*bursts.of_line(line), *here)
            changes = [freed_from(evidence.analysis, burst.all_rows, burst.call) for burst in every]
            yield _previous(evidence, here, combined(evidence.analysis, changes))


def _previous(evidence: Evidence, bursts: Sequence[Burst], change: Change) -> Detected:
    """Return the finding about the bursts of one line that are in use at the moment."""
    analysis = evidence.analysis
    calls = evidence.calls
    mine = np.concatenate([burst.rows for burst in bursts])
    path = calls.path(bursts[0].line)
    where = calls.line_of(path)
    maker = calls.line_of(bursts[0].maker or path)
    held = f" ({where.place} assigns it)" if bursts[0].maker and where else ""
    categories = distinct(analysis.classification.category[mine]).tolist()
    thing = ABOUT[Category(categories[0])].returned if len(categories) == 1 else "output"
    could_be: tuple[str, ...] = ("state",)
    when = ""
    if any(burst.is_graph for burst in bursts):
        could_be = _could_be(analysis, mine, is_over=analysis.features.is_freed[change.rows].any())
        thing = "output (and its graph)"
        when = "" if len(analysis.phases.events_of_training) else "If backward is needed, "
    texts = {"thing": thing, "when": when, "held": held}
    texts["maker"] = maker.place if maker else "library code"
    return evidence.found(change, mine, where, could_be=could_be, **texts)


# Gradients times steps.
_MOST_RANGES = 1 << 22


def kept_gradients(evidence: Evidence) -> Iterator[Detected]:
    """Find gradients in use at the moment, between a step and the next backward.

    Between the two nothing adds to them: they are freed or zeroed before the backward. Where they
    stay, and several backwards come before each step, they may be added up on purpose; nothing is
    found then.
    """
    analysis = evidence.analysis
    moment = evidence.moment.event
    features = evidence.features
    phases = analysis.phases
    idle = _idle_ranges(analysis.phases)
    begun = idle[idle[:, 0] <= moment]
    if not len(begun) or moment > phases.run_end[begun[-1, 1]]:
        return
    step_end, backward = begun[-1].tolist()
    # Those of before the trace may be a sum, unless they are freed before the first backward.
    is_idle = features.is_traced | (features.end <= idle[0, 1])
    rows = rows_of(is_idle & evidence.is_a(Category.GRADIENT))
    mine = rows[evidence.live[rows] & (features.alloc[rows] < step_end)]
    if not evidence.is_large(mine) or len(rows) * len(idle) > _MOST_RANGES:
        return
    stay = bool((features.end[mine] > backward).any())
    iterations = phases.iteration[phases.begins_of(Phase.BACKWARD)]
    if stay and len(distinct(iterations)) < len(iterations):
        return
    free_stacks = analysis.allocations.free_stack_id[mine]
    where = evidence.calls.lines.innermost(int(next(iter(free_stacks[free_stacks >= 0]), -1)))
    when = f"freed only after it{f', at {where.place}' if where else ''}"
    # A step without notes of its own shows only by what it allocates: one may come unseen.
    is_last = (phases.in_step.any() or phases.is_recorded) and not phases.optimizers.may_be_several
    yield evidence.found(
        _without(evidence, rows, idle),
        mine,
        where,
        could_be=("accumulation",) * stay + ("later-step",) * (not is_last),
        when="not freed before backward" if stay else when,
    )


def _idle_ranges(phases: Phases) -> Int64Column:
    """Return the ranges in which no gradient is read: from the end of a step up to the next backward.

    A step that allocates nothing is known by the iteration that ends with it; before the trace, one
    may have ended.
    """
    ends = phases.run_end[phases.begins_of(Phase.OPTIMIZER)].astype(np.int64) + 1
    if phases.has_steps:
        ends = np.concatenate((ends, rows_of(np.diff(phases.iteration)) + 1))
    ends = distinct(np.append(ends, 0))
    backwards = phases.begins_of(Phase.BACKWARD)
    begins = last_before(ends, backwards + 1)
    is_after_step = begins > np.append(-1, phases.run_end[backwards])[:-1]
    return np.stack((begins.astype(np.int64), backwards), axis=1)[is_after_step]


def _without(evidence: Evidence, rows: Int64Column, idle: Int64Column) -> Change:
    """Return the change that frees gradients at the end of each step, until backward makes them anew.

    It makes them in the order in which the first backward did. Where there is none, autograd takes
    over what it would add to it (torch/csrc/autograd/functions/accumulate_grad.h): neither is there
    twice.
    """
    table = evidence.table
    features = evidence.features
    phases = evidence.analysis.phases
    alloc = table.alloc_event[rows]
    begins = run_starts(phases.phase)
    first = last_before(begins, alloc + 1)
    last = phases.run_end[alloc]
    place = (alloc - first) / np.maximum(last - first + 1, 1)
    incoming = rows_of(features.by_engine & ~evidence.is_a(Category.GRADIENT))
    parts: list[Change] = []
    for ends, backward in idle.tolist():
        is_kept = (alloc < ends) & (features.end[rows] > ends)
        after = int(phases.run_end[backward]) + 1
        again = backward + (place[is_kept] * (after - backward)).astype(np.int64)
        here = slice(*np.searchsorted(table.alloc_event[incoming], (backward, after)))
        again = _taken_over(evidence, rows[is_kept], again, incoming[here])
        parts.append(replace(freed_from(evidence.analysis, rows[is_kept], ends), last=again))
    return joined(parts)


def _taken_over(
    evidence: Evidence, rows: Int64Column, again: Int64Column, incoming: Int64Column
) -> Int64Column:
    """Return where gradients begin if each is the nearest of what one backward makes of its size."""
    table = evidence.table
    features = evidence.features
    last = np.array(again)
    sizes = table.requested_bytes
    for size in distinct(sizes[rows]).tolist():
        is_such = sizes[rows] == size
        same = incoming[sizes[incoming] == size]
        if len(same):
            distance = np.abs(table.alloc_event[same] - again[is_such, None])
            last[is_such] = np.maximum(again[is_such], features.end[same[distance.argmin(axis=1)]])
    return last


# Forwards whose graphs are in use together: two may be one forward and its replacement.
_LEAST_GRAPHS = 3


def unused_graphs(evidence: Evidence) -> Iterator[Detected]:
    """Find forwards whose activations were kept for a backward, and freed without one."""
    analysis = evidence.analysis
    table = evidence.table
    features = evidence.features
    unused, number_of = _unused(evidence)
    burst = at(evidence.calls.n_allocs, table.freed_event, -1).astype(np.int64)
    thrown = _thrown_away(evidence, unused, burst * (evidence.demand.n_events + 1) + number_of)
    parts = [*thrown, *_replaced_graphs(evidence, unused & ~features.is_cache)]
    if not parts:
        return
    stacks = distinct(table.stack_id[np.concatenate(parts)])
    rows = distinct(np.concatenate([*parts, *_last_graph(evidence, unused, stacks)]))
    mine = rows[evidence.live[rows]]
    if not evidence.is_large(mine):
        return
    # Without a graph, too, a cache is a part of what the call returns, and an input stays up to its
    # end.
    is_other = unused & features.is_cache
    is_other |= evidence.is_a(Category.INPUT)
    is_other &= features.is_freed & features.is_traced & is_among(burst, burst[rows])
    rows = np.concatenate((rows, rows_of(is_other)))
    callers = (evidence.calls.module_call(stack, outermost=True) for stack in stacks.tolist())
    yield evidence.found(
        freed_from(analysis, rows, ends_without_graph(evidence.calls, analysis, rows)),
        mine,
        evidence.calls.line_of(next(filter(None, callers), ())),
        # What the same call left before was freed without a backward.
        could_be=_could_be(analysis, mine, is_over=features.is_freed[rows].any()),
        calls="this call" if features.is_traced[rows].all() else _CALLS_OF_BEFORE,
    )


def _thrown_away(evidence: Evidence, unused: BoolColumn, burst: Int64Column) -> list[Int64Column]:
    """Return whole graphs, each of one forward and freed in one burst."""
    features = evidence.features
    graphs = grouped(rows_of(unused & features.is_freed & ~features.is_cache), burst)
    return [rows for rows in graphs if _is_whole_graph(evidence, rows)]


def _last_graph(
    evidence: Evidence, unused: BoolColumn, stacks: Int32Column
) -> Iterator[Int64Column]:
    """Yield the whole graph of the same stacks that is still in use at the end, if there is one."""
    is_last = unused & ~evidence.features.is_freed & ~evidence.features.is_cache
    last = rows_of(is_last & is_among(evidence.table.stack_id, stacks[stacks >= 0]))
    if _is_whole_graph(evidence, last):
        yield last


def _unused(evidence: Evidence) -> tuple[BoolColumn, Int64Column]:
    """Mark what forwards made for a backward that does not come, and number the calls of each line."""
    unused = _never_used(evidence)
    numbers = np.zeros(len(evidence.table), np.int64)
    for _, of_call, begins, number_of in _by_forward(evidence, unused):
        numbers += number_of
        # In use while two more forwards of its line began: something keeps it. Of graphs see
        # kept_graphs.
        began_since = np.searchsorted(begins, evidence.features.end[of_call]) - number_of[of_call]
        is_kept = began_since >= _LEAST_GRAPHS
        unused[of_call] = ~is_kept & (not is_graph(evidence.analysis, of_call[is_kept]))
    return unused, numbers


def _replaced_graphs(evidence: Evidence, unused: BoolColumn) -> list[Int64Column]:
    """Return graphs that a line keeps until it has made the next one, each with that one.

    One of before the trace has no stacks that show a whole graph. One that a loss kept may be a
    list of outputs, made without a graph.
    """
    analysis = evidence.analysis
    calls = evidence.calls
    table = evidence.table
    if not analysis.phases.free_sites_known or len(analysis.phases.events_of_training):
        return []
    parts: list[Int64Column] = []
    for burst in Bursts(analysis, calls).finished(evidence):
        if burst.is_graph and not burst.maker:
            is_new = unused & (table.stack_id >= 0) & (table.alloc_event >= burst.call)
            is_new &= calls.is_within(calls.path(burst.line))[table.stack_id]
            parts += [burst.rows, rows_of(is_new)]
    return parts


def kept_graphs(evidence: Evidence) -> Iterator[Detected]:
    """Find graphs of several earlier forwards, in use together, that no backward has used."""
    analysis = evidence.analysis
    features = evidence.features
    unused = _never_used(evidence, is_interrupted=analysis.ran_out) & features.is_traced
    for root, of_call, begins, number_of in _by_forward(evidence, unused):
        graphs = grouped(of_call[evidence.live[of_call]], number_of)
        graphs = [part for part in graphs if is_graph(analysis, part)]
        if len(graphs) < _LEAST_GRAPHS:
            continue
        mine = np.concatenate(graphs[:-1])
        if evidence.is_large(mine):
            whole = _with_its_losses(evidence, of_call, begins, root[:-1])
            number = _number(evidence, whole, begins)
            after = np.zeros(len(begins) + 1, np.int64)
            after[number] = features.alloc[whole] + 1  # of several, what is written last stays
            is_over = not analysis.ran_out and features.is_freed[mine].all()
            yield evidence.found(
                freed_from(analysis, whole, after[number]),
                mine,
                evidence.calls.line_of(root),
                could_be=_could_be(analysis, mine, is_over=is_over),
                number=len(graphs),
            )


def _number(evidence: Evidence, rows: Int64Column, begins: Int64Column) -> Int64Column:
    """Return the number of the forward that each allocation belongs to: an input to the next."""
    is_input = evidence.is_a(Category.INPUT)[rows]
    begun: Int64Column = np.searchsorted(begins, evidence.features.alloc[rows], side="right")
    return begun - 1 + is_input


def _with_its_losses(
    evidence: Evidence, rows: Int64Column, begins: Int64Column, line: tuple[int, ...]
) -> Int64Column:
    """Return graphs with what was freed together with each: its inputs, and what its loss made after it."""
    table = evidence.table
    features = evidence.features
    is_part = features.is_freed.copy()
    if line:  # what the trace does not free has no burst: then the same line
        is_part |= evidence.calls.is_within(line)[table.stack_id]
    is_input = evidence.is_a(Category.INPUT)
    is_part &= (evidence.is_computed | is_input) & features.is_traced
    others = rows_of(is_part | features.mask(rows))
    burst = at(evidence.calls.n_allocs, table.freed_event[others], -1) + 1
    key = _number(evidence, others, begins) * (evidence.demand.n_events + 2) + burst
    return others[np.isin(key, key[np.isin(others, rows)])]


def growing(evidence: Evidence) -> Iterator[Detected]:
    """Find lines that keep memory of every iteration, which the replay frees when its iteration ends."""
    analysis = evidence.analysis
    found = find_growth(evidence.analysis)
    if not any(growth_notes(analysis, found)):
        return
    ends = np.array([iteration.last_event for iteration in analysis.iterations], np.int64)
    for one in growth_by_line(found)[:3]:
        rows = np.sort(one.rows)
        is_replaced = one.fate is Fate.REPLACED
        change = freed_from(
            analysis, rows, np.where(is_replaced, -1, ends[analysis.iteration[rows]])
        )
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


def _never_used(evidence: Evidence, *, is_interrupted: bool = False) -> BoolColumn:
    """Mark what a forward made and the program itself freed, or nobody, with no backward in between.

    Where memory ran out meanwhile, the exception may have kept it from its backward: only
    ``is_interrupted``.
    """
    features = evidence.features
    phases = evidence.analysis.phases
    # autocast's cache keeps copies of weights, without a graph too.
    is_cast = features.in_forward & evidence.is_a(Category.WEIGHT)
    unused = (features.in_forward | features.preexisting_in_forward) & ~is_cast
    unused &= ~features.is_freed_by_engine
    if not phases.free_sites_known:
        return np.zeros_like(unused)
    # A backward may come in between that is of a later forward alone.
    used = rows_of(features.in_forward & features.is_freed_by_engine)
    began = first_before(features.next_backward, features.alloc, used, features.n_events)
    began[began == features.n_events] = -1
    unused &= (features.next_backward >= features.end) | (features.alloc < began)
    failed = phases.oom_events[: 0 if is_interrupted else None]
    unused &= np.searchsorted(failed, features.alloc) == np.searchsorted(failed, features.end)
    # What is freed within a module's call is no graph.
    return np.asarray(unused & ~features.freed_through(Role.MODULE_CALL))


def _could_be(
    analysis: DeviceAnalysis, rows: Int64Column, *, is_over: bool | np.bool_
) -> tuple[str, ...]:
    """Return what else than a graph allocations could be; ``is_over``: no backward comes for them."""
    stack = analysis.allocations.stack_id[rows]
    by_nodes = analysis.features.freed_through(Role.RELEASE)[rows]
    are_two = (np.diff(rows) == 1) & (stack[1:] == stack[:-1]) & (stack[1:] >= 0)
    has_sign = by_nodes.any() or len(distinct(stack[1:][are_two])) >= _LEAST_OF_TWO
    return ("outputs",) * (not has_sign) + ("later",) * (not is_over)


def _is_whole_graph(evidence: Evidence, rows: Int64Column) -> bool:
    """Return whether allocations are nearly all that their forward left.

    A node of autograd on the stack that frees them shows a graph of any size, unless a backward
    came before:
    that may have gone through it, as through the input of a checkpointed layer.
    """
    features = evidence.features
    is_of_nodes = bool(features.freed_through(Role.RELEASE)[rows].any())
    is_of_nodes &= bool((features.next_backward[rows] >= features.end[rows]).all())
    if not (is_of_nodes or is_graph(evidence.analysis, rows)):
        return False
    n_bytes = evidence.table.block_bytes
    end = features.end
    span = slice(rows[0], rows[-1] + 1)  # rows are in the order of their allocs
    is_left = evidence.is_of_forward[span] & (end[span] >= end[rows].min())
    return bool(n_bytes[rows].sum() >= NEARLY * n_bytes[span][is_left].sum())


def _by_forward(
    evidence: Evidence, is_made: BoolColumn
) -> Iterator[tuple[tuple[int, ...], Int64Column, Int64Column, Int64Column]]:
    """Group allocations by the call of the model: its path, they, the events at which calls began.

    And the number of the call that each belongs to, of which other allocations have 0.
    """
    stack_id = evidence.table.stack_id
    of_root: dict[tuple[int, ...], list[Int64Column]] = {}
    for same in grouped(rows_of(is_made), stack_id):
        root = evidence.calls.module_call(int(stack_id[same[0]]), outermost=True)
        of_root.setdefault(root, []).append(same)
    for root, parts in of_root.items():
        of_call = np.sort(np.concatenate(parts))
        if root and evidence.is_large(of_call[evidence.live[of_call]]):
            begins = evidence.calls.begins(root)
            number_of = np.zeros(len(stack_id), np.int64)
            number_of[of_call] = _number(evidence, of_call, begins)
            yield root, of_call, begins, number_of
