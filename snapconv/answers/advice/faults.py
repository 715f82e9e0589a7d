"""Faults: memory that is kept for nothing, each found in the trace by one function.

A previous output, loss, graph or batch that is in use while its replacement is made: ``out =
model(batch)`` in a loop keeps the previous ``out`` until the new one is there, since Python gives
the name its new value last. Gradients that stay through forward. Graphs that no backward uses, of a
forward without one and of earlier steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from snapconv.answers.advice.bursts import NEARLY, Burst, Bursts, is_graph
from snapconv.answers.advice.evidence import Detected, Evidence
from snapconv.answers.cycles import find_garbage
from snapconv.answers.growth import Fate, find_growth, growth_by_line, growth_notes
from snapconv.classification.categories import ABOUT, Category
from snapconv.classification.features import first_before
from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int32Column,
    Int64Column,
    distinct,
    grouped,
    is_among,
    last_before,
    number_groups,
    rows_of,
    run_starts,
)
from snapconv.hypotheses.changes import Change, combined, freed_from, joined, removed
from snapconv.hypotheses.references import ends_without_graph
from snapconv.phases.trace_phases import Phase, Phases
from snapconv.stacks.project_lines import SourceLine
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.units import format_bytes, optional

_CALLS_OF_BEFORE = "this call, and the one before the trace, whose graph is still alive"
# Lines whose operations left two results each, such as a norm its statistics: so many show a graph.
_LEAST_OF_TWO = 3


def previous_kept(evidence: Evidence) -> Iterator[Detected]:
    """Find memory that lines keep until its replacement is made.

    The change is for the moment, and for everything that these lines free too late in the trace.
    """
    analysis = evidence.analysis
    if not analysis.phases.free_sites_known:
        return
    bursts = Bursts(evidence)
    live_bursts: dict[int, list[Burst]] = {}
    recorded = list(bursts.recorded())
    for burst in (*recorded, *bursts.expected(recorded)):
        live_bursts.setdefault(burst.line, []).append(burst)
    for line, line_bursts in live_bursts.items():
        rows = np.concatenate([burst.rows for burst in line_bursts])
        if evidence.is_large(rows):
            changes = []
            for burst in (*bursts.freed_by(line), *line_bursts):
                changes.append(freed_from(analysis, burst.all_rows, burst.call))
            yield _previous(evidence, line_bursts, rows, combined(analysis, changes))


def _previous(
    evidence: Evidence, bursts: Sequence[Burst], rows: Int64Column, change: Change
) -> Detected:
    """Return the finding about the bursts of one line, whose ``rows`` are in use at the moment."""
    calls = evidence.calls
    path = calls.path(bursts[0].line)
    line = calls.line_of(path)
    maker_path = bursts[0].maker
    maker = calls.line_of(maker_path or path)
    has_graph = any(burst.is_graph for burst in bursts)
    could_be: tuple[str, ...] = ("state",)
    condition = ""
    if has_graph:
        is_over = evidence.features.is_freed[change.rows].any()
        could_be = _graph_look_alikes(evidence, rows, is_over=is_over)
        if not len(evidence.features.phases.events_of_training):
            condition = "If backward is needed, "
    return evidence.finding(
        change,
        rows,
        line,
        could_be=could_be,
        thing=_name_of_output(evidence, rows, has_graph=has_graph),
        when=condition,
        held=f" ({line.place} assigns it)" if maker_path and line else "",
        maker=maker.place if maker else "library code",
    )


def _name_of_output(evidence: Evidence, rows: Int64Column, *, has_graph: bool) -> str:
    if has_graph:
        return "output (and its graph)"
    categories = distinct(evidence.category[rows]).tolist()
    return ABOUT[Category(categories[0])].returned if len(categories) == 1 else "output"


@dataclass(frozen=True, slots=True)
class _ModelCalls:
    """The calls of a model from one line, and some allocations that they made.

    ``path``: the frames down to the call; ``begins``: the events at which the calls began.
    ``numbers`` has the number of the call for each of the ``rows``.
    """

    path: tuple[int, ...]
    rows: Int64Column
    begins: Int64Column
    numbers: Int64Column


# Gradients times steps; more take too long.
_MOST_RANGES = 1 << 22


def kept_gradients(evidence: Evidence) -> Iterator[Detected]:
    """Find gradients in use at the moment, between a step and the next backward.

    Between the two nothing adds to them: they are freed or zeroed before the backward. Where they
    stay, and several backwards come before each step, they may be added up on purpose; nothing is
    found then.
    """
    phases = evidence.features.phases
    moment = evidence.moment.event
    idle = _idle_ranges(phases)
    begun = idle[idle[:, 0] <= moment]
    if not len(begun):
        return
    step_end, backward = begun[-1].tolist()
    # In the backward itself they are in use beside the new ones.
    if moment > phases.run_end[backward]:
        return
    # Pre-existing ones may be a sum, unless they are freed before the first backward.
    is_of_one_step = evidence.features.is_traced | (evidence.end <= idle[0, 1])
    rows = rows_of(is_of_one_step & evidence.is_a(Category.GRADIENT))
    live_rows = rows[evidence.live[rows] & (evidence.alloc[rows] < step_end)]
    if not evidence.is_large(live_rows) or len(rows) * len(idle) > _MOST_RANGES:
        return
    stay = bool((evidence.end[live_rows] > backward).any())
    if stay and _has_several_backwards(phases):
        return
    line = _first_free_line(evidence, live_rows)
    after = f"freed only after it{optional(', at {0.place}', line)}"
    yield evidence.finding(
        _freed_after_steps(evidence, rows, idle),
        live_rows,
        line,
        could_be=_gradient_look_alikes(phases, stay=stay),
        when="not freed before backward" if stay else after,
    )


def _has_several_backwards(phases: Phases) -> bool:
    """Return whether an iteration has more than one backward."""
    iterations = phases.iteration[phases.begins_of(Phase.BACKWARD)]
    return len(distinct(iterations)) < len(iterations)


def _first_free_line(evidence: Evidence, rows: Int64Column) -> SourceLine | None:
    """Return the project's line that freed the first allocation whose free has a stack."""
    stacks = evidence.table.free_stack_id[rows]
    recorded = stacks[stacks >= 0]
    return evidence.calls.lines.innermost(int(recorded[0]) if len(recorded) else -1)


