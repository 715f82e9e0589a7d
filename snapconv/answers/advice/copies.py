"""Copies that need not be on the device: of weights, gradients and shards, and of batches before their step.

A trace has no reads, so that a copy which nothing reads is known by its age, its stack and its sizes alone.
An average of the weights, a reference model and a target network are copies too, and are read: they are made
before the first step, or by copying modules, and are not found here.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from snapconv.answers.advice.changes import Change, freed_from, removed
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
    rows_of,
    run_starts,
)
from snapconv.phases.trace_phases import Phase
from snapconv.stacks.project_lines import SourceLine
from snapconv.torch_knowledge.frame_patterns import Role

# Of the bytes of a copy, those with a weight of their size.
_NEARLY = 0.9
# A model has so many weights, of so many sizes.
_LEAST_WEIGHTS, _LEAST_SIZES = 8, 3
# A checkpoint has two states for every weight, with Adam: which stay in use where no step makes any.
_STATES_OF_ADAM = 2
# Equal batches of one line. Where all stay, each step might read all, as a few tables.
_LEAST_BATCHES, _LEAST_BATCHES_KEPT = 4, 8
# A list of pictures, or several views of them, lives for a step or two.
_LEAST_STEPS = 3
# The outermost module stays gathered unless the program says otherwise.
_LEAST_GATHERED = 3
_OF_BUCKETS = ("_ddp_init_helper", "_pre_forward")


def copied_weights(evidence: Evidence) -> Iterator[Detected]:
    """Find what torch.load left beside the model, and clones of all weights that follow a validation."""
    analysis = evidence.analysis
    table, features = analysis.allocations, analysis.features
    category, sizes = analysis.classification.category, table.requested_bytes
    is_loaded = features.made_through(Role.LOADED)
    is_other = is_among(category, categories_with(Trait.NO_SPARE_WEIGHT))
    is_weight = has_code(category, Category.WEIGHT) & ~is_loaded & evidence.live
    is_known = analysis.recorded is not None or has_code(category, Category.OPTIMIZER_STATE).any()
    n_in_use = _STATES_OF_ADAM if features.has_next_backward.any() and not is_known else 0
    is_clone = features.outside & ~features.made_through(Role.PLACEMENT)
    if evidence.is_large(rows_of(is_clone & ~is_other & evidence.live)):
        is_clone[is_clone] = _follow_validation(evidence, rows_of(is_clone))
    for is_copy, n_states, values in (
        (is_loaded & ~is_other, n_in_use, _LOADED),
        (is_clone & ~is_other, 0, _CLONED),
    ):
        for rows in _of_line(evidence, np.flatnonzero(is_copy & evidence.live)):
            if not evidence.is_large(rows):
                continue
            originals = np.setdiff1d(np.flatnonzero(is_weight), rows)
            spare = rows[is_among(sizes[rows], sizes[originals])]
            spare = spare[: max(len(spare) - n_states * len(originals), 0)]  # the states come last
            whole = min(map(evidence.bytes_of, (rows, originals)))
            is_model = len(spare) >= _LEAST_WEIGHTS and len(distinct(sizes[spare])) >= _LEAST_SIZES
            if is_model and evidence.bytes_of(spare) >= _NEARLY * whole:
                earlier = np.flatnonzero(is_copy & is_among(table.stack_id, table.stack_id[spare]))
                change = removed(analysis, spare if values is _LOADED else earlier)
                yield evidence.found(change, spare, evidence.analysis.main_line(spare), **values)


_LOADED: dict[str, Any] = {
    "made": "loaded from a file",
    "how": 'Pass map_location="cpu" to torch.load; load_state_dict copies to the GPU.',
}
_CLONED: dict[str, Any] = {
    "made": "cloned after a validation",
    "how": "Keep it on the CPU: {k: v.cpu() for k, v in model.state_dict().items()}.",
}


def _follow_validation(evidence: Evidence, rows: Int64Column) -> BoolColumn:
    """Mark what came after a backward and then a forward without one: an average is made before the first."""
    features, phase = evidence.analysis.features, evidence.analysis.phases.certain
    forward, backward = (
        last_before(np.flatnonzero(has_code(phase, one)), features.alloc[rows])
        for one in (Phase.FORWARD, Phase.BACKWARD)
    )
    is_first = features.next_forward[rows] <= features.next_backward[rows]
    return np.asarray((backward >= 0) & (backward < forward) & is_first)


def _of_line(evidence: Evidence, rows: Int64Column) -> list[Int64Column]:
    """Group allocations by the line of the project, and by the forwards before them: made in one go."""
    table, line = evidence.analysis.allocations, np.maximum(evidence.analysis.facts.project_frame, -1)
    made = np.sort(table.alloc_event[evidence.analysis.features.in_forward])
    key = np.zeros(len(table), np.int64)
    key[rows] = line[table.stack_id[rows]].astype(np.int64) * (len(made) + 1)
    key[rows] += np.searchsorted(made, table.alloc_event[rows])
    return grouped(rows, key)


def early_batches(evidence: Evidence) -> Iterator[Detected]:
    """Find equal inputs that one line copied to the device together, for steps one after another."""
    analysis = evidence.analysis
    table, features = analysis.allocations, analysis.features
    # A recorder names those alone that a model was called with.
    category = analysis.classification.category
    is_batch = has_code(category, Category.INPUT)
    is_batch |= has_code(category, Category.UNKNOWN) & is_among(table.stack_id, table.stack_id[is_batch])
    found = _of_line(evidence, rows_of(is_batch & features.outside))
    bursts = [rows for rows in found if len(rows) >= _LEAST_BATCHES]
    if bursts:
        # What a model returns may be put together outside it: that is no copy to the GPU.
        is_copy = np.array([name == "to" for name in (*analysis.operations, "")])[analysis.operation_id]
        copies = (rows[is_copy[rows]] for rows in bursts)
        bursts = [rows for rows in copies if len(rows) >= _LEAST_BATCHES]
    if not bursts:
        return
    steps = _steps(evidence, int(table.alloc_event[bursts[0][-1]]))
    begun, ended = np.searchsorted(steps, table.alloc_event), np.searchsorted(steps, features.end)
    of_line = dict[SourceLine | None, list[Int64Column]]()
    for rows in bursts:
        for same in grouped(rows, table.requested_bytes):
            is_one_by_one = ended[same].min() < ended[same].max()
            least = _LEAST_BATCHES if is_one_by_one else _LEAST_BATCHES_KEPT
            if len(same) >= least and ended[same].max() - begun[same[-1]] >= _LEAST_STEPS:
                spare = np.delete(same, np.argmax(features.end[same]))
                of_line.setdefault(evidence.analysis.main_line(spare), []).append(spare)
    for line, parts in of_line.items():
        change = removed(analysis, np.concatenate(parts))
        mine = change.rows[evidence.live[change.rows]]
        if line and evidence.is_large(mine):
            number = 1 + len(max(grouped(mine, table.requested_bytes), key=len))
            yield evidence.found(change, mine, line, number=number)


def _steps(evidence: Evidence, event: int) -> Int64Column:
    """Return the backwards after an event; without any the calls of the model, by what they make first."""
    phase, table = evidence.analysis.phases.phase, evidence.analysis.allocations
    begins = run_starts(phase)
    begins = begins[has_code(phase[begins], Phase.BACKWARD)]
    if not len(begins):
        made = np.flatnonzero(evidence.analysis.features.in_forward & (table.alloc_event > event))
        begins = table.alloc_event[made[table.stack_id[made] == table.stack_id[made[:1]]]]
    return np.sort(begins)


def autocast_cache(evidence: Evidence, *, is_read_again: bool) -> Iterator[Detected]:
    """Find the copies of weights that autocast keeps up to its exit although no graph needs them.

    Without its cache each is free once its operation is over, as the next one allocates. What is there when a
    backward begins, a graph keeps too: then the cache costs nothing, and saves copies of shared weights.
    ``is_read_again``: later operations of the block read them, and without the cache would cast anew.
    """
    analysis, calls, features = evidence.analysis, evidence.calls, evidence.analysis.features
    table, classified = analysis.allocations, analysis.classification
    is_cached = features.freed_through(Role.UNCACHED) & features.is_traced
    if not (evidence.live & has_code(classified.category, Category.ACTIVATION)).any():
        is_cached |= classified.has_reason(CAST_OF_WEIGHT) & ~features.is_freed
    rows = rows_of(is_cached & ~features.reaches_backward)
    mine = rows[evidence.live[rows]]
    if not evidence.is_large(mine) or _are_read_again(evidence, mine) != is_read_again:
        return
    traced, is_copy = rows_of(features.is_traced), features.mask(rows)
    # Layers share a line: then the copies of the next one begin anew.
    line, after_other = features.lines_of(table.stack_id)[traced], ~is_copy[traced][:-1]
    is_other = (line[1:] != line[:-1]) | (is_copy[traced][1:] & after_other)
    others = np.append(table.alloc_event[traced[1:][is_other]], evidence.demand.n_events)
    ends = others[np.searchsorted(others, table.alloc_event[rows], side="right")]
    stack = int(table.free_stack_id[mine[0]])
    path = calls.path(stack) if stack >= 0 else calls.module_call(evidence.main_stack(mine), outermost=True)
    change = freed_from(analysis, rows, ends)
    yield evidence.found(change, mine, calls.line_of(path), could_be=(), number=len(mine))


def _are_read_again(evidence: Evidence, copies: Int64Column) -> bool:
    """Return whether the last run of a line in a block makes no copy, as it finds all in the cache.

    Equal layers share a line, and each makes copies of its own; a run of a line allocates without a break.
    """
    table, calls = evidence.analysis.allocations, evidence.calls
    for path in {calls.path(stack) for stack in table.stack_id[copies].tolist() if stack >= 0}:
        made = rows_of(calls.is_within(path)[table.stack_id])
        run = np.cumsum(np.diff(made, prepend=-2) > 1)
        mine = np.intersect1d(copies, made)
        last = np.searchsorted(table.alloc_event[made], evidence.analysis.features.end[mine]) - 1
        if not np.isin(run[last], run[np.searchsorted(made, mine)]).all():
            return True
    return False


def copied_gradients(evidence: Evidence) -> Iterator[Detected]:
    """Find gradients that stay beside the buckets in which DistributedDataParallel sums them up."""
    analysis, table = evidence.analysis, evidence.analysis.allocations
    frames, innermost = analysis.snapshot.stacks.frames, analysis.features.lines_of(table.stack_id)
    of_ddp = [
        frame
        for frame in distinct(innermost[evidence.live]).tolist()
        if frame >= 0
        and frames.names[frame] in _OF_BUCKETS
        and frames.filenames[frame].replace("\\", "/").endswith("torch/nn/parallel/distributed.py")
    ]
    is_bucket = is_among(innermost, of_ddp)
    is_gradient = has_code(analysis.classification.category, Category.GRADIENT) & ~is_bucket
    outlives = (table.freed_event < 0) | (table.freed_event > analysis.features.alloc_run_end)
    rows = np.flatnonzero(is_gradient & analysis.features.is_traced & outlives)
    mine = rows[evidence.live[rows]]
    buckets = evidence.bytes_of(np.flatnonzero(is_bucket & evidence.live))
    if len(mine) and buckets >= evidence.bytes_of(mine) * _NEARLY and evidence.is_large(mine):
        yield evidence.found(
            freed_from(analysis, rows, _summed_up(evidence, rows)), mine, None, number=len(mine)
        )


def _summed_up(evidence: Evidence, rows: Int64Column) -> Int64Column:
    """Return the events at which gradients go to their buckets: before the next one is made.

    A weight that is used twice waits for its other gradient, a temporary of backward of the same size.
    """
    table, run = evidence.analysis.allocations, evidence.analysis.features.alloc_run_end
    is_gradient = has_code(evidence.analysis.classification.category, Category.GRADIENT)
    is_temporary = evidence.analysis.features.by_engine & ~is_gradient & (table.freed_event <= run)

    def kinds(of: Int64Column) -> Iterator[tuple[int, int]]:
        return zip(table.requested_bytes[of].tolist(), run[of].tolist(), strict=True)

    others = np.flatnonzero(is_temporary)
    last = dict(zip(kinds(others), table.freed_event[others].tolist(), strict=True))
    waits = np.array([last.get(kind, 0) for kind in kinds(rows)], np.int64)
    again: Int64Column = np.append(table.alloc_event[rows][1:], evidence.demand.n_events)
    return np.where(waits > again, waits, again)


def views_of_gradients(evidence: Evidence) -> Iterator[Detected]:
    """Find recorded gradients that are small views of what backward made for a whole concatenation.

    Autograd takes over an incoming gradient that nothing else has, with the memory that it is a part of
    (torch/csrc/autograd/functions/accumulate_grad.h). Several of one memory count together. Its other part
    is read once, to make the next gradient.
    """
    analysis, table, recorded = evidence.analysis, evidence.analysis.allocations, evidence.analysis.recorded
    if recorded is None:
        return
    gradients = recorded.metadata.gradients
    own = np.bincount(recorded.gradients + 1, gradients.n_bytes, len(table) + 1)[1:].astype(np.int64)
    others = table.requested_bytes - own
    rows = rows_of((own > 0) & (others > own))
    mine = rows[evidence.live[rows]]
    if evidence.is_large(mine):
        made = table.alloc_event[analysis.features.by_engine & (own == 0)]
        after = np.searchsorted(made, table.alloc_event[rows], side="right")
        first = np.append(made, evidence.demand.n_events)[after] + 1
        change = replace(freed_from(analysis, rows, first), n_bytes=others[rows])
        parameter = gradients.parameter[recorded.gradients == mine[0]][0]
        name = recorded.metadata.parameters.names[parameter]
        yield evidence.found(change, mine, None, number=len(mine), name=name)


def gathered_shards(evidence: Evidence) -> Iterator[Detected]:
    """Find the weights of all modules that FSDP gathered for forward and keeps until backward."""
    table, features = evidence.analysis.allocations, evidence.analysis.features
    is_gathered = features.made_through(Role.GATHERED) & features.reaches_backward & features.is_traced
    made = np.sort(table.alloc_event[features.in_forward & ~features.made_through(Role.GATHERED)])
    number = np.searchsorted(made, table.alloc_event)
    parts, (outside, within) = [], _ends_of_losses(evidence)
    for iteration in grouped(np.flatnonzero(is_gathered), features.next_backward):
        modules = grouped(iteration, number)
        backward = int(features.next_backward[iteration[0]])
        # The outermost module, which is the first, is used up to the end of forward.
        first = [backward, *(int(table.alloc_event[module[0]]) for module in modules[2:]), backward]
        last = [
            outside[backward],
            *(int(features.end[module].min()) for module in modules[2:]),
            within[backward],
        ]
        for module, *range_of in zip(modules, first, last, strict=False):
            parts.append(
                (module, *(np.full(len(module), event) for event in range_of), table.block_bytes[module])
            )
    if len(parts) < _LEAST_GATHERED:
        return
    rows, starts, stops, n_bytes = (np.concatenate(column) for column in zip(*parts, strict=True))
    change = Change(rows, starts, stops, n_bytes)
    mine = change.rows[evidence.live[change.rows]]
    if evidence.is_large(mine, LEAST_SHARE_OF_TRADE):
        yield evidence.found(change, mine, None, number=len(distinct(number[mine])))


def _ends_of_losses(evidence: Evidence) -> Iterator[Int64Column]:
    """Return where the backward of losses outside of modules ends, and that of all, by its first event."""
    features = evidence.analysis.features
    is_loss = features.made_through(Role.LOSS) & features.has_next_backward
    for found in (is_loss & ~features.made_through(Role.MODULE_CALL), is_loss):
        ends = np.arange(evidence.demand.n_events + 1)
        np.maximum.at(ends, features.next_backward[found], features.end[found])
        yield ends
