"""Savings with a price: a smaller batch, logits in parts, attention without scores, leaner optimizers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.changes import GROWING, Change, joined, removed, scaled_batch, smaller
from snapconv.answers.advice.evidence import LEAST_SHARE_OF_TRADE, Detected, Evidence, is_operation
from snapconv.answers.advice.references import ends_without_graph
from snapconv.classification.categories import ABOUT, Category, Trait, categories_with
from snapconv.classification.categories import Evidence as Known
from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int64Column,
    distinct,
    grouped,
    has_code,
    is_among,
    last_before,
    rows_of,
)
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.units import format_bytes

_CHUNKS = 8
# Tensors of one operation, in use together: of a foreach step, one for each parameter.
_LEAST_OF_LIST = 4
FEWER = "Run a smaller batch, shorter sequences or smaller images."
# The last four only where the batch is known to have a sample left then.
_SHARES = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.125, 0.1, 0.05)
# Events of backward around that of a softmax.
_NEAR = 12
# Operations that copy queries, keys and values on their way into a product of matrices.
_COPIES = ("matmul", "bmm", "einsum", "mul", "div")
_FUSED = {
    "transformers": "Load the model with attn_implementation='sdpa'.",
    "diffusers": "Call module.set_processor(AttnProcessor2_0()) for each Attention module.",
    "timm": "Call timm.layers.set_fused_attn(True) before the model is made.",
}
# Of states in 8 bits, with a scale for every 256 values; smaller states stay as they are.
SAVED_BY_8_BITS, _LEAST_STATE_BYTES = 0.746, 16384
_NOT_TRIED = "Checkpointing was not tried: the file has no paths of modules."
# Of PCIe 4 with 16 lanes and pinned memory, in one direction.
_PCIE = 20 << 30


def batch_of(analysis: DeviceAnalysis) -> int:
    """Return the first dimension of all recorded inputs; 0 where it is unknown, or not of all."""
    recorded = analysis.recorded
    if recorded is None:
        return 0
    shapes = recorded.metadata.inputs.shapes
    first = {next(iter(shapes[place]), 0) for place in rows_of(recorded.inputs >= 0).tolist()}
    return first.pop() if len(first) == 1 else 0


def batch_shares(analysis: DeviceAnalysis) -> Sequence[float]:
    """Return the shares of the batch to try, the largest first; of a known one those with whole samples."""
    if (batch := batch_of(analysis)) <= 1:
        return _SHARES[:-4]
    return [n / batch for n in dict.fromkeys(int(batch * share) for share in _SHARES) if n]


def smaller_batch(evidence: Evidence) -> Iterator[Detected]:
    """Find the largest share of the batch that reaches the goal, else the smallest."""
    analysis = evidence.analysis
    demand = evidence.demand
    goal = evidence.goal_bytes
    if goal is None or demand.peak.n_bytes <= goal:
        return
    for share in batch_shares(analysis):
        change = scaled_batch(analysis, share)
        peak = demand.without([change]).n_bytes
        if peak <= goal:
            break
    saved = demand.peak.n_bytes - peak
    if saved <= 0 or not (analysis.ran_out or evidence.is_worth(saved)):
        return
    live = distinct(analysis.classification.category[change.rows[evidence.live[change.rows]]])
    nouns = ", ".join(ABOUT[one].noun for one in GROWING if one in live)
    batch = batch_of(analysis)
    how = FEWER
    if len(analysis.phases.events_of_training):
        how = "Accumulate gradients over more and smaller batches, or shorten the sequences."
    counts = f" (a batch of {round(batch * share)} instead of {batch})" if batch > 1 else ""
    values = {"share": f"{share:g}{counts}", "growing": nouns or "the failed request", "how": how}
    yield Detected(change, None, None, values)


def full_logits(evidence: Evidence) -> Iterator[Detected]:
    """Find logits, their copies in other precisions and their gradients, by the size of the loss's own."""
    analysis = evidence.analysis
    table = evidence.table
    sizes = table.requested_bytes
    by_loss = evidence.live & analysis.features.roles.of(Role.LOSS, table.stack_id)
    if not by_loss.any():
        return
    largest = int(sizes[by_loss].max())
    rows = rows_of(_of_family(sizes, largest) & evidence.is_computed)
    mine = rows[evidence.live[rows]]
    if evidence.is_large(mine, LEAST_SHARE_OF_TRADE):
        losses = rows_of(by_loss)
        change = _in_chunks(evidence, rows)
        where = evidence.analysis.main_line(losses)
        caller = evidence.caller_of(losses)
        yield evidence.found(change, mine, where, chunks=_CHUNKS, caller=caller)