def _gradient_look_alikes(phases: Phases, *, stay: bool) -> tuple[str, ...]:
    """Return what else gradients that ``stay`` through a backward, or not, could be."""
    slugs = ["accumulation"] if stay else []
    # A step without notes of its own shows only by what it allocates: one may come unseen.
    are_steps_known = phases.in_step.any() or phases.is_recorded
    if not are_steps_known or phases.optimizers.may_be_several:
        slugs.append("later-step")
    return tuple(slugs)


def _idle_ranges(phases: Phases) -> Int64Column:
    """Return the ranges in which no gradient is read, one a row.

    Each is from the end of a step up to the first backward after it. A step that allocates nothing
    is known by the iteration that ends with it; before the trace, one may have ended.
    """
    ends = np.append(0, phases.run_end[phases.begins_of(Phase.OPTIMIZER)] + 1)
    if phases.has_steps:
        ends = np.append(ends, rows_of(np.diff(phases.iteration)) + 1)
    backwards = phases.begins_of(Phase.BACKWARD)
    step_ends = last_before(distinct(ends), backwards + 1)
    previous_backward_ends = np.append(-1, phases.run_end[backwards])[:-1]
    is_first = step_ends > previous_backward_ends
    return np.asarray(np.column_stack((step_ends, backwards))[is_first], np.int64)


def _freed_after_steps(evidence: Evidence, rows: Int64Column, idle: Int64Column) -> Change:
    """Return the change that frees gradients at the end of each step, until the next backward.

    That makes each again as far into its run as it was made in its own. Where a gradient is
    missing, autograd takes over what it would add to it
    (torch/csrc/autograd/functions/accumulate_grad.h): neither is there twice.
    """
    phases = evidence.features.phases
    alloc = evidence.alloc[rows]
    position = _positions_in_runs(phases, alloc)
    incoming = rows_of(evidence.features.by_engine & ~evidence.is_a(Category.GRADIENT))
    incoming_alloc = evidence.alloc[incoming]
    parts: list[Change] = []
    for step_end, backward in idle.tolist():
        is_kept = (alloc < step_end) & (evidence.end[rows] > step_end)
        kept_rows = rows[is_kept]
        backward_end = int(phases.run_end[backward]) + 1
        n_events = backward_end - backward
        new_begins = backward + (position[is_kept] * n_events).astype(np.int64)
        begin, end = np.searchsorted(incoming_alloc, (backward, backward_end))
        again = _begins_of_taken_over(evidence, kept_rows, new_begins, incoming[begin:end])
        parts.append(freed_from(evidence.analysis, kept_rows, step_end, again))
    return joined(parts)


