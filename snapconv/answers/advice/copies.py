"""Copies that need not be on the device: weights, gradients, shards, and batches too early.

A trace has no reads, so that a copy which nothing reads is known by its age, its stack and its
sizes alone. An average of the weights, a reference model and a target network are copies too, and
are read: they are made before the first step, or by copying modules, and are not found here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from snapconv.answers.advice.evidence import LEAST_SHARE_OF_TRADE, Detected, Evidence
from snapconv.classification.categories import Category, Trait
from snapconv.classification.facts import CAST_OF_WEIGHT
from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int64Column,
    distinct,
    grouped,
    has_code,
    is_among,
    last_before,
    next_of,
    number_groups,
    rows_of,
    sums_by,
)
from snapconv.hypotheses.changes import Change, freed_from, joined, removed
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_patterns import Role

# This part of the bytes of a copy must have a weight of its size.
_NEARLY = 0.9
# A model has so many weights, of so many sizes.
_LEAST_WEIGHTS, _LEAST_SIZES = 8, 3
# With Adam, a checkpoint has two states for every weight; those of the same sizes are no copies.
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
    """Find what torch.load left beside the model; a checkpoint's states come after its weights."""
    analysis = evidence.analysis
    features = evidence.features
    n_states = 0
    n_known_states = len(analysis.rows(Category.OPTIMIZER_STATE))
    are_states_known = analysis.recorded is not None or n_known_states > 0
    if not are_states_known and features.has_next_backward.any():
        n_states = _STATES_OF_ADAM
    is_loaded = features.made_through(Role.LOADED) & ~evidence.has(Trait.NO_SPARE_WEIGHT)
    for copies in _copies(evidence, rows_of(is_loaded), n_states=n_states):
        yield evidence.finding_there(removed(analysis, copies), copies)


def cloned_weights(evidence: Evidence) -> Iterator[Detected]:
    """Find clones of all weights that follow a validation."""
    features = evidence.features
    is_clone = features.outside & ~features.made_through(Role.PLACEMENT)
    is_clone &= ~evidence.has(Trait.NO_SPARE_WEIGHT)
    if not evidence.is_large(rows_of(is_clone & evidence.live)):
        return
    is_clone &= _follows_validation(evidence)
    for copies in _copies(evidence, rows_of(is_clone & evidence.live)):
        is_of_stack = is_among(evidence.stack_id, evidence.stack_id[copies])
        change = removed(evidence.analysis, rows_of(is_clone & is_of_stack))
        yield evidence.finding_there(change, copies)


def _copies(
    evidence: Evidence, rows: Int64Column, *, n_states: int = 0
) -> Iterator[Int64Column]:
    """Yield the rows of each line that have the size of a weight, if together they are a model.

    The last are left out, where a checkpoint has ``n_states`` for every weight after its weights.
    """
    sizes = evidence.sizes
    is_weight = evidence.is_a(Category.WEIGHT) & evidence.live
    is_weight &= ~evidence.features.made_through(Role.LOADED)
    for line_rows in filter(evidence.is_large, _groups_by_line(evidence, rows)):
        weights = np.setdiff1d(rows_of(is_weight), line_rows)
        spare = line_rows[is_among(sizes[line_rows], sizes[weights])]
        spare = spare[: max(len(spare) - n_states * len(weights), 0)]
        full_bytes = min(evidence.bytes_of(line_rows), evidence.bytes_of(weights))
        is_whole = evidence.bytes_of(spare) >= _NEARLY * full_bytes
        n_sizes = len(distinct(sizes[spare]))
        if is_whole and len(spare) >= _LEAST_WEIGHTS and n_sizes >= _LEAST_SIZES:
            yield spare


def _follows_validation(evidence: Evidence) -> BoolColumn:
    """Mark what came after a backward and then a forward without one.

    An average is made before the first.
    """
    features = evidence.features
    phase = features.phases.certain
    forward = last_before(rows_of(has_code(phase, Phase.FORWARD)), features.alloc)
    backward = last_before(rows_of(has_code(phase, Phase.BACKWARD)), features.alloc)
    is_before_forward = features.next_forward <= features.next_backward
    return (backward >= 0) & (backward < forward) & is_before_forward


