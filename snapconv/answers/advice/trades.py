"""Savings with a price: a smaller batch, chunks of logits, fused attention, leaner optimizers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.attention_masks import TORCHS_ATTENTION, is_made_by_attention
from snapconv.answers.advice.evidence import LEAST_SHARE_OF_TRADE, Detected, Evidence
from snapconv.classification.categories import ABOUT, Category
from snapconv.classification.categories import Evidence as NameEvidence
from snapconv.classification.features import at
from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int64Column,
    distinct,
    grouped,
    has_code,
    is_among,
    last_before,
    plain_rows,
    rows_of,
)
from snapconv.hypotheses.batch_growth import GROWING, batch_of
from snapconv.hypotheses.changes import (
    Change,
    freed_from,
    joined,
    removed,
    scaled_batch,
    smaller,
)
from snapconv.phases.trace_phases import Phase
from snapconv.stacks.paths import is_of_operations
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.units import format_bytes, optional

_CHUNKS = 8
_OPTIONS = "torch.nn.LinearCrossEntropyOptions()"
_WHERE_IT_PAYS = "It pays where the last layer has fewer inputs than classes and rows."
# Backward of a linear layer makes gradients of its input and its weight.
_LEAST_OF_LINEAR = 2
# Tensors of one operation, in use together: of a foreach step, one for each parameter.
_LEAST_OF_LIST = 4
FEWER = "Run a smaller batch, shorter sequences or smaller images."
_SHARES = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25)
# These only where the batch is known to have a sample left then.
_SMALL_SHARES = (0.2, 0.125, 0.1, 0.05)
# Events of backward around that of a softmax.
_NEAR = 12
# Operations that copy queries, keys and values on their way into a product of matrices.
_COPIES = ("matmul", "bmm", "einsum", "mul", "div")
# Operations whose result is true or false for each score, such as `mask == 0`.
_MASKS = ("eq", "ne", "ge", "gt", "le", "lt", "logical_not", "bitwise_not", "invert")
# Words in the names of functions and files that compute x * sigmoid(x).
_SILU = ("silu", "swish", "swiglu")
_SDPA = "Use F.scaled_dot_product_attention; pass is_causal=True instead of a causal mask."
_DROPOUT = "Its dropout_p replaces the dropout of the scores, and keeps no mask."
_MASK = "a mask that must stay makes the kernel store the scores"
_READ_OR_MASK = f"the program reads the attention weights, or {_MASK}"
_NO_WEIGHTS = "Pass need_weights=False to torch.nn.MultiheadAttention."
_FUSED = {
    "transformers": "Load the model with attn_implementation='sdpa'.",
    "diffusers": "Call module.set_processor(AttnProcessor2_0()) for each Attention module.",
    "timm": "Call timm.layers.set_fused_attn(True) before the model is made.",
}
# States in 8 bits save this part, with a scale for every 256 values; smaller states stay.
SAVED_BY_8_BITS, _LEAST_STATE_BYTES = 0.746, 16384
_NOT_TRIED = "Checkpointing was not tried: the file has no paths of modules."
# Bytes per second of PCIe 4 with 16 lanes and pinned memory, in one direction.
_PCIE = 20 << 30


def batch_shares(analysis: DeviceAnalysis) -> Sequence[float]:
    """Return the shares of the batch to try, the largest first.

    Of a known batch these are the ones with whole samples.
    """
    batch = batch_of(analysis)
    if batch <= 1:
        return _SHARES
    sizes = dict.fromkeys(int(batch * share) for share in (*_SHARES, *_SMALL_SHARES))
    return [size / batch for size in sizes if size]


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
    categories = evidence.category[evidence.live_of(change.rows)]
    nouns = ", ".join(
        ABOUT[category].noun for category in GROWING if category in categories
    )
    batch = batch_of(analysis)
    advice = FEWER
    if len(analysis.phases.events_of_training):
        advice = (
            "Accumulate gradients over more and smaller batches, or shorten the sequences."
        )
    counts = f" (a batch of {round(batch * share)} instead of {batch})" if batch > 1 else ""
    values: dict[str, object] = {
        "share": f"{share:g}{counts}",
        "growing": nouns or "the failed request",
        "how": advice,
    }
    yield Detected(change, None, None, values)


def full_logits(evidence: Evidence) -> Iterator[Detected]:
    """Find logits, their copies in other precisions and their gradients, by their size."""
    losses = rows_of(evidence.live & evidence.features.made_through(Role.LOSS))
    if not len(losses) or _is_in_chunks(evidence, losses):
        return
    largest = int(evidence.sizes[losses].max())
    rows = rows_of(
        _has_size_in_any_precision(evidence.sizes, largest) & evidence.is_computed
    )
    live_rows = evidence.live_of(rows)
    if evidence.is_large(live_rows, LEAST_SHARE_OF_TRADE):
        yield evidence.finding(
            _chunked(evidence, rows),
            live_rows,
            evidence.analysis.main_line(losses),
            caller=evidence.caller_of(losses),
            **_loss_in_chunks(evidence, losses, rows),
        )


def _is_in_chunks(evidence: Evidence, losses: Int64Column) -> bool:
    """Return whether torch's loss of a last layer has options: its operator makes the chunks."""
    frames = evidence.analysis.snapshot.stacks.frames
    names = [
        frames.names[frame]
        for stack in distinct(evidence.stack_id[losses]).tolist()
        for frame in evidence.calls.path(stack)
    ]
    return any(name.startswith("_linear_cross_entropy_") for name in names)