def _positions_in_runs(phases: Phases, alloc: EventColumn) -> NDArray[np.float64]:
    """Return how far into its run of a phase each alloc comes: from 0 to 1."""
    first = last_before(run_starts(phases.phase), alloc + 1)
    last = phases.run_end[alloc]
    return np.asarray((alloc - first) / np.maximum(last - first + 1, 1))


def _begins_of_taken_over(
    evidence: Evidence, rows: Int64Column, new_begins: Int64Column, incoming: Int64Column
) -> Int64Column:
    """Return where gradients begin if each takes over other memory, if that is later.

    That is the nearest of its size in ``incoming``, which one backward makes. It is in use up to
    its end in the trace, and from then on as the gradient.
    """
    begins = np.array(new_begins)
    sizes = evidence.sizes
    for size in distinct(sizes[rows]).tolist():
        has_size = sizes[rows] == size
        fitting = incoming[sizes[incoming] == size]
        if len(fitting):
            distance = np.abs(evidence.alloc[fitting] - new_begins[has_size, None])
            nearest = fitting[distance.argmin(axis=1)]
            begins[has_size] = np.maximum(new_begins[has_size], evidence.end[nearest])
    return begins


# So many graphs that were freed without a backward show that the next is, too.
_LEAST_FREED = 2
# Forwards whose graphs are in use together: two may be one forward and its replacement.
_LEAST_GRAPHS = 3


def unused_graphs(evidence: Evidence) -> Iterator[Detected]:
    """Find forwards whose activations were kept for a backward, and freed without one."""
    analysis = evidence.analysis
    calls = evidence.calls
    features = evidence.features
    unused, call_number = _unused(evidence)
    graphs = _ended_graphs(evidence, unused, call_number)
    if not graphs:
        return
    stacks = distinct(evidence.stack_id[np.concatenate(graphs)])
    graphs += _last_graph(evidence, unused, stacks)
    graph_rows = distinct(np.concatenate(graphs))
    live_rows = evidence.live_of(graph_rows)
    if not evidence.is_large(live_rows):
        return
    is_freed_with_graph = is_among(calls.burst, calls.burst[graph_rows])
    companions = rows_of(_is_companion(evidence, unused) & is_freed_with_graph)
    rows = np.concatenate((graph_rows, companions))
    # Where one graph alone has been freed, a backward of the graph in use may still come.
    n_freed = sum(bool(features.is_freed[graph].all()) for graph in graphs)
    is_over = features.is_freed[graph_rows].all() or n_freed >= _LEAST_FREED
    yield evidence.finding(
        freed_from(analysis, rows, ends_without_graph(calls, analysis, rows)),
        live_rows,
        _line_of_call(evidence, graph_rows),
        could_be=_graph_look_alikes(evidence, live_rows, is_over=is_over),
        calls="this call" if features.is_traced[rows].all() else _CALLS_OF_BEFORE,
    )


def open_graphs(evidence: Evidence) -> Iterator[Detected]:
    """Find a forward's graph that is in use where the trace ends, if nothing there shows training.

    No file says whether a backward follows. Gradients or states show training too. Where an earlier
    graph was freed, ``unused_graphs`` reports both.
    """
    analysis = evidence.analysis
    if len(analysis.phases.events_of_training):
        return
    is_of_training = evidence.is_a(Category.GRADIENT) | evidence.is_a(
        Category.OPTIMIZER_STATE
    )
    unused, call_number = _unused(evidence)
    if is_of_training.any() or _ended_graphs(evidence, unused, call_number):
        return
    stacks = distinct(evidence.stack_id[unused])
    for rows in _last_graph(evidence, unused, stacks):
        live_rows = evidence.live_of(rows)
        line = _line_of_call(evidence, rows)
        if line and evidence.is_large(live_rows):
            change = freed_from(
                analysis, rows, ends_without_graph(evidence.calls, analysis, rows)
            )
            could_be = _graph_look_alikes(evidence, rows, is_over=False)
            yield evidence.finding(change, live_rows, line, could_be=could_be)