def _groups_by_line(
    evidence: Evidence, rows: Int64Column, *, n_least: int = 1
) -> list[Int64Column]:
    """Group allocations by the line of the project, where no forward allocates between them."""
    alloc = evidence.alloc
    line = np.maximum(evidence.analysis.project_frame, -1).astype(np.int64)
    n_forwards = np.searchsorted(alloc[evidence.features.in_forward], alloc)
    line_and_forward = line * (len(alloc) + 1) + n_forwards
    return grouped(rows, line_and_forward, min_rows=n_least)


def early_batches(evidence: Evidence) -> Iterator[Detected]:
    """Find equal inputs that one line copied to the device together, for steps in a row."""
    bursts = _bursts_of_inputs(evidence)
    if not bursts:
        return
    unused = _unused_inputs(evidence, bursts)
    frame = evidence.analysis.project_frame
    for rows in grouped(unused[frame[unused] >= 0], frame):
        live = evidence.live_of(rows)
        if evidence.is_large(live):
            change = removed(evidence.analysis, rows)
            number = 1 + max(map(len, grouped(live, evidence.sizes)))
            yield evidence.finding_there(change, live, number=number)


def _unused_inputs(evidence: Evidence, bursts: Sequence[Int64Column]) -> Int64Column:
    """Return the equal inputs of a burst that wait for later steps, without the last."""
    steps = _steps(evidence, int(evidence.alloc[bursts[0][-1]]))
    first_step = np.searchsorted(steps, evidence.alloc)
    last_step = np.searchsorted(steps, evidence.end)
    unused = [bursts[0][:0]]
    for burst in bursts:
        for rows in grouped(burst, evidence.sizes, min_rows=_LEAST_BATCHES):
            latest = last_step[rows].max()
            # A few that stay together may all be read in each step.
            stay_together = last_step[rows].min() == latest
            are_few = len(rows) < _LEAST_BATCHES_KEPT
            n_steps = latest - first_step[rows[-1]]
            if not (stay_together and are_few) and n_steps >= _LEAST_STEPS:
                unused.append(np.delete(rows, evidence.end[rows].argmax()))
    return np.concatenate(unused)


def _bursts_of_inputs(evidence: Evidence) -> list[Int64Column]:
    """Return the inputs that one line copied to the device together, where they are several."""
    is_batch = evidence.is_a(Category.INPUT)
    # A recorder names those alone that a model was called with.
    is_like_batch = is_among(evidence.stack_id, evidence.stack_id[is_batch])
    is_batch |= evidence.is_a(Category.UNKNOWN) & is_like_batch
    inputs = rows_of(is_batch & evidence.features.outside)
    if not _groups_by_line(evidence, inputs, n_least=_LEAST_BATCHES):
        return []
    # What a model returns may be put together outside it: that is no copy to the GPU.
    analysis = evidence.analysis
    is_copy = np.array([name == "to" for name in (*analysis.operations, "")])
    inputs = inputs[is_copy[analysis.operation_id[inputs]]]
    return _groups_by_line(evidence, inputs, n_least=_LEAST_BATCHES)


def _steps(evidence: Evidence, event: int) -> Int64Column:
    """Return the begins of backwards; without any, of the calls of the model after an event.

    A call is known by its first allocation, which has the same stack in each.
    """
    begins = evidence.features.phases.begins_of(Phase.BACKWARD)
    if len(begins):
        return begins
    is_later = evidence.features.in_forward & (evidence.alloc > event)
    stack = evidence.stack_id[is_later]
    return np.asarray(evidence.alloc[is_later][stack == stack[:1]], np.int64)


