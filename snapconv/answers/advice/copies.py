"""Copies that need not be on the device: of weights, gradients and shards, and of batches before their step.

A trace has no reads, so that a copy which nothing reads is known by its age, its stack and its
sizes alone. An average of the weights, a reference model and a target network are copies too, and
are read: they are made before the first step, or by copying modules, and are not found here.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from snapconv.answers.advice.changes import Change, freed_from, joined, removed
from snapconv.answers.advice.evidence import LEAST_SHARE_OF_TRADE, Detected, Evidence
from snapconv.classification.categories import Category, Trait, categories_with
from snapconv.classification.facts import CAST_OF_WEIGHT
from snapconv.columns import (
    BoolColumn,
    Int64Column,
    distinct,
    grouped,
    has_code,
    is_among,
    last_before,
    plain_rows,
    rows_of,
    sums_by,
)
from snapconv.phases.trace_phases import Phase
from snapconv.stacks.paths import normal
from snapconv.torch_knowledge.frame_patterns import Role

# Of the bytes of a copy, those with a weight of their size.
_NEARLY = 0.9
# A model has so many weights, of so many sizes.
_LEAST_WEIGHTS, _LEAST_SIZES = 8, 3
# A checkpoint has two states for every weight, with Adam: which stay in use where no step makes
# any.
_STATES_OF_ADAM = 2
# Equal batches of one line. Where all stay, each step might read all, as a few tables.
_LEAST_BATCHES, _LEAST_BATCHES_KEPT = 4, 8
# A list of pictures, or several views of them, lives for a step or two.
_LEAST_STEPS = 3
# The outermost module stays gathered unless the program says otherwise.
_LEAST_GATHERED = 3
_OF_BUCKETS = ("_ddp_init_helper", "_pre_forward")
_DDP_FILE = "torch/nn/parallel/distributed.py"


def loaded_weights(evidence: Evidence) -> Iterator[Detected]:
    """Find what torch.load left beside the model; the states of a checkpoint come after its weights."""
    analysis = evidence.analysis
    features = evidence.features
    states = analysis.rows(Category.OPTIMIZER_STATE)
    is_unknown = (
        bool(features.has_next_backward.any()) and analysis.recorded is None and not len(states)
    )
    for rows in _of_line(
        evidence, rows_of(_may_be_copy(evidence) & features.made_through(Role.LOADED))
    ):
        spare = _copies(evidence, rows, n_states=_STATES_OF_ADAM * is_unknown)
        if len(spare):
            yield evidence.found(removed(analysis, spare), spare, analysis.main_line(spare))


def cloned_weights(evidence: Evidence) -> Iterator[Detected]:
    """Find clones of all weights that follow a validation."""
    analysis = evidence.analysis
    table = evidence.table
    features = evidence.features
    is_clone = features.outside & ~features.made_through(Role.PLACEMENT) & _may_be_copy(evidence)
    if not evidence.is_large(rows_of(is_clone & evidence.live)):
        return
    is_clone[is_clone] = _follow_validation(evidence, rows_of(is_clone))
    for rows in _of_line(evidence, rows_of(is_clone & evidence.live)):
        spare = _copies(evidence, rows)
        if len(spare):
            change = removed(
                analysis, rows_of(is_clone & is_among(table.stack_id, table.stack_id[spare]))
            )
            yield evidence.found(change, spare, analysis.main_line(spare))


def _may_be_copy(evidence: Evidence) -> BoolColumn:
    """Mark what has a category that copies of weights may be taken for."""
    return ~is_among(
        evidence.analysis.classification.category, categories_with(Trait.NO_SPARE_WEIGHT)
    )


def _copies(evidence: Evidence, rows: Int64Column, *, n_states: int = 0) -> Int64Column:
    """Return those of the rows that have the size of a weight, if together they are a model; else none.

    The last are left out where a checkpoint has so many states for every weight.
    """
    if not evidence.is_large(rows):
        return rows[:0]
    sizes = evidence.table.requested_bytes
    category = evidence.analysis.classification.category
    is_weight = has_code(category, Category.WEIGHT) & ~evidence.features.made_through(Role.LOADED)
    weights = np.setdiff1d(rows_of(is_weight & evidence.live), rows)
    spare = rows[is_among(sizes[rows], sizes[weights])]
    spare = spare[: max(len(spare) - n_states * len(weights), 0)]
    whole = min(map(evidence.bytes_of, (rows, weights)))
    is_model = len(spare) >= _LEAST_WEIGHTS and len(distinct(sizes[spare])) >= _LEAST_SIZES
    return spare if is_model and evidence.bytes_of(spare) >= _NEARLY * whole else rows[:0]


def _follow_validation(evidence: Evidence, rows: Int64Column) -> BoolColumn:
    """Mark what came after a backward and then a forward without one: an average is made before the first."""
    features = evidence.features
    phase = evidence.analysis.phases.certain
    forward, backward = (
        last_before(rows_of(has_code(phase, kind)), features.alloc[rows])
        for kind in (Phase.FORWARD, Phase.BACKWARD)
    )
    is_first = features.next_forward[rows] <= features.next_backward[rows]
    return np.asarray((backward >= 0) & (backward < forward) & is_first)


def _of_line(evidence: Evidence, rows: Int64Column, *, least: int = 1) -> list[Int64Column]:
    """Group allocations by the line of the project, and by the forwards before them: made in one go."""
    alloc = evidence.table.alloc_event
    line = np.maximum(evidence.analysis.project_frame[rows], -1)
    n_forwards = np.searchsorted(alloc[evidence.features.in_forward], alloc[rows])
    key = line.astype(np.int64) * (len(alloc) + 1) + n_forwards
    return [rows[part] for part in grouped(np.arange(len(rows)), key, least=least)]


def early_batches(evidence: Evidence) -> Iterator[Detected]:
    """Find equal inputs that one line copied to the device together, for steps one after another."""
    analysis = evidence.analysis
    table = evidence.table
    end = evidence.features.end
    bursts = _bursts_of_inputs(evidence)
    if not bursts:
        return
    steps = _steps(evidence, int(table.alloc_event[bursts[0][-1]]))
    begun = np.searchsorted(steps, table.alloc_event)
    ended = np.searchsorted(steps, end)
    spare = [bursts[0][:0]]
    for rows in bursts:
        for same in grouped(rows, table.requested_bytes, least=_LEAST_BATCHES):
            all_stay = ended[same].min() == ended[same].max() and len(same) < _LEAST_BATCHES_KEPT
            if not all_stay and ended[same].max() - begun[same[-1]] >= _LEAST_STEPS:
                spare.append(np.delete(same, np.argmax(end[same])))
    unused = np.concatenate(spare)
    frame = analysis.project_frame
    for rows in grouped(unused[frame[unused] >= 0], frame):
        live = rows[evidence.live[rows]]
        if evidence.is_large(live):
            number = 1 + max(map(len, grouped(live, table.requested_bytes)))
            yield evidence.found(
                removed(analysis, rows), live, analysis.main_line(live), number=number
            )


def _bursts_of_inputs(evidence: Evidence) -> list[Int64Column]:
    """Return the inputs that one line copied to the device together, where they are several."""
    analysis = evidence.analysis
    stack_id = evidence.table.stack_id
    category = analysis.classification.category
    is_batch = has_code(category, Category.INPUT)
    # A recorder names those alone that a model was called with.
    is_batch |= has_code(category, Category.UNKNOWN) & is_among(stack_id, stack_id[is_batch])
    bursts = _of_line(evidence, rows_of(is_batch & evidence.features.outside), least=_LEAST_BATCHES)
    if not bursts:
        return bursts
    # What a model returns may be put together outside it: that is no copy to the GPU.
    is_copy = np.array([name == "to" for name in (*analysis.operations, "")])[analysis.operation_id]
    rows = np.concatenate(bursts)
    return _of_line(evidence, rows[is_copy[rows]], least=_LEAST_BATCHES)


def _steps(evidence: Evidence, event: int) -> Int64Column:
    """Return the backwards after an event; without any the calls of the model, by what they make first."""
    begins = evidence.analysis.phases.begins_of(Phase.BACKWARD)
    table = evidence.table
    if len(begins):
        return begins
    made = rows_of(evidence.features.in_forward & (table.alloc_event > event))
    calls = made[table.stack_id[made] == table.stack_id[made[:1]]]
    return np.asarray(table.alloc_event[calls], np.int64)


def autocast_cache(evidence: Evidence, *, is_read_again: bool) -> Iterator[Detected]:
    """Find the copies of weights that autocast keeps up to its exit although no graph needs them.

    Without its cache each is free once its operation is over, as the next one allocates. What is
    there when a backward begins, a graph keeps too: then the cache costs nothing, and saves copies
    of shared weights. ``is_read_again``: later operations of the block read them, and without the
    cache would cast anew.
    """
    table = evidence.table
    features = evidence.features
    calls = evidence.calls
    classified = evidence.analysis.classification
    is_cached = features.freed_through(Role.UNCACHED) & features.is_traced
    if not (evidence.live & has_code(classified.category, Category.ACTIVATION)).any():
        is_cached |= classified.has_reason(CAST_OF_WEIGHT) & ~features.is_freed
    is_cached &= ~features.reaches_backward
    rows = rows_of(is_cached)
    live = rows_of(is_cached & evidence.live)
    if not evidence.is_large(live) or _are_read_again(evidence, live) != is_read_again:
        return
    stack = int(table.free_stack_id[live[0]])
    path = (
        calls.path(stack)
        if stack >= 0
        else calls.module_call(evidence.analysis.main_stack(live), outermost=True)
    )
    change = freed_from(evidence.analysis, rows, _next_operations(evidence, is_cached)[rows])
    yield evidence.found(change, live, calls.line_of(path), could_be=())


def _next_operations(evidence: Evidence, is_cast: BoolColumn) -> Int64Column:
    """Return the event at which the operation after that of each cast weight allocates, by its line.

    Layers share a line: then the copies of the next one begin anew.
    """
    table = evidence.table
    traced = rows_of(evidence.features.is_traced)
    is_other = np.diff(evidence.features.lines_of(table.stack_id)[traced]) != 0
    is_other |= np.diff(is_cast[traced].astype(np.int8)) > 0
    others = np.append(table.alloc_event[traced[1:][is_other]], evidence.demand.n_events)
    return others[np.searchsorted(others[:-1], table.alloc_event, side="right")]


def _are_read_again(evidence: Evidence, copies: Int64Column) -> bool:
    """Return whether the last run of a line in a block makes no copy, as it finds all in the cache.

    Equal layers share a line, and each makes copies of its own; a run of a line allocates without a
    break.
    """
    table = evidence.table
    calls = evidence.calls
    for path in {calls.path(stack) for stack in table.stack_id[copies].tolist() if stack >= 0}:
        made = rows_of(calls.is_within(path)[table.stack_id])
        run = np.cumsum(np.diff(made, prepend=-2) > 1)
        mine = np.intersect1d(copies, made)
        last = np.searchsorted(table.alloc_event[made], evidence.features.end[mine]) - 1
        if not np.isin(run[last], run[np.searchsorted(made, mine)]).all():
            return True
    return False


def copied_gradients(evidence: Evidence) -> Iterator[Detected]:
    """Find gradients that stay beside the buckets in which DistributedDataParallel sums them up."""
    analysis = evidence.analysis
    table = evidence.table
    features = evidence.features
    frames = analysis.snapshot.stacks.frames
    innermost = features.lines_of(table.stack_id)
    of_ddp = [
        frame
        for frame in distinct(innermost[evidence.live & (innermost >= 0)]).tolist()
        if frames.names[frame] in _OF_BUCKETS
        and normal(frames.filenames[frame]).endswith(_DDP_FILE)
    ]
    is_bucket = is_among(innermost, of_ddp)
    is_gradient = has_code(analysis.classification.category, Category.GRADIENT) & ~is_bucket
    outlives = ~features.is_freed | (table.freed_event > features.alloc_run_end)
    rows = rows_of(is_gradient & features.is_traced & outlives)
    live = rows[evidence.live[rows]]
    is_copied = (
        evidence.bytes_of(rows_of(is_bucket & evidence.live)) >= evidence.bytes_of(live) * _NEARLY
    )
    if is_copied and evidence.is_large(live):
        yield evidence.found(freed_from(analysis, rows, _summed_up(evidence, rows)), live, None)


def _summed_up(evidence: Evidence, rows: Int64Column) -> Int64Column:
    """Return the events at which gradients go to their buckets: before the next one is made.

    A weight that is used twice waits for its other gradient, a temporary of backward of the same
    size.
    """
    table = evidence.table
    run = evidence.features.alloc_run_end
    is_gradient = has_code(evidence.analysis.classification.category, Category.GRADIENT)
    is_temporary = evidence.features.by_engine & ~is_gradient & (table.freed_event <= run)

    def kinds(rows: Int64Column) -> Iterator[tuple[int, int]]:
        return plain_rows(table.requested_bytes[rows], run[rows])

    others = rows_of(is_temporary)
    last = dict(zip(kinds(others), table.freed_event[others].tolist(), strict=True))
    waits = [last.get(kind, 0) for kind in kinds(rows)]
    following = np.append(table.alloc_event[rows][1:], evidence.demand.n_events)
    return np.asarray(np.maximum(following, waits))


def views_of_gradients(evidence: Evidence) -> Iterator[Detected]:
    """Find recorded gradients that are small views of what backward made for a whole concatenation.

    Autograd takes over an incoming gradient that nothing else has, with the memory that it is a
    part of (torch/csrc/autograd/functions/accumulate_grad.h). Several of one memory count together.
    Its other part is read once, to make the next gradient.
    """
    analysis = evidence.analysis
    table = evidence.table
    recorded = evidence.analysis.recorded
    if recorded is None:
        return
    gradients = recorded.metadata.gradients
    own = sums_by(recorded.gradients + 1, gradients.n_bytes, len(table) + 1)[1:]
    others = table.requested_bytes - own
    rows = rows_of((own > 0) & (others > own))
    live = rows[evidence.live[rows]]
    if evidence.is_large(live):
        made = table.alloc_event[evidence.features.by_engine & (own == 0)]
        after = np.searchsorted(made, table.alloc_event[rows], side="right")
        first = np.append(made, evidence.demand.n_events)[after] + 1
        change = replace(freed_from(analysis, rows, first), n_bytes=others[rows])
        parameter = gradients.parameter[recorded.gradients == live[0]][0]
        yield evidence.found(change, live, None, name=recorded.metadata.parameters.names[parameter])


def gathered_shards(evidence: Evidence) -> Iterator[Detected]:
    """Find the weights of all modules that FSDP gathered for forward and keeps until backward."""
    table = evidence.table
    features = evidence.features
    by_fsdp = features.made_through(Role.GATHERED)
    number = np.searchsorted(table.alloc_event[features.in_forward & ~by_fsdp], table.alloc_event)
    rows = rows_of(by_fsdp & features.reaches_backward & features.is_traced)
    ends = [*_ends_of_losses(evidence)]
    parts: list[Change] = []
    for iteration in grouped(rows, features.next_backward):
        parts += _resharded(evidence, grouped(iteration, number), ends)
    if len(parts) < _LEAST_GATHERED:
        return
    change = joined(parts)
    live = change.rows[evidence.live[change.rows]]
    if evidence.is_large(live, LEAST_SHARE_OF_TRADE):
        yield evidence.found(change, live, None, number=len(distinct(number[live])))


def _resharded(
    evidence: Evidence, modules: list[Int64Column], ends: list[Int64Column]
) -> Iterator[Change]:
    """Yield the changes that free the weights of each module as the next but one is gathered.

    ``ends``: where the backward of losses is over, by its first event. The outermost module, which
    is the first, is used up to the end of forward.
    """
    table = evidence.table
    end = evidence.features.end
    backward = int(evidence.features.next_backward[modules[0][0]])
    outside, within = (over[backward] for over in ends)
    first = [backward, *(table.alloc_event[module[0]] for module in modules[2:]), backward]
    last = [outside, *(end[module].min() for module in modules[2:]), within]
    for rows, *events in zip(modules, first, last, strict=False):
        begin, stop = (np.full(len(rows), event, np.int64) for event in events)
        yield Change(rows, begin, stop, table.block_bytes[rows])


def _ends_of_losses(evidence: Evidence) -> Iterator[Int64Column]:
    """Return where the backward of losses outside of modules ends, and that of all, by its first event."""
    features = evidence.features
    is_loss = features.made_through(Role.LOSS) & features.has_next_backward
    for is_chosen in (is_loss & ~features.made_through(Role.MODULE_CALL), is_loss):
        ends = np.arange(evidence.demand.n_events + 1)
        np.maximum.at(ends, features.next_backward[is_chosen], features.end[is_chosen])
        yield ends