def _ended_graphs(
    evidence: Evidence, unused: BoolColumn, call_number: Int64Column
) -> list[Int64Column]:
    """Return the graphs that were freed without a backward, and those that replaced such a one."""
    return [
        *_thrown_away(evidence, unused, call_number),
        *_replaced_graphs(evidence, unused & ~evidence.features.is_cache),
    ]


def _line_of_call(evidence: Evidence, rows: Int64Column) -> SourceLine | None:
    """Return the line whose call made nearly all of a graph, or None where no stack shows it.

    That is the line that calls the model. A program may call the model's forward() itself: then
    what the stacks show first are calls of the model's parts, and the line is further out.
    """
    calls = evidence.calls
    stacked = rows[evidence.stack_id[rows] >= 0]
    if not len(stacked):
        return None
    path = calls.model_call(evidence.analysis.main_stack(stacked))
    n_bytes = evidence.bytes_of(stacked)
    while path:
        within = stacked[calls.made_within(path)[stacked]]
        if evidence.bytes_of(within) >= NEARLY * n_bytes:
            break
        path = path[:-1]
    return calls.line_of(calls.outside_forward(path))


def _is_companion(evidence: Evidence, unused: BoolColumn) -> BoolColumn:
    """Mark the caches and inputs that a graph may keep.

    Without a graph, too, a cache is a part of what the call returns, and an input stays up to its
    end.
    """
    features = evidence.features
    is_companion = unused & features.is_cache
    is_companion |= evidence.is_a(Category.INPUT)
    return is_companion & features.is_freed & features.is_traced


def _thrown_away(
    evidence: Evidence, unused: BoolColumn, call_number: Int64Column
) -> Iterator[Int64Column]:
    """Yield whole graphs, each of one forward and freed in one burst."""
    features = evidence.features
    call_and_burst = evidence.calls.burst * (features.n_events + 1) + call_number
    freed = rows_of(unused & features.is_freed & ~features.is_cache)
    for rows in grouped(freed, call_and_burst):
        if _is_whole_graph(evidence, rows):
            yield rows


def _last_graph(
    evidence: Evidence, unused: BoolColumn, stacks: Int32Column
) -> Iterator[Int64Column]:
    """Yield the whole graph of the same stacks that is still in use at the end, if there is one."""
    is_last = unused & ~evidence.features.is_freed & ~evidence.features.is_cache
    last = rows_of(is_last & is_among(evidence.stack_id, stacks[stacks >= 0]))
    if _is_whole_graph(evidence, last):
        yield last


def _unused(evidence: Evidence) -> tuple[BoolColumn, Int64Column]:
    """Mark what forwards made for a backward that does not come, and number the calls of lines."""
    unused = _never_used(evidence)
    numbers = np.zeros(len(evidence.table), np.int64)
    for call in _model_calls(evidence, unused):
        numbers[call.rows] += call.numbers
        # In use while two more forwards of its line began: something keeps it. For graphs see
        # kept_graphs.
        n_begun = np.searchsorted(call.begins, evidence.end[call.rows])
        kept_rows = call.rows[n_begun - call.numbers >= _LEAST_GRAPHS]
        unused[call.rows if is_graph(evidence, kept_rows) else kept_rows] = False
    return unused, numbers


def _replaced_graphs(evidence: Evidence, unused: BoolColumn) -> Iterator[Int64Column]:
    """Yield graphs that a line keeps until it has made the next one, each before that one.

    A graph with another maker than its line is pre-existing and was kept by a loss: no stacks show
    that it is whole, so it may be a list of outputs, made without a graph.
    """
    phases = evidence.features.phases
    if not phases.free_sites_known or len(phases.events_of_training):
        return
    for burst in Bursts(evidence).recorded():
        if burst.is_graph and not burst.maker:
            is_new = unused & (evidence.stack_id >= 0) & (evidence.alloc >= burst.call)
            is_new &= evidence.calls.made_within(evidence.calls.path(burst.line))
            yield burst.rows
            yield rows_of(is_new)