def autocast_cache(evidence: Evidence, *, is_read_again: bool) -> Iterator[Detected]:
    """Find the copies of weights that autocast keeps up to its exit although no graph needs them.

    Without its cache each is free once its operation is over, as the next one allocates. What is
    there when a backward begins, a graph keeps too: then the cache costs nothing, and saves copies
    of shared weights. ``is_read_again``: later operations of the block read them, and without the
    cache would cast anew.
    """
    analysis = evidence.analysis
    features = evidence.features
    calls = evidence.calls
    is_cached = features.freed_through(Role.UNCACHED) & features.is_traced
    if not (evidence.live & evidence.is_a(Category.ACTIVATION)).any():
        is_cast = analysis.classification.has_reason(CAST_OF_WEIGHT)
        is_cached |= is_cast & ~features.is_freed
    is_cached &= ~features.reaches_backward
    rows = rows_of(is_cached)
    live = evidence.live_of(rows)
    if not evidence.is_large(live) or _are_read_again(evidence, live) != is_read_again:
        return
    stack = int(evidence.table.free_stack_id[live[0]])
    if stack >= 0:
        path = calls.path(stack)
    else:
        path = calls.model_call(analysis.main_stack(live))
    change = freed_from(analysis, rows, _next_operations(evidence, is_cached)[rows])
    yield evidence.finding(change, live, calls.line_of(path), could_be=())


def _next_operations(evidence: Evidence, is_cast: BoolColumn) -> EventColumn:
    """Return the event at which the operation after that of each cast weight allocates.

    Another line is another operation. Layers share a line: then the copies of the next one begin
    anew.
    """
    features = evidence.features
    traced = rows_of(features.is_traced)
    is_next = np.diff(features.lines_of(evidence.stack_id)[traced]) != 0
    is_next |= np.diff(is_cast[traced].astype(np.int8)) > 0
    starts = features.alloc[traced[1:][is_next]]
    return next_of(starts, features.alloc, features.n_events)


def _are_read_again(evidence: Evidence, copies: Int64Column) -> bool:
    """Return whether the last run of a line in a block makes no copy, as it finds all in the cache.

    Equal layers share a line, and each makes copies of its own; a run of a line allocates without a
    break.
    """
    stacks = distinct(evidence.stack_id[copies])
    for path in set(map(evidence.calls.path, stacks[stacks >= 0].tolist())):
        rows = rows_of(evidence.calls.made_within(path))
        run = np.cumsum(np.diff(rows, prepend=-2) > 1)  # a number for each unbroken run
        line_copies = np.intersect1d(copies, rows)
        ends = evidence.end[line_copies]
        last_runs = run[
            np.searchsorted(evidence.alloc[rows], ends) - 1
        ]  # before their ends
        copying_runs = run[np.searchsorted(rows, line_copies)]
        if not np.isin(last_runs, copying_runs).all():
            return True
    return False


def copied_gradients(evidence: Evidence) -> Iterator[Detected]:
    """Find gradients that stay beside the buckets in which DistributedDataParallel sums them up."""
    features = evidence.features
    is_bucket = _is_bucket(evidence)
    is_gradient = evidence.is_a(Category.GRADIENT) & ~is_bucket
    outlives = ~features.is_freed | (features.end > features.alloc_run_end)
    rows = rows_of(is_gradient & features.is_traced & outlives)
    live = evidence.live_of(rows)
    n_in_buckets = evidence.bytes_of(is_bucket & evidence.live)
    if n_in_buckets >= evidence.bytes_of(live) * _NEARLY and evidence.is_large(live):
        change = freed_from(evidence.analysis, rows, _summed_up(evidence, rows))
        yield evidence.finding(change, live, None)


def _is_bucket(evidence: Evidence) -> BoolColumn:
    """Mark the allocations of the lines of DistributedDataParallel that made live buckets."""
    names = evidence.analysis.snapshot.stacks.frames.names
    innermost = evidence.features.lines_of(evidence.stack_id)
    bucket_frames = []
    for frame in distinct(innermost[evidence.live & (innermost >= 0)]).tolist():
        is_of_file = evidence.calls.file(frame).endswith(_DDP_FILE)
        if is_of_file and names[frame] in _OF_BUCKETS:
            bucket_frames.append(frame)
    return is_among(innermost, bucket_frames)