def _in_chunks(evidence: Evidence, rows: Int64Column) -> Change:
    """Return the change to chunks; beside theirs backward then has the sum of the last layer's gradients."""
    change = smaller(evidence.analysis, rows, 1 - 1 / _CHUNKS)
    table = evidence.table
    gradients = rows_of(evidence.is_a(Category.GRADIENT))
    n_bytes = change.n_bytes.copy()
    for part in grouped(
        rows_of(evidence.features.by_engine[rows]), evidence.analysis.iteration[rows]
    ):
        events = table.alloc_event[rows[part]]
        most = part[
            np.argmax(
                [table.block_bytes[rows[table.live_at(event)[rows]]].sum() for event in events]
            )
        ]
        place = np.searchsorted(table.alloc_event[gradients], events.max())
        if place < len(gradients):
            n_bytes[most] -= min(int(table.block_bytes[gradients[place]]), int(n_bytes[most]))
    return replace(change, n_bytes=n_bytes)


def _of_family(sizes: Int64Column, size: int) -> BoolColumn:
    """Mark the same tensor in 32 and 16 bits."""
    return is_among(sizes, (size, size * 2, size // 2))


def attention_scores(evidence: Evidence) -> Iterator[Detected]:
    """Find scores of attention: what a softmax in a module makes, and the same size beside it."""
    features = evidence.features
    is_softmax = is_operation(evidence.analysis, "softmax")
    rows = rows_of(is_softmax & features.by_module & evidence.live)
    if not len(rows):
        return
    scores = _scores(evidence, rows, is_softmax)
    mine = scores[evidence.live[scores]]
    # Of a softmax alone nothing shows that its input was made for it.
    if features.in_forward[mine].sum() >= 2 and evidence.is_large(mine, LEAST_SHARE_OF_TRADE):
        change = _fused(evidence, scores, is_softmax)
        how = _FUSED.get(evidence.library_of(rows), "Use F.scaled_dot_product_attention.")
        caller = evidence.caller_of(rows)
        yield evidence.found(change, rows, None, number=len(mine), how=how, caller=caller)


def _scores(evidence: Evidence, rows: Int64Column, is_softmax: BoolColumn) -> Int64Column:
    """Return what has the size of a softmax: in its function, and near it in backward."""
    table = evidence.table
    sizes = evidence.table.requested_bytes
    size = int(sizes[max(grouped(rows, sizes), key=evidence.bytes_of)[0]])
    # The mask of a dropout has a byte for each score; queries, keys and values may have as many:
    # they stay.
    is_mask = (sizes == size // 4) & is_operation(evidence.analysis, "dropout")
    same = rows_of(evidence.is_computed & (_of_family(sizes, size) | is_mask))
    functions = {_function(evidence, stack) for stack in distinct(table.stack_id[rows]).tolist()}
    stacks = distinct(table.stack_id[same]).tolist()
    here = [stack for stack in stacks if stack >= 0 and _function(evidence, stack) in functions]
    by_engine = same[evidence.features.by_engine[same]]
    alloc = table.alloc_event[by_engine]
    is_near = _is_near(alloc, alloc[is_softmax[by_engine]])  # rows are in the order of their allocs
    return np.concatenate((same[is_among(table.stack_id[same], here)], by_engine[is_near]))


def merged_masks(evidence: Evidence) -> Iterator[Detected]:
    """Find the sums of two masks that torch's attention makes, of one number for each score.

    torch/nn/functional.py, multi_head_attention_forward, torch 2.13: of what the function itself
    makes for backward the sum comes first; the last has the size of the queries. The fused kernel
    keeps the sum.
    """
    table = evidence.table
    features = evidence.features
    frames = evidence.analysis.snapshot.stacks.frames
    frame = features.lines_of(table.stack_id)
    is_attention = np.array(
        [name == "multi_head_attention_forward" for name in (*frames.names, "")]
    )
    rows = rows_of(is_attention[frame] & features.in_forward & features.reaches_backward)
    if not len(rows):
        return
    line = frames.lines[frame[rows]]
    sizes = table.requested_bytes[rows]
    rows = rows[(line == line.min()) & ~is_among(sizes, sizes[line == line.max()])]
    mine = rows[evidence.live[rows]]
    if evidence.is_large(mine, LEAST_SHARE_OF_TRADE):
        change = removed(evidence.analysis, rows)
        yield evidence.found(change, mine, evidence.analysis.main_line(mine))


def adapter_inputs(evidence: Evidence) -> Iterator[Detected]:
    """Find copies of inputs in the precision of peft's adapters, which are kept for the gradients of these.

    peft/tuners/lora/layer.py, Linear.forward, peft 0.21: an adapter in 32 bits reads a copy of its
    input; one in 16 bits beside a model in 16 bits reads the input, which is kept in place of the
    copy.
    """
    rows = rows_of(
        evidence.features.made_through(Role.ADAPTED) & evidence.features.reaches_backward
    )
    mine = rows[evidence.live[rows]]
    if evidence.is_large(mine, LEAST_SHARE_OF_TRADE):
        yield evidence.found(
            smaller(evidence.analysis, rows, 1 / 2), mine, evidence.analysis.main_line(mine)
        )


def _fused(evidence: Evidence, scores: Int64Column, is_softmax: BoolColumn) -> Change:
    """Return the change to a fused kernel, which keeps queries, keys and values as the program made them.

    Without it a product of matrices keeps copies of them, and the originals are freed in forward.
    """
    analysis = evidence.analysis
    is_freed = evidence.features.is_freed_by_engine
    is_inner = evidence.is_computed & analysis.features.in_forward
    saved = scores[is_softmax[scores] & is_inner[scores] & is_freed[scores]]
    is_inner[scores] = False
    is_copy = is_inner & is_freed & is_operation(analysis, *_COPIES)
    n_bytes = analysis.allocations.block_bytes.copy()
    rows = [scores]
    for softmax, part in _layers(evidence, saved, is_inner):
        copies = part[is_copy[part]]
        rows.append(copies)
        kept = _originals(analysis, copies, part)
        for row in (*copies.tolist(), softmax):
            n_bytes[row], kept = max(n_bytes[row] - kept, 0), max(kept - n_bytes[row], 0)
    change = removed(analysis, np.concatenate(rows))
    return replace(change, n_bytes=n_bytes[change.rows])


def _layers(
    evidence: Evidence, softmaxes: Int64Column, is_inner: BoolColumn
) -> Iterator[tuple[int, Int64Column]]:
    """Yield softmaxes, each with what its module made nearest to it: equal layers follow without a break."""
    table = evidence.table
    calls = evidence.calls
    stacks = distinct(table.stack_id[softmaxes]).tolist()
    for module in {calls.module_call(stack) for stack in stacks} - {()}:
        within = calls.is_within(module)[table.stack_id]
        mine = softmaxes[within[softmaxes]]
        alloc = np.sort(table.alloc_event[mine].astype(np.int64))
        nearest = np.searchsorted((alloc[1:] + alloc[:-1]) // 2, table.alloc_event)
        for part in grouped(rows_of(is_inner & within), nearest):
            yield int(mine[nearest[part[0]]]), part


def _originals(analysis: DeviceAnalysis, copies: Int64Column, others: Int64Column) -> int:
    """Return the bytes of what copies were made of: in use then, and one to three times as large."""
    table = analysis.allocations
    room: dict[int, int] = {}
    for copy in copies.tolist():
        event = table.alloc_event[copy]
        size = int(table.requested_bytes[copy])
        live = others[(table.alloc_event[others] < event) & (analysis.features.end[others] > event)]
        live = live[~analysis.features.is_freed_by_engine[live]]
        n_bytes = table.requested_bytes[live]
        fits = live[(n_bytes % size == 0) & (n_bytes <= 3 * size)]
        # The largest first: queries, keys and values are often parts of one tensor.
        for row in fits[np.argsort(-table.requested_bytes[fits], kind="stable")].tolist():
            if room.setdefault(row, int(table.requested_bytes[row]) // size):
                room[row] -= 1
                break
    return int(table.block_bytes[list(room)].sum())


def _is_near(alloc: EventColumn, others: EventColumn) -> BoolColumn:
    """Mark what backward allocates a few events before or after others, such as those of a softmax."""
    first = np.searchsorted(others, alloc - _NEAR)
    last = np.searchsorted(others, alloc + _NEAR, side="right")
    return np.asarray(first < last)


def _function(evidence: Evidence, stack: int) -> tuple[str, str]:
    """Return the innermost function that is not torch's, if it calls no other module but a dropout."""
    frames = evidence.analysis.snapshot.stacks.frames
    calls = evidence.calls
    is_dropout = any("dropout" in frames.names[frame].lower() for frame in calls.path(stack))
    for frame in reversed(calls.path(stack)):
        if calls.is_module_call(frame) and not is_dropout:
            break
        if "/torch/" not in frames.filenames[frame]:
            return frames.filenames[frame], frames.names[frame]
    return "", str(stack)


def foreach_temporaries(evidence: Evidence) -> Iterator[Detected]:
    """Find lists of temporaries in an optimizer's step: a tensor for each parameter, in use together."""
    table = evidence.table
    in_step = _is_temporary_of_step(evidence.analysis)
    live = rows_of(in_step & evidence.live)
    lists = [rows for rows in grouped(live, table.stack_id) if len(rows) >= _LEAST_OF_LIST]
    if not lists:
        return
    mine = np.concatenate(lists)
    if evidence.is_large(mine):
        rows = rows_of(in_step & is_among(table.stack_id, table.stack_id[mine]))
        where = evidence.analysis.main_line(mine)
        yield evidence.found(removed(evidence.analysis, rows), mine, where)


def _is_temporary_of_step(analysis: DeviceAnalysis) -> BoolColumn:
    """Mark what an optimizer's step allocates and frees, or would have freed had memory not run out in it."""
    features = analysis.features
    is_freed = features.end <= features.alloc_run_last
    if analysis.ran_out:
        is_freed |= ~features.is_freed & is_operation(analysis, "_foreach_")
    return np.asarray(has_code(features.alloc_phase, Phase.OPTIMIZER) & is_freed)


def full_states(evidence: Evidence) -> Iterator[Detected]:
    """Find states of optimizers that fit into 8 bits; the step of one with such states is one kernel."""
    analysis = evidence.analysis
    table = evidence.table
    is_temporary = _is_temporary_of_step(analysis)
    is_state = evidence.is_a(Category.OPTIMIZER_STATE) & ~is_temporary
    if recorded := analysis.recorded:
        states = recorded.metadata.states
        n_values = [*map(math.prod, recorded.metadata.parameters.shapes), 0]
        is_short = states.n_bytes < 4 * np.array(n_values, np.int64)[states.parameter]
        is_state[recorded.states[is_short & (recorded.states >= 0)]] = False
    rows = rows_of(is_state & (table.block_bytes >= _LEAST_STATE_BYTES))
    mine = rows[evidence.live[rows]]
    if evidence.is_large(mine, LEAST_SHARE_OF_TRADE):
        change = smaller(analysis, rows, SAVED_BY_8_BITS)
        alone = joined((change, removed(analysis, rows_of(is_temporary))))
        wrong = (
            "the optimizer has no version with 8 bits"
            if recorded
            else "the states have 16 bits already"
        )
        yield replace(evidence.found(change, mine, None, wrong=wrong), alone=alone)


def offloaded(evidence: Evidence) -> Iterator[Detected]:
    """Find what autograd saved, and keep of it on the GPU what a few operations need at once."""
    analysis = evidence.analysis
    table = evidence.table
    features = evidence.features
    is_saved = is_among(analysis.classification.category, categories_with(Trait.SAVED))
    # What backward computes again is saved there, outside of the forward's hooks.
    is_saved &= (
        features.is_freed_by_engine & features.is_traced & ~features.made_through(Role.RECOMPUTE)
    )
    rows = rows_of(is_saved)
    # Nothing but the graph holds it when backward begins; it comes back for its own operation.
    first = np.minimum(
        ends_without_graph(evidence.calls, analysis, rows), features.next_backward[rows]
    )
    needed = last_before(np.sort(table.freed_event[rows]), table.freed_event[rows])
    change = Change(rows, first, np.maximum(needed, first), table.block_bytes[rows])
    held = evidence.demand.bytes_at(change, evidence.moment.event)
    if not evidence.is_worth(held, LEAST_SHARE_OF_TRADE):
        return
    mine = rows[evidence.live[rows]]
    calls = evidence.calls
    where = calls.line_of(calls.module_call(evidence.analysis.main_stack(mine), outermost=True))
    seconds = f"{2 * held / _PCIE:.2g} s at 20 GiB/s"
    texts = {
        "moved": format_bytes(held),
        "transfer": f"{format_bytes(2 * held)} over PCIe per iteration: {seconds}",
        "unknown": "" if Known.METADATA in analysis.modules.evidence else _NOT_TRIED,
        "at": f" ({where.place})" if where else "",
        "keyword": _keyword_hint(evidence, mine),
    }
    yield Detected(change, evidence.analysis.main_line(mine), where, texts)


def _keyword_hint(evidence: Evidence, rows: Int64Column) -> str:
    """Say that inputs of checkpoint() pass hooks by position alone, where some may be passed by keyword.

    torch/utils/checkpoint.py, _checkpoint_without_reentrant_generator: autograd saves ``args``, and
    a closure has ``kwargs``. A recorder hears of what autograd saves.
    """
    recorded = evidence.analysis.recorded
    saved = recorded.saved if recorded else rows[:0]
    rows = rows[evidence.features.made_through(Role.CHECKPOINTED)[rows] & ~is_among(rows, saved)]
    if not evidence.is_large(rows):
        return ""
    when = "" if len(saved) else "if they are passed by keyword, which the file does not show: "
    return (
        f"Before that, {when}pass the tensors to checkpoint() by position. Keywords do not "
        f"reach these hooks."
    )