def kept_graphs(evidence: Evidence) -> Iterator[Detected]:
    """Find graphs of several earlier forwards, in use together, that no backward has used."""
    analysis = evidence.analysis
    features = evidence.features
    unused = _never_used(evidence, is_interrupted=analysis.ran_out) & features.is_traced
    for call in _model_calls(evidence, unused):
        parts = grouped(rows_of(evidence.live[call.rows]), call.numbers)
        graphs = [call.rows[part] for part in parts if is_graph(evidence, call.rows[part])]
        if len(graphs) < _LEAST_GRAPHS:
            continue
        live_rows = np.concatenate(graphs[:-1])
        if evidence.is_large(live_rows):
            rows = _freed_with_graphs(evidence, call)
            number = _forward_numbers(evidence, rows, call.begins)
            # Each graph would be free after its last allocation: of several, what is written last
            # stays.
            free_event = np.zeros(len(call.begins) + 1, np.int64)
            free_event[number] = evidence.alloc[rows] + 1
            is_over = not analysis.ran_out and features.is_freed[live_rows].all()
            yield evidence.finding(
                freed_from(analysis, rows, free_event[number]),
                live_rows,
                evidence.calls.line_of(evidence.calls.outside_forward(call.path)),
                could_be=_graph_look_alikes(evidence, live_rows, is_over=is_over),
                number=len(graphs),
            )


def _forward_numbers(
    evidence: Evidence, rows: Int64Column, begins: Int64Column
) -> Int64Column:
    """Return the number of the forward that each allocation belongs to.

    They are counted from 0. An input was made before its forward began.
    """
    is_input = evidence.is_a(Category.INPUT)[rows]
    begun: Int64Column = np.searchsorted(begins, evidence.alloc[rows], side="right")
    return begun - 1 + is_input


def _freed_with_graphs(evidence: Evidence, call: _ModelCalls) -> Int64Column:
    """Return graphs with what was freed together with each: its inputs, and its loss's memory.

    What the trace does not free belongs to a graph if the line that calls the model made it.
    """
    features = evidence.features
    may_belong = features.is_freed.copy()
    line_path = call.path[:-1]
    if line_path:
        may_belong |= evidence.calls.made_within(line_path)
    may_belong &= evidence.is_computed | evidence.is_a(Category.INPUT)
    may_belong &= features.is_traced
    candidates = rows_of(may_belong | features.mask(call.rows))
    number = _forward_numbers(evidence, candidates, call.begins)
    _, group = number_groups(number, evidence.calls.burst[candidates])
    graph_groups = group[np.isin(candidates, call.rows)]
    return candidates[np.isin(group, graph_groups)]


# Lines that grow less are no finding of their own.
_MOST_GROWING_LINES = 3


def growing(evidence: Evidence) -> Iterator[Detected]:
    """Find lines that keep memory of every iteration; the change frees it when that ends."""
    analysis = evidence.analysis
    growths = find_growth(analysis)
    if not any(growth_notes(analysis, growths)):
        return
    ends = np.array([iteration.last_event for iteration in analysis.iterations], np.int64)
    for growth in growth_by_line(growths)[:_MOST_GROWING_LINES]:
        rows = np.sort(growth.rows)
        if growth.fate is Fate.REPLACED:
            # Each replaces a smaller one: as much as the smallest stays in use.
            change = removed(analysis, rows)
            change = replace(change, n_bytes=change.n_bytes - change.n_bytes.min())
        else:
            change = freed_from(analysis, rows, ends[analysis.iteration[rows]])
        added = format_bytes(growth.bytes_per_iteration)
        yield evidence.finding(change, rows, growth.line, added=added)


def garbage(evidence: Evidence) -> Iterator[Detected]:
    """Find memory that reference cycles keep beyond its step, up to a run of Python's collector."""
    waiting = find_garbage(evidence.analysis)
    if waiting is None:
        return
    live_rows = evidence.live_of(waiting.rows[waiting.ends <= evidence.moment.event])
    if evidence.is_large(live_rows):
        change = freed_from(evidence.analysis, waiting.rows, waiting.ends)
        could_be = () if waiting.is_certain else ("dropped",)
        yield evidence.finding(change, live_rows, waiting.line, could_be=could_be)