def _loss_in_chunks(
    evidence: Evidence, losses: Int64Column, rows: Int64Column
) -> dict[str, Any]:
    """Return how a loss is made in chunks, and what it costs.

    torch/nn/functional.py, linear_cross_entropy, torch 2.13: without options it makes the logits
    like the two calls that it stands for; with options, forward makes the gradients too
    (measured: scripts/measured/saved_tensors.tsv).
    """
    pays = _fused_loss_pays(evidence, rows)
    is_fused = evidence.analysis.is_of_operation("linear_cross_entropy")[losses].any()
    if is_fused and pays is not False:
        return {
            "how": f"Pass options={_OPTIONS} to linear_cross_entropy.",
            "or_how": "" if pays else _WHERE_IT_PAYS,
            "costs": "no second backward through the loss, and no torch.compile for it",
            "chunk": "an eighth: torch often takes smaller chunks, and saves more",
        }
    remedy = (
        f"Compute the last layer and the loss in {_CHUNKS} chunks, each under "
        "torch.utils.checkpoint"
    )
    other_remedy = (
        "or use a fused loss: Liger's, or since torch 2.13 F.linear_cross_entropy with "
        f"options={_OPTIONS}."
    )
    if pays is None:
        other_remedy = f"{other_remedy} {_WHERE_IT_PAYS}"
    return {
        "how": f"{remedy}." if pays is False else f"{remedy};",
        "or_how": "" if pays is False else other_remedy,
        "costs": "the last layer runs twice",
        "chunk": "the size of a chunk",
    }


def _fused_loss_pays(evidence: Evidence, rows: Int64Column) -> bool | None:
    """Return whether a loss saves memory that makes the last layer's gradients in forward.

    torch/nn/modules/linear_cross_entropy_options.py, torch 2.13: it needs at least as many rows as
    inputs, and more classes than inputs. So the logits are no smaller than the weight's gradient,
    and larger than that of the inputs, which backward makes next. None: no backward is there.
    """
    features = evidence.features
    sizes = evidence.sizes
    is_gradient = evidence.is_a(Category.GRADIENT)
    is_of_logits = features.by_engine[rows] & ~is_gradient[rows]
    is_freed = evidence.end[rows] < evidence.analysis.n_events
    for row in rows[is_of_logits & is_freed][::-1].tolist():
        last = int(np.searchsorted(evidence.alloc, evidence.end[row]))
        next_rows = row + 1 + rows_of(features.by_engine[row + 1 : last])
        if len(next_rows) >= _LEAST_OF_LINEAR:
            is_less = sizes[next_rows] < sizes[row] + is_gradient[next_rows]
            return bool(is_less.all())
    return None