def _summed_up(evidence: Evidence, rows: Int64Column) -> Int64Column:
    """Return the events at which gradients go to their buckets: before the next one is made.

    A weight that is used twice waits for its other gradient, a temporary of backward of the same
    size.
    """
    freed = evidence.table.freed_event
    run = evidence.features.alloc_run_end
    is_gradient = evidence.is_a(Category.GRADIENT)
    is_temporary = evidence.features.by_engine & ~is_gradient & (freed <= run)
    _, kind = number_groups(evidence.sizes, run)
    last_free = np.zeros(len(kind), np.int64)
    # Where several have the key, the one written last stays.
    last_free[kind[is_temporary]] = freed[is_temporary]
    following = np.append(evidence.alloc[rows][1:], evidence.features.n_events)
    return np.asarray(np.maximum(following, last_free[kind[rows]]))


def views_of_gradients(evidence: Evidence) -> Iterator[Detected]:
    """Find recorded gradients that are small views of what backward made for a whole concatenation.

    Autograd takes over an incoming gradient that nothing else has, with the memory that it is a
    part of (torch/csrc/autograd/functions/accumulate_grad.h). Several of one memory count together.
    Its other part is read once, to make the next gradient.
    """
    features = evidence.features
    recorded = features.recorded
    if recorded is None:
        return
    gradients = recorded.metadata.gradients
    n_used = sums_by(recorded.gradients + 1, gradients.n_bytes, len(features.alloc) + 1)[1:]
    n_spare = features.sizes - n_used
    rows = rows_of((n_used > 0) & (n_spare > n_used))
    live = evidence.live_of(rows)
    if evidence.is_large(live):
        engine_allocs = features.alloc[features.by_engine & (n_used == 0)]
        first = next_of(engine_allocs, features.alloc[rows], features.n_events) + 1
        change = freed_from(evidence.analysis, rows, first)
        change = replace(change, n_bytes=n_spare[rows])
        parameter = gradients.parameter[recorded.gradients == live[0]][0]
        name = recorded.metadata.parameters.names[parameter]
        yield evidence.finding(change, live, None, name=name)


def gathered_shards(evidence: Evidence) -> Iterator[Detected]:
    """Find the weights of all modules that FSDP gathered for forward and keeps until backward."""
    features = evidence.features
    is_gathered = features.made_through(Role.GATHERED)
    # The weights of one module are gathered with no allocation of forward between them.
    forward_allocs = features.alloc[features.in_forward & ~is_gathered]
    module = np.searchsorted(forward_allocs, features.alloc)
    rows = rows_of(is_gathered & features.reaches_backward & features.is_traced)
    ends = list(_ends_of_losses(evidence))
    parts: list[Change] = []
    for iteration in grouped(rows, features.next_backward):
        parts += _resharded(evidence, grouped(iteration, module), ends)
    if len(parts) < _LEAST_GATHERED:
        return
    change = joined(parts)
    live = evidence.live_of(change.rows)
    if evidence.is_large(live, LEAST_SHARE_OF_TRADE):
        yield evidence.finding(change, live, None, number=len(distinct(module[live])))


def _resharded(
    evidence: Evidence, modules: list[Int64Column], ends: list[Int64Column]
) -> Iterator[Change]:
    """Yield the changes that free the weights of each module as the next but one is gathered.

    ``ends``: where the backward of losses is over, by its first event. The outermost module, which
    is the first, is used up to the end of forward.
    """
    backward = int(evidence.features.next_backward[modules[0][0]])
    outer_end, inner_end = (loss_end[backward] for loss_end in ends)
    # The second is freed for the third, and so on; the last has no other after it.
    next_but_one = modules[2:]
    frees = [backward, *(evidence.alloc[module[0]] for module in next_but_one), backward]
    gathers = [
        outer_end,
        *(evidence.end[module].min() for module in next_but_one),
        inner_end,
    ]
    for rows, event, again in zip(modules, frees, gathers, strict=False):
        yield freed_from(evidence.analysis, rows, event, again)


def _ends_of_losses(evidence: Evidence) -> Iterator[Int64Column]:
    """Yield where the backward of losses outside of modules ends, then that of all losses.

    Both are by the first event of the backward.
    """
    features = evidence.features
    is_loss = features.made_through(Role.LOSS) & features.has_next_backward
    for is_chosen in (is_loss & ~features.made_through(Role.MODULE_CALL), is_loss):
        ends = np.arange(features.n_events + 1)
        np.maximum.at(ends, features.next_backward[is_chosen], features.end[is_chosen])
        yield ends