def _never_used(evidence: Evidence, *, is_interrupted: bool = False) -> BoolColumn:
    """Mark what a forward made and no backward used, up to its free or to the end of the trace.

    Where memory ran out meanwhile, the exception may have kept it from its backward: only
    ``is_interrupted``.
    """
    features = evidence.features
    if not features.phases.free_sites_known:
        return np.zeros(len(evidence.table), bool)
    # autocast's cache keeps copies of weights, without a graph too.
    is_cast = features.in_forward & evidence.is_a(Category.WEIGHT)
    unused = (features.in_forward | features.preexisting_in_forward) & ~is_cast
    unused &= ~features.is_freed_by_engine
    # The next backward may be of a later forward alone: then all that it used was made later.
    is_used = features.in_forward & features.is_freed_by_engine
    first_used = first_before(
        features.next_backward, features.alloc, rows_of(is_used), features.n_events
    )
    first_used[first_used == features.n_events] = -1  # what it used is not known
    is_before_backward = features.next_backward >= features.end
    unused &= is_before_backward | (features.alloc < first_used)
    if not is_interrupted:
        n_failed = np.searchsorted(features.phases.oom_events, features.alloc)
        unused &= n_failed == np.searchsorted(features.phases.oom_events, features.end)
    # What is freed within a module's call is no graph.
    return unused & ~features.freed_through(Role.MODULE_CALL)


def _graph_look_alikes(
    evidence: Evidence, rows: Int64Column, *, is_over: bool | np.bool_
) -> tuple[str, ...]:
    """Return what else than a graph allocations could be.

    ``is_over``: no backward comes for them.
    """
    has_nodes = evidence.features.freed_through(Role.RELEASE)[rows].any()
    stack = evidence.stack_id[rows]
    later_stack = stack[1:]
    is_second_result = (later_stack == stack[:-1]) & (later_stack >= 0)
    is_second_result &= np.diff(rows) == 1  # right after the first
    n_with_two = len(distinct(later_stack[is_second_result]))
    slugs = []
    if not has_nodes and n_with_two < _LEAST_OF_TWO:
        slugs.append("outputs")
    if not is_over:
        slugs.append("later")
    return tuple(slugs)


def _is_whole_graph(evidence: Evidence, rows: Int64Column) -> bool:
    """Return whether allocations are nearly all that their forward left.

    A node of autograd on the stack that frees them shows a graph of any size, unless a backward
    came before: that may have gone through it, as through the input of a checkpointed layer.
    """
    features = evidence.features
    end = features.end
    has_nodes = features.freed_through(Role.RELEASE)[rows].any()
    is_before_backward = (features.next_backward[rows] >= end[rows]).all()
    if not (has_nodes and is_before_backward) and not is_graph(evidence, rows):
        return False
    span = slice(rows[0], rows[-1] + 1)  # rows are in the order of their allocs
    is_left = evidence.is_of_forward[span] & (end[span] >= end[rows].min())
    left_bytes = evidence.table.block_bytes[span][is_left].sum()
    return bool(evidence.bytes_of(rows) >= NEARLY * left_bytes)


def _model_calls(evidence: Evidence, is_chosen: BoolColumn) -> Iterator[_ModelCalls]:
    """Group the chosen allocations by the calls of the model, where they are large."""
    parts_by_path: dict[tuple[int, ...], list[Int64Column]] = {}
    for stack_rows in grouped(rows_of(is_chosen), evidence.stack_id):
        path = evidence.calls.model_call(int(evidence.stack_id[stack_rows[0]]))
        parts_by_path.setdefault(path, []).append(stack_rows)
    for path, parts in parts_by_path.items():
        rows = np.sort(np.concatenate(parts))
        if path and evidence.is_large(evidence.live_of(rows)):
            begins = evidence.calls.begins(path)
            numbers = _forward_numbers(evidence, rows, begins)
            yield _ModelCalls(path, rows, begins, numbers)