def _chunked(evidence: Evidence, rows: Int64Column) -> Change:
    """Return the change to chunks.

    Beside the gradients of a chunk, backward then has the sum of the last layer's weight gradients,
    which it makes next: in each step, the largest moment of the logits' gradients saves less by it.
    """
    change = smaller(evidence.analysis, rows, 1 - 1 / _CHUNKS)
    table = evidence.table
    gradients = evidence.analysis.rows(Category.GRADIENT)
    gradient_alloc = evidence.alloc[gradients]
    n_bytes = change.n_bytes.copy()
    engine_rows = rows_of(evidence.features.by_engine[rows])
    for part in grouped(engine_rows, evidence.features.iteration[rows]):
        events = evidence.alloc[rows[part]]
        sums = [table.bytes_of(rows[table.live_at(event)[rows]]) for event in events]
        largest = part[np.argmax(sums)]
        next_gradient = np.searchsorted(gradient_alloc, events.max())
        gradient_bytes = at(table.block_bytes[gradients], next_gradient)  # 0 without one
        n_bytes[largest] = max(n_bytes[largest] - gradient_bytes, 0)
    return replace(change, n_bytes=n_bytes)


def _has_size_in_any_precision(sizes: Int64Column, size: int) -> BoolColumn:
    """Mark the sizes of a tensor in its own precision, and in one of twice or half the bits."""
    return is_among(sizes, (size, size * 2, size // 2))


def attention_scores(evidence: Evidence) -> Iterator[Detected]:
    """Find scores of attention: outputs of a softmax in a module, and their size beside them."""
    is_softmax = _is_made_by(evidence, "softmax")
    rows = rows_of(is_softmax & evidence.features.by_module & evidence.live)
    if not len(rows):
        return
    scores = _scores(evidence, rows, is_softmax)
    live_rows = evidence.live_of(scores)
    products = scores[(evidence.features.in_forward & ~is_softmax)[scores]]
    is_helped = _is_helped(evidence, rows)
    # A softmax of several steps alone is over classes perhaps.
    if (is_helped and not len(products)) or not _are_worth_it(evidence, live_rows):
        return
    has_dropout = bool((_is_made_by(evidence, "dropout") & evidence.live)[scores].any())
    is_of_module = _is_of_torchs_module(evidence, rows)
    averages = _averages(evidence) if is_of_module else rows[:0]
    if is_of_module and _are_read(
        evidence, scores, averages, is_softmax, n_of_each=2 + has_dropout
    ):
        return
    step = _step(evidence, rows, is_of_module=is_of_module)
    yield evidence.finding(
        _fused(evidence, rows, np.concatenate((scores, averages)), is_softmax),
        products[:1] if is_helped else rows,
        None,
        number=len(live_rows),
        caller=evidence.caller_of(rows),
        how=step,
        or_how=_DROPOUT if has_dropout and step == _SDPA else "",
        wrong=_READ_OR_MASK if is_of_module else _MASK,
    )


def _is_of_torchs_module(evidence: Evidence, rows: Int64Column) -> bool:
    return bool(evidence.analysis.is_of_operation(TORCHS_ATTENTION)[rows].all())


def _step(evidence: Evidence, rows: Int64Column, *, is_of_module: bool) -> str:
    """Return how torch's module, or else a library or program, takes a fused kernel."""
    return _NO_WEIGHTS if is_of_module else _FUSED.get(evidence.library_of(rows), _SDPA)


def _are_worth_it(evidence: Evidence, live_rows: Int64Column) -> bool:
    """Return whether scores in use are several and large.

    With a softmax alone nothing shows that its input was made for it.
    """
    has_several = bool(evidence.features.in_forward[live_rows].sum() >= 2)
    return has_several and evidence.is_large(live_rows, LEAST_SHARE_OF_TRADE)


def _are_read(
    evidence: Evidence,
    scores: Int64Column,
    averages: Int64Column,
    is_softmax: BoolColumn,
    *,
    n_of_each: int,
) -> bool:
    """Return whether the program reads the weights that torch's module returns."""
    return bool(evidence.features.reaches_backward[averages].any()) or _have_more_gradients(
        evidence, scores, is_softmax, n_of_each=n_of_each
    )


def _averages(evidence: Evidence) -> Int64Column:
    """Return the averages over heads that torch.nn.MultiheadAttention returns as its weights.

    Its function makes them last, in a size of their own; a program that reads them may keep them
    until backward.
    """
    line, rows = is_made_by_attention(evidence)
    is_last = line[rows] == line[rows].max(initial=-1)
    other_sizes = evidence.sizes[rows[~is_last]]
    averages: Int64Column = rows[is_last & ~is_among(evidence.sizes[rows], other_sizes)]
    return averages


def _have_more_gradients(
    evidence: Evidence, scores: Int64Column, is_softmax: BoolColumn, *, n_of_each: int
) -> bool:
    """Return whether the scores have more gradients than the fused kernel would compute.

    Those are of the softmax, the product after it and a dropout. Another one is that of the
    weights that the module returns, which a loss reads then.
    """
    features = evidence.features
    size = evidence.sizes[scores[is_softmax[scores]]].max()
    is_score = evidence.is_computed & (evidence.sizes == size)
    is_made_forward = is_score & features.in_forward
    if (is_made_forward & ~features.mask(scores)).any():
        return False  # others have gradients of this size too
    n_softmaxes = (is_made_forward & is_softmax & features.reaches_backward).sum()
    return bool((is_score & features.by_engine).sum() > n_of_each * n_softmaxes)


def _is_made_by(evidence: Evidence, word: str) -> BoolColumn:
    """Mark what an operation with a word in its name made, or one that calls such a function.

    torch.nn.functional has operations that call others, such as that of MultiheadAttention. A
    module often has a file of its own, and only that has its name.
    """
    # The frames of this device alone: a file may have many devices with frames of their own.
    frame = evidence.features.lines_of(evidence.stack_id)
    word_frames = [
        number
        for number in distinct(frame).tolist()
        if number >= 0 and _is_named(evidence, number, word)
    ]
    return evidence.analysis.is_of_operation(word) | is_among(frame, word_frames)


def _is_operation(evidence: Evidence, *names: str) -> BoolColumn:
    """Mark what operations with exactly one of these names made."""
    is_one_of = [name in names for name in evidence.analysis.operations]
    return np.array([*is_one_of, False])[evidence.analysis.operation_id]


def _is_named(evidence: Evidence, frame: int, word: str) -> bool:
    """Return whether a function has a word in its name, or its file outside of torch has it."""
    frames = evidence.analysis.snapshot.stacks.frames
    if word in frames.names[frame].lower():
        return True
    return _is_outside_torch(evidence, frame) and word in _stem(frames.filenames[frame])


def _is_outside_torch(evidence: Evidence, frame: int) -> bool:
    """Return whether neither torch nor a library that only calls its operations has a function."""
    return not is_of_operations(evidence.analysis.snapshot.stacks.frames.filenames[frame])


def _stem(file: str) -> str:
    return file.rpartition("/")[2].rpartition(".")[0].lower()


def _is_helped(evidence: Evidence, rows: Int64Column) -> bool:
    """Return whether a function or module of the program's own makes softmaxes."""
    frames = distinct(evidence.features.lines_of(evidence.stack_id[rows])).tolist()
    return any(
        frame >= 0
        and _is_outside_torch(evidence, frame)
        and _is_named(evidence, frame, "softmax")
        for frame in frames
    )


def _is_beside(
    evidence: Evidence, rows: Int64Column, candidates: Int64Column
) -> BoolColumn:
    """Mark the candidates that the functions which attend make, those of softmaxes (rows)."""
    stack_id = evidence.stack_id
    functions = {_function(evidence, stack) for stack in distinct(stack_id[rows]).tolist()}
    stacks = [
        stack
        for stack in distinct(stack_id[candidates]).tolist()
        if _function(evidence, stack) in functions
    ]
    return is_among(stack_id[candidates], stacks)


def _is_of_results(
    evidence: Evidence, rows: Int64Column, candidates: Int64Column
) -> BoolColumn:
    """Mark candidates as large as what the function that attends makes last in a call.

    Queries, keys, values and results have one size, which may be half that of the scores.
    """
    n_rows = len(evidence.sizes)
    is_inner = np.zeros(n_rows + 1, bool)
    is_inner[:n_rows] = _is_beside(evidence, rows, np.arange(n_rows))
    is_inner[n_rows] = True  # the end of the file cuts a call short
    is_last = is_inner[:-1] & ~is_inner[1:] & evidence.features.in_forward
    return is_among(evidence.sizes[candidates], evidence.sizes[is_last])


def _scores(evidence: Evidence, rows: Int64Column, is_softmax: BoolColumn) -> Int64Column:
    """Return what has the size of a softmax: in its function, and near it in backward."""
    sizes = evidence.sizes
    size = int(sizes[evidence.analysis.fullest(rows, sizes)[0]])
    # The mask of a dropout, or one compared with a number, has a byte for each score; queries, keys
    # and values may have as many: they stay.
    is_mask = (sizes == size // 4) & (
        _is_made_by(evidence, "dropout") | _is_operation(evidence, *_MASKS)
    )
    fitting = rows_of(
        evidence.is_computed & (_has_size_in_any_precision(sizes, size) | is_mask)
    )
    inner_rows = fitting[_is_beside(evidence, rows, fitting)]
    if _is_helped(evidence, rows):
        is_result = (sizes != size)[inner_rows] & _is_of_results(evidence, rows, inner_rows)
        inner_rows = inner_rows[~is_result]
    engine_rows = fitting[evidence.features.by_engine[fitting]]
    alloc = evidence.alloc[engine_rows]  # in order, as the rows are
    is_gradient = _is_near(alloc, alloc[is_softmax[engine_rows]])
    # A softmax of several steps has no name in backward: its gradients have a size of their own.
    is_other = evidence.is_computed & evidence.features.in_forward
    is_other[inner_rows] = False
    is_gradient |= ~is_among(sizes[engine_rows], distinct(sizes[is_other]))
    return np.concatenate((inner_rows, engine_rows[is_gradient]))


def written_out_silu(evidence: Evidence) -> Iterator[Detected]:
    """Find sigmoids that a function named after silu makes and multiplies, kept for backward.

    silu keeps its input alone, and a sigmoid and its product keep the result too (saved tensors of
    torch 2.13). Without the name it may be a gate, which multiplies another tensor.
    """
    is_named = np.zeros(len(evidence.sizes), bool)
    for word in _SILU:
        is_named |= _is_made_by(evidence, word)
    is_sigmoid = (
        _is_operation(evidence, "sigmoid") & is_named & evidence.features.in_forward
    )
    is_factor = np.append(_is_operation(evidence, "mul")[1:], False)
    line = evidence.features.lines_of(evidence.stack_id)
    is_factor &= np.append(line[1:] == line[:-1], False)
    is_factor &= np.append(evidence.sizes[1:] == evidence.sizes[:-1], False)
    is_kept = ~evidence.features.is_freed_in_own_forward
    rows = rows_of(is_sigmoid & is_factor & is_kept)
    live_rows = evidence.live_of(rows)
    if evidence.is_large(live_rows, LEAST_SHARE_OF_TRADE):
        yield evidence.finding_there(removed(evidence.analysis, rows), live_rows)


def adapter_inputs(evidence: Evidence) -> Iterator[Detected]:
    """Find copies of inputs in the precision of peft's adapters, kept for the adapters' gradients.

    peft/tuners/lora/layer.py, Linear.forward, peft 0.21: an adapter in 32 bits reads a copy of its
    input; one in 16 bits beside a model in 16 bits reads the input, which is kept in place of the
    copy.
    """
    is_copy = evidence.features.made_through(Role.ADAPTED)
    rows = rows_of(is_copy & evidence.features.reaches_backward)
    live_rows = evidence.live_of(rows)
    if evidence.is_large(live_rows, LEAST_SHARE_OF_TRADE):
        yield evidence.finding_there(smaller(evidence.analysis, rows, 1 / 2), live_rows)


def _fused(
    evidence: Evidence, rows: Int64Column, scores: Int64Column, is_softmax: BoolColumn
) -> Change:
    """Return the change to a fused kernel, which keeps queries, keys and values as they are.

    Without it a product of matrices keeps copies of them, and the originals are freed in forward.
    ``rows`` are the softmaxes whose functions attend.
    """
    analysis = evidence.analysis
    is_freed = evidence.features.is_freed_by_engine
    is_inner = evidence.is_computed & evidence.features.in_forward
    saved = scores[(is_softmax & is_inner & is_freed)[scores]]
    saved = _last_of_calls(saved, is_softmax)
    is_inner[scores] = False
    is_of_torchs_module = analysis.is_of_operation(TORCHS_ATTENTION)
    is_copy = _is_copy(evidence, rows, is_inner & is_freed)
    n_bytes = evidence.table.block_bytes.copy()
    inner = _inner_rows(evidence, is_inner)
    removable = [scores]
    for softmax, part, earlier in _layers(evidence, saved, is_inner):
        if is_of_torchs_module[softmax]:
            inner_rows = part[is_of_torchs_module[part]]
            queries = _scaled_queries(evidence, softmax, inner_rows)
            _take_bytes(n_bytes, [softmax], inner.originals(queries, inner_rows))
            continue
        copies = part[is_copy[part]]
        removable.append(copies)
        # The originals stay instead of the copies and the softmax: these are smaller by as much.
        _take_bytes(n_bytes, [*copies.tolist(), softmax], inner.originals(copies, earlier))
    change = removed(analysis, np.concatenate(removable))
    return replace(change, n_bytes=n_bytes[change.rows])


def _is_copy(evidence: Evidence, rows: Int64Column, is_saved: BoolColumn) -> BoolColumn:
    """Mark what is saved and a product's copy, in the functions of softmaxes (rows)."""
    # Under autocast the fused kernel's inputs are cast as well, and kept.
    is_copy = is_saved & ~evidence.features.made_through(Role.CAST)
    is_copy &= evidence.analysis.is_of_operation(*_COPIES)
    is_copy[is_copy] = _is_beside(evidence, rows, rows_of(is_copy))
    return is_copy


def _last_of_calls(softmaxes: Int64Column, is_softmax: BoolColumn) -> Int64Column:
    """Return the last of a softmax in several steps, which follow one another."""
    n_others = np.cumsum(~is_softmax)[softmaxes]
    last: Int64Column = softmaxes[np.diff(n_others, append=-1) != 0]
    return last


def _take_bytes(n_bytes: Int64Column, rows: Sequence[int], n_remaining: int) -> None:
    """Take bytes from rows, one after the other, from each as many as it has."""
    for row in rows:
        n_covered = min(n_bytes[row], n_remaining)
        n_bytes[row] -= n_covered
        n_remaining -= n_covered


def _scaled_queries(evidence: Evidence, softmax: int, rows: Int64Column) -> Int64Column:
    """Return the queries that torch's module scales last before a softmax.

    The fused kernel keeps its output in their place, which has their size.
    """
    is_before = evidence.alloc[rows] < evidence.alloc[softmax]
    queries: Int64Column = rows[evidence.features.is_freed_by_engine[rows] & is_before]
    return queries[-1:]


def _layers(
    evidence: Evidence, softmaxes: Int64Column, is_inner: BoolColumn
) -> Iterator[tuple[int, Int64Column, Int64Column]]:
    """Yield softmaxes, each with the inner rows that its module made nearest to it.

    Equal layers follow one another without a break. Last are these with those of the layer before:
    queries, keys and values that come long before their softmax may be nearer to that.
    """
    inner_rows = rows_of(is_inner)
    softmax_stacks = evidence.stack_id[softmaxes]
    inner_stacks = evidence.stack_id[inner_rows]
    for module in set(
        map(evidence.calls.module_call, distinct(softmax_stacks).tolist())
    ) - {()}:
        is_of_module = evidence.calls.is_within(module)
        module_softmaxes = softmaxes[is_of_module[softmax_stacks]]
        module_rows = inner_rows[is_of_module[inner_stacks]]
        alloc = np.sort(evidence.alloc[module_softmaxes].astype(np.int64))
        middles = (alloc[1:] + alloc[:-1]) // 2
        nearest = np.searchsorted(middles, evidence.alloc[module_rows])
        previous_rows = module_rows[:0]
        for part in grouped(np.arange(len(module_rows)), nearest):
            rows = module_rows[part]
            softmax = int(module_softmaxes[nearest[part[0]]])
            yield softmax, rows, np.concatenate((previous_rows, rows))
            previous_rows = rows


@dataclass(frozen=True, slots=True)
class _Inner:
    """What the modules of attention make in forward, as plain values by row.

    A layer has a dozen rows, and a trace thousands of layers: columns take four times as long.
    ``lifetimes``: requested bytes, first event, end, bytes of the block, and whether the engine
    frees it. ``casts``: those that autocast made.
    """

    lifetimes: dict[int, tuple[int, int, int, int, bool]]
    casts: frozenset[int]

    def _may_be_original(self, row: int, casts: Sequence[tuple[int, int]]) -> bool:
        n_bytes, begin, end, _, is_freed_by_engine = self.lifetimes[row]
        is_cast = any(n_bytes == 2 * size and begin < event < end for size, event in casts)
        return not (is_freed_by_engine or is_cast)

    def originals(self, copies: Int64Column, candidates: Int64Column) -> int:
        """Return the bytes of the originals of copies.

        They are in use then, one to three times as large, not freed by backward, and not cast: of
        what is cast the kernel keeps the cast.
        """
        casts = [
            self.lifetimes[row][:2] for row in candidates.tolist() if row in self.casts
        ]
        rows = [row for row in candidates.tolist() if self._may_be_original(row, casts)]
        # The largest first: queries, keys and values are often parts of one tensor.
        rows.sort(key=lambda row: self.lifetimes[row][0], reverse=True)
        n_more_copies: dict[int, int] = {}  # that each original can have
        for copy in copies.tolist():
            size, event, *_ = self.lifetimes[copy]
            for row in rows:
                n_bytes, begin, end, *_ = self.lifetimes[row]
                is_fitting = (
                    begin < event < end and n_bytes % size == 0 and n_bytes <= 3 * size
                )
                if is_fitting and n_more_copies.setdefault(row, n_bytes // size):
                    n_more_copies[row] -= 1
                    break
        return sum(self.lifetimes[row][3] for row in n_more_copies)


def _inner_rows(evidence: Evidence, is_inner: BoolColumn) -> _Inner:
    rows = rows_of(is_inner)
    columns = (
        evidence.sizes,
        evidence.alloc,
        evidence.end,
        evidence.table.block_bytes,
        evidence.features.is_freed_by_engine,
    )
    lifetimes = plain_rows(*(column[rows] for column in columns))
    casts = rows[evidence.features.made_through(Role.CAST)[rows]]
    return _Inner(
        dict(zip(rows.tolist(), lifetimes, strict=True)), frozenset(casts.tolist())
    )


def _is_near(alloc: EventColumn, targets: EventColumn) -> BoolColumn:
    """Mark events that are a few events before or after targets, such as those of a softmax."""
    first = np.searchsorted(targets, alloc - _NEAR)
    return np.searchsorted(targets, alloc + _NEAR, side="right") > first


def _function(evidence: Evidence, stack: int) -> tuple[str, str]:
    """Return the innermost function that attends, if it calls no module but a dropout or softmax.

    It is no function of torch, but for that of torch.nn.MultiheadAttention, and no softmax: of the
    program's own, only its caller knows what the scores are.
    """
    frames = evidence.analysis.snapshot.stacks.frames
    path = evidence.calls.path(stack)
    is_step = any("dropout" in frames.names[frame].lower() for frame in path)
    for frame in reversed(path):
        if evidence.calls.is_module_call(frame) and not is_step:
            break
        is_softmax = _is_named(evidence, frame, "softmax")
        is_step |= is_softmax
        name = frames.names[frame]
        is_own = _is_outside_torch(evidence, frame) and not is_softmax
        if is_own or name == TORCHS_ATTENTION:
            return frames.filenames[frame], name
    return "", str(stack)


def foreach_temporaries(evidence: Evidence) -> Iterator[Detected]:
    """Find lists of temporaries in an optimizer's step, with a tensor for each parameter."""
    stack_id = evidence.stack_id
    is_temporary = _is_temporary_of_step(evidence.analysis)
    live = rows_of(is_temporary & evidence.live)
    lists = grouped(live, stack_id, min_rows=_LEAST_OF_LIST)
    live_rows = np.concatenate([live[:0], *lists])
    if evidence.is_large(live_rows):
        is_of_list = is_among(stack_id, stack_id[live_rows])
        change = removed(evidence.analysis, rows_of(is_temporary & is_of_list))
        yield evidence.finding_there(change, live_rows)


def _is_temporary_of_step(analysis: DeviceAnalysis) -> BoolColumn:
    """Mark the memory that an optimizer's step allocates and frees.

    Where memory ran out in the step, it would have freed lists too.
    """
    features = analysis.features
    is_freed = features.end <= features.alloc_run_last
    if analysis.ran_out:
        is_freed |= ~features.is_freed & analysis.is_of_operation("_foreach_")
    return has_code(features.alloc_phase, Phase.OPTIMIZER) & is_freed


def full_states(evidence: Evidence) -> Iterator[Detected]:
    """Find states of optimizers that fit into 8 bits; a step with such states is one kernel."""
    analysis = evidence.analysis
    is_temporary = _is_temporary_of_step(analysis)
    is_state = evidence.is_a(Category.OPTIMIZER_STATE) & ~is_temporary
    recorded = analysis.recorded
    wrong = "the states have 16 bits already"
    if recorded:
        wrong = "the optimizer has no version with 8 bits"
        states = recorded.metadata.states
        n_values = [*map(math.prod, recorded.metadata.parameters.shapes), 0]
        full_bytes = 4 * np.array(n_values, np.int64)[states.parameter]
        is_short = states.n_bytes < full_bytes
        is_state[recorded.states[is_short & (recorded.states >= 0)]] = False
    rows = rows_of(is_state & (evidence.table.block_bytes >= _LEAST_STATE_BYTES))
    live_rows = evidence.live_of(rows)
    if evidence.is_large(live_rows, LEAST_SHARE_OF_TRADE):
        change = smaller(analysis, rows, SAVED_BY_8_BITS)
        alone = joined((change, removed(analysis, rows_of(is_temporary))))
        yield replace(evidence.finding(change, live_rows, None, wrong=wrong), alone=alone)


def offloaded(evidence: Evidence) -> Iterator[Detected]:
    """Find the tensors that autograd saved, to keep on the GPU only while operations need them."""
    analysis = evidence.analysis
    calls = evidence.calls
    change = _moved(evidence)
    n_moved = evidence.demand.bytes_at(change, evidence.moment.event)
    if not evidence.is_worth(n_moved, LEAST_SHARE_OF_TRADE):
        return
    live_rows = evidence.live_of(change.rows)
    line = calls.model_line(analysis.main_stack(live_rows))
    seconds = f"{2 * n_moved / _PCIE:.2g} s at 20 GiB/s"
    has_paths = NameEvidence.METADATA in analysis.modules.evidence
    yield evidence.finding(
        change,
        live_rows,
        line,
        moved=format_bytes(n_moved),
        transfer=f"{format_bytes(2 * n_moved)} over PCIe per iteration: {seconds}",
        unknown="" if has_paths else _NOT_TRIED,
        at=optional(" ({0.place})", line),
        keyword=_keyword_hint(evidence, live_rows),
    )


def _moved(evidence: Evidence) -> Change:
    """Return the change that has the saved tensors on the CPU while no operation needs them."""
    features = evidence.features
    rows = evidence.saved
    freed = features.end[rows]
    # Nothing but the graph holds it when backward begins; it comes back for its own operation.
    first = np.minimum(evidence.saved_ends, features.next_backward[rows])
    last = np.maximum(last_before(np.sort(freed), freed), first)
    return freed_from(evidence.analysis, rows, first, last)


def _keyword_hint(evidence: Evidence, rows: Int64Column) -> str:
    """Say that inputs of checkpoint() pass hooks by position alone, where keywords may be used.

    torch/utils/checkpoint.py, _checkpoint_without_reentrant_generator: autograd saves ``args``, and
    a closure has ``kwargs``. A recorder hears of what autograd saves.
    """
    recorded = evidence.features.recorded
    saved = recorded.saved if recorded else rows[:0]
    is_input = evidence.features.made_through(Role.CHECKPOINTED)[rows]
    if not evidence.is_large(rows[is_input & ~is_among(rows, saved)]):
        return ""
    condition = ""
    if not len(saved):
        condition = "if they are passed by keyword, which the file does not show: "
    return (
        f"Before that, {condition}pass the tensors to checkpoint() by position. Keywords do not "
        "reach these hooks."
    )
