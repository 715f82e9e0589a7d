"""Advice: changes of the program, and the bytes that they save at the peak by a replay.

Every kind is a row of KINDS: its sentences, and a detector. Detectors look at the peak, then at the
peak that is left without their findings. A fault keeps memory for nothing; a trade saves memory for
a price, and what is free has none that most programs notice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.attention_masks import converted_masks, merged_masks
from snapconv.answers.advice.checkpointing import checkpointed_modules, last_segments
from snapconv.answers.advice.copies import (
    autocast_cache,
    cloned_weights,
    copied_gradients,
    early_batches,
    gathered_shards,
    loaded_weights,
    views_of_gradients,
)
from snapconv.answers.advice.evidence import (
    FAULT,
    FREE,
    LEAST_SHARE_OF_TRADE,
    TRADE,
    Detected,
    Evidence,
    Kind,
)
from snapconv.answers.advice.faults import (
    garbage,
    growing,
    kept_gradients,
    kept_graphs,
    open_graphs,
    previous_kept,
    unused_graphs,
)
from snapconv.answers.advice.streams import idle_caches, late_frees, scattered_caches
from snapconv.answers.advice.trades import (
    adapter_inputs,
    attention_scores,
    foreach_temporaries,
    full_logits,
    full_states,
    offloaded,
    smaller_batch,
    written_out_silu,
)
from snapconv.answers.peak import summary_totals
from snapconv.answers.what_if.setting_trials import SavingSetting, saving_setting
from snapconv.columns import distinct
from snapconv.hypotheses.changes import Change, Demand, Peak
from snapconv.hypotheses.line_calls import LineCalls
from snapconv.replay.history_verdict import Verdict
from snapconv.stacks.project_lines import SourceLine
from snapconv.stop_signals import stage
from snapconv.units import Device, counted, device_kind

MOST_FINDINGS = 7
# After the faults at the peak come those at the peak that is left, and so on.
_ROUNDS = 3
# A free change must save this part of the peak where nobody requests trades.
_LEAST_SHARE = 0.05
# For more events the search of settings takes much longer than the rest.
_MOST_SEARCHED = 1 << 15
# Up to so many events a verdict also looks for what is free.
_MOST_QUICK = 1 << 17

_WITHOUT_AUTOCAST_CACHE = (
    "Pass cache_enabled=False to torch.autocast.",
    (
        "Or keep the weights in that precision, such as by model.to(torch.bfloat16), "
        "which also saves half of the weights."
    ),
)

KINDS = (
    Kind(
        slug="weights-copied",
        what="A second copy of the weights, loaded from a file, stays on the GPU ({where}).",
        how=(
            'Pass map_location="cpu" to torch.load; load_state_dict copies to the GPU.',
            "Or `del` the name that keeps it, once it is not needed.",
        ),
        detect=loaded_weights,
    ),
    Kind(
        slug="weights-copied",
        what="A second copy of the weights, cloned after a validation, stays on the GPU ({where}).",
        how=(
            "Keep it on the CPU: {{k: v.cpu() for k, v in model.state_dict().items()}}.",
            "Or `del` the name that keeps it, once it is not needed.",
        ),
        detect=cloned_weights,
    ),
    Kind(
        slug="batches-early",
        what="{where} puts {number} batches on the GPU before the first of them is used.",
        how=(
            "Copy each batch when its step begins: `batch = batch.to(device)` inside the loop.",
        ),
        detect=early_batches,
    ),
    Kind(
        slug="previous-kept",
        what="The old {thing} is still alive while {maker} makes the next one.",
        how=(
            "{when}`del` the name that has it{held} before {maker} runs.",
            "Moving the loop's body into a function frees it too, with its other local names.",
        ),
        detect=previous_kept,
    ),
    Kind(
        slug="gradients-kept",
        what="Gradients of the previous step stay in use through the next forward: {when}.",
        how=(
            "Call optimizer.zero_grad(set_to_none=True) right after optimizer.step().",
            "Move a call of model.zero_grad() there; with Lightning, to on_train_batch_end.",
        ),
        detect=kept_gradients,
    ),
    Kind(
        slug="gradient-views",
        what="Views keep a whole concatenation in use: {counted}, such as that of {name}.",
        noun="small gradient",
        how=(
            "Clone such a gradient when it is made, so that the rest is freed:",
            "p.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', p.grad.clone())).",
        ),
        detect=views_of_gradients,
        estimated="the whole is assumed free once backward made the next gradient",
    ),
    Kind(
        slug="unused-graph",
        what="{where} keeps a graph for a backward that never comes.",
        how=("Put `with torch.no_grad():` around {calls}.",),
        detect=unused_graphs,
        estimated="without the graph, a value is assumed freed one operation after its last use",
    ),
    Kind(
        slug="graphs-kept",
        what="{number} graphs of {where} are live together, and no backward uses them.",
        how=(
            "Keep `loss.item()` or `loss.detach()`, not the loss itself.",
            "`del loss` at the end of the loop body frees its graph before the next forward.",
        ),
        detect=kept_graphs,
    ),
    Kind(
        slug="garbage",
        what=(
            "Reference cycles keep memory of earlier steps until Python's collector "
            "runs: {where} made it."
        ),
        how=(
            (
                "Break the cycle: an object refers to itself by an attribute, closure, "
                "hook or exception."
            ),
            "Or call gc.collect() at the end of each step, which takes time.",
        ),
        detect=garbage,
        estimated="each is freed at the end of its step; without the cycle it may be freed earlier",
    ),
    Kind(
        slug="growing",
        what="Each iteration adds {added} at {where}.",
        how=(
            "Keep `x.item()` or `x.detach().cpu()`, not the tensor.",
            "Or clear the list, tensor or cache that holds it, or give it a limit.",
        ),
        detect=growing,
        has_any_size=True,
    ),
    Kind(
        slug="open-graph",
        what="{where} keeps a graph for a backward, and none comes before the trace ends.",
        how=("If none comes later either, put `with torch.no_grad():` around this call.",),
        costs="nothing where no backward follows",
        is_free=True,
        detect=open_graphs,
        estimated="without the graph, a value is assumed freed one operation after its last use",
    ),
    Kind(
        slug="autocast-cache",
        what="autocast keeps {counted} in half precision until its block ends ({where}).",
        noun="copy of a weight",
        plural="copies of weights",
        how=_WITHOUT_AUTOCAST_CACHE,
        costs="no time, unless the block uses a weight again: each such use then casts it",
        is_free=True,
        detect=partial(autocast_cache, is_read_again=False),
        estimated="a copy is assumed to be needed by one operation",
    ),
    Kind(
        slug="autocast-cache-in-use",
        what="autocast keeps {counted} for further use in its block ({where}).",
        noun="half-precision copy of a weight",
        plural="half-precision copies of weights",
        how=_WITHOUT_AUTOCAST_CACHE,
        costs="time: each further use of a weight in the block casts it again",
        detect=partial(autocast_cache, is_read_again=True),
        estimated="a copy is assumed to be needed by one operation",
    ),
    Kind(
        slug="late-frees",
        what="Freed blocks wait for another stream, most of them of {where}.",
        how=(
            (
                "Before the tensor is dropped, let the stream that allocated it wait: "
                "own.wait_stream(other)."
            ),
            (
                "other is the stream that used it. Then leave out record_stream(), or "
                "use one stream for both."
            ),
            "{nccl}",
            "PyTorch waits for the other stream itself only where memory runs out.",
        ),
        wrong_if="a CUDA graph was captured meanwhile, which delays such frees",
        detect=late_frees,
        is_of_reserved=True,
    ),
    Kind(
        slug="idle-cache",
        what="The cache of {pool} lies empty after its last use at {where}.",
        how=(
            "Call torch.{kind}.empty_cache() once after that line.",
            "Or do that work on the current stream, which then uses its memory again.",
            (
                "PyTorch returns it itself only where memory runs out; before, nothing "
                "else can use it."
            ),
        ),
        wrong_if="the program uses {pool} again after the trace",
        detect=idle_caches,
        is_of_reserved=True,
    ),
    Kind(
        slug="many-streams",
        what="{where} allocates on {number} streams, and each keeps a cache of its own.",
        how=(
            "Make one torch.{kind}.Stream() before the loop, and use it in every call.",
            "Each new one is the next of 32 streams, and PyTorch keeps a cache for each.",
        ),
        wrong_if="the calls have to overlap on the GPU",
        detect=scattered_caches,
        is_of_reserved=True,
    ),
    Kind(
        slug="buckets",
        what="Memory holds {counted} beside the buckets of DistributedDataParallel.",
        noun="gradient",
        how=("Pass gradient_as_bucket_view=True to DistributedDataParallel.",),
        costs="no time; gradients become views of the buckets, which cannot be detached in place",
        wrong_if="the program replaces .grad by tensors of its own",
        detect=copied_gradients,
    ),
    Kind(
        slug="unsharded",
        what="FSDP keeps the gathered weights of {counted} from forward to backward.",
        noun="module",
        how=(
            "Pass reshard_after_forward=True to fully_shard (FSDP1: ShardingStrategy.FULL_SHARD).",
        ),
        costs="the weights are gathered again for backward",
        wrong_if="a module runs again before its backward",
        detect=gathered_shards,
        estimated="two modules are gathered at any time",
    ),
    Kind(
        slug="logits",
        what="The loss uses {counted} as large as the logits ({where}{caller}).",
        noun="tensor",
        how=("{how}", "{or_how}"),
        costs="{costs}",
        wrong_if="other tensors have the size of the logits",
        detect=full_logits,
        estimated="every tensor of the size of the logits shrinks to {chunk}",
    ),
    Kind(
        slug="attention",
        what="Attention ({line}{caller}) has {number} tensors in use, "
        "each with an element per score.",
        how=("{how}", "{or_how}"),
        costs="no time; the attention weights are no longer an output",
        is_free=True,
        wrong_if="{wrong}",
        detect=attention_scores,
        estimated="assumes that queries, keys and values stay as the program made them",
    ),
    Kind(
        slug="silu",
        what="silu as x * sigmoid(x) keeps {counted} for backward ({where}).",
        noun="sigmoid",
        how=("Use F.silu(x), which keeps x alone.",),
        is_free=True,
        wrong_if="the sigmoid is of another tensor than the one that it multiplies",
        detect=written_out_silu,
    ),
    Kind(
        slug="masks",
        what="Attention makes {counted} with a number for each score ({where}).",
        noun="mask",
        how=(
            (
                "Attention adds the padding mask (src_key_padding_mask) to the other "
                "in every layer: pass one."
            ),
            "With a causal mask and padding at the end, pass is_causal=True and no padding mask.",
        ),
        costs="no time; outputs at padded positions change, which the loss has to ignore",
        is_free=True,
        wrong_if="padding comes before the text, or the other mask is not causal",
        detect=merged_masks,
    ),
    Kind(
        slug="mask-copies",
        what="Attention keeps {counted} of a boolean mask, one for each call ({where}).",
        noun="copy",
        plural="copies",
        how=(
            (
                "Convert the mask once, before the layers: torch.zeros_like(mask, "
                "dtype=q.dtype).masked_fill_(~mask, -torch.inf)."
            ),
            "A mask that is causal and nothing else needs none: pass is_causal=True.",
        ),
        is_free=True,
        wrong_if="each call has a mask of its own",
        detect=converted_masks,
    ),
    Kind(
        slug="adapter-inputs",
        what="peft's adapters keep {counted} of their inputs in 32 bits for backward ({where}).",
        noun="copy",
        plural="copies",
        how=(
            (
                "Pass autocast_adapter_dtype=False to get_peft_model: adapters then "
                "have the model's precision."
            ),
        ),
        costs="precision of the adapters' weights; check that the loss still falls",
        wrong_if="the adapters have to stay in 32 bits, or have 16 already",
        detect=adapter_inputs,
        estimated="each copy shrinks to half; it saves more where adapters share an input",
    ),
    Kind(
        slug="foreach",
        what="{number} temporaries of the optimizer step are live together ({where}).",
        how=(
            "Pass fused=True to the optimizer (Adam, AdamW, SGD, Adagrad).",
            (
                "Other optimizers: foreach=False keeps one or two temporaries of the "
                "largest parameter."
            ),
        ),
        costs="nothing with fused=True; foreach=False makes the step slower",
        is_free=True,
        wrong_if="the optimizer supports neither",
        detect=foreach_temporaries,
    ),
    Kind(
        slug="checkpointing",
        what="{modules} keep their activations for backward.",
        how=("{how}", "{beside}"),
        costs="recomputes {share} of the forward (by {measure})",
        wrong_if="modules share inputs, as skip connections do",
        detect=checkpointed_modules,
        estimated="each module keeps its input, and makes its activations again for its backward",
    ),
    Kind(
        slug="last-segment",
        what="The last segment of checkpoint_sequential keeps {counted} ({line}).",
        noun="tensor",
        how=(
            "Call checkpoint(segment, x, use_reentrant=False) for each segment yourself.",
            "{or_how}",
        ),
        costs="that segment's forward runs twice",
        wrong_if="a module after it reads its inner results",
        detect=last_segments,
        estimated="the segment makes its activations again for its backward",
    ),
    Kind(
        slug="offloading",
        what="Forward keeps {moved} of activations for backward.",
        how=(
            "Put `with torch.autograd.graph.save_on_cpu(pin_memory=True):` around the forward{at}.",
            "{keyword}",
            "Around the largest modules alone it costs less time.",
            "{unknown}",
        ),
        costs="{transfer}",
        wrong_if="the CPU lacks the memory",
        detect=offloaded,
        estimated="each tensor moves to the CPU soon after its use, and back for its backward",
    ),
    Kind(
        slug="states",
        what="The optimizer keeps {counted} in 32 bits ({line}).",
        noun="state",
        how=("Use an optimizer with 8-bit states, from bitsandbytes or torchao.",),
        costs="precision; check that the loss still falls",
        wrong_if="{wrong}",
        detect=full_states,
        estimated="each state shrinks to a quarter, and the step keeps no temporaries; "
        "transformers' Trainer leaves the states of embeddings as they are",
    ),
    Kind(
        slug="batch",
        what="Make the batch or the sequence smaller: × {share}.",
        how=("{how}",),
        costs="more batches for the same samples",
        wrong_if="part of that memory has a size of its own",
        detect=smaller_batch,
        estimated="assumed to grow with the batch: {growing}; nothing else",
    ),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One change of the program: its reason, its saving at the peak, its price, and how to do it.

    ``held_bytes`` are those that it takes from the memory at the peak; ``saved_bytes`` are less
    where another moment then needs more. ``could_be``: what else has such lifetimes and is not
    excluded by the file; if nothing, the finding is certain. ``peak`` is the peak with this change
    alone. ``estimated`` is empty where the replay is exact. Where the change is about what is
    reserved beside the allocated bytes, so are these, and ``reserved_bytes`` is the most that is
    reserved with it; else that is None.
    """

    kind: str
    sort: str
    what: str
    how: tuple[str, ...]
    costs: str
    wrong_if: str
    is_certain: bool
    could_be: tuple[str, ...]
    estimated: str
    line: SourceLine | None
    where: SourceLine | None
    n_allocations: int
    held_bytes: int
    saved_bytes: int
    peak: Peak
    change: Change = field(metadata={"json": False})
    next_place: str = field(default="", metadata={"json": False})
    reserved_bytes: int | None = None

    @property
    def heading(self) -> str:
        """Its sort in the words of every text."""
        if self.sort == FAULT:
            return "fault" if self.is_certain else "likely fault"
        return "no cost" if self.sort == FREE else self.sort

    @property
    def needs_another_moment(self) -> bool:
        """Whether another moment needs nearly as much: most of what is held is not saved."""
        return self.saved_bytes < self.held_bytes / 2

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        values = asdict(self)
        del values["change"], values["next_place"]
        return values


@dataclass(frozen=True, slots=True)
class Advice:
    """The findings on one device, the largest first, and the peak with all of them together.

    ``goal_bytes``: the most that the peak should be, None if no goal was given. ``enough``: the
    numbers of the findings, from 1 on, that reach it: each one that does so alone, and the first
    others that do together. ``fits_already``: the program fits into the capacity without a change.
    ``setting``: the allocator setting that reserves least. ``contents`` has the bytes of each
    category at the peak, the largest first. ``unknown`` says why nothing can be found, else it is
    empty.
    """

    device: Device
    peak: Peak
    reserved_bytes: int
    is_failed: bool
    failed_bytes: int
    failed_line: SourceLine | None
    goal_bytes: int | None
    with_trades: bool
    findings: tuple[Finding, ...]
    together: Peak
    enough: tuple[tuple[int, ...], ...]
    fits_already: bool
    are_settings_tried: bool
    setting: SavingSetting | None
    contents: dict[str, int]
    unknown: str
    history_verdict: str

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that cost nothing to follow."""
        return tuple(finding for finding in self.findings if finding.sort == FAULT)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {
            "kind": device_kind(self.device),
            **asdict(replace(self, findings=())),
            "findings": [finding.to_json() for finding in self.findings],
        }


@stage
def advise(
    analysis: DeviceAnalysis,
    *,
    goal_bytes: int | None = None,
    capacity: int | None = None,
    trades: bool = False,
    replays: bool = True,
    forward_ms: Mapping[str, float] | None = None,
) -> Advice:
    """Find what to change.

    ``goal_bytes`` is the peak to reach, and asks for trades unless faults reach it. ``capacity``:
    what may be reserved, where settings are tried. ``replays``: find the new peaks by the allocator
    model, which takes longer. ``forward_ms``: the times of a capture, see times.forward_times.
    """
    trades = trades or goal_bytes is not None
    demand = Demand(analysis)
    unknown = _why_unknown(analysis)
    peak_of = demand.replayed if replays else demand.without
    findings: list[Finding] = []
    if not unknown:
        evidence = Evidence(
            demand, LineCalls(analysis), demand.peak, goal_bytes, forward_ms or {}
        )
        findings = _find(evidence, peak_of, trades=trades, replays=replays)
    fits_already = False
    setting = None
    is_tried = trades and replays and not unknown and analysis.n_events <= _MOST_SEARCHED
    if is_tried:
        fits_already, setting = saving_setting(analysis, capacity)
    enough: tuple[tuple[int, ...], ...] = ()
    if goal_bytes is not None:
        enough = tuple(_enough(findings, goal_bytes, demand))
    failed_bytes, failed_line = _failed_request(demand)
    return Advice(
        device=analysis.device.device,
        peak=demand.peak,
        reserved_bytes=analysis.replay.reserved.peak,
        is_failed=analysis.ran_out,
        failed_bytes=failed_bytes,
        failed_line=failed_line,
        goal_bytes=goal_bytes,
        with_trades=trades,
        findings=tuple(findings),
        together=_peak_together(findings, peak_of),
        enough=enough,
        fits_already=fits_already,
        are_settings_tried=is_tried,
        setting=setting,
        contents=_contents(analysis, demand.peak.event),
        unknown=unknown,
        history_verdict=analysis.history.verdict.value,
    )


def _find(
    evidence: Evidence,
    peak_of: Callable[[Sequence[Change]], Peak],
    *,
    trades: bool,
    replays: bool,
) -> list[Finding]:
    """Search for findings, and leave out those that nobody needs."""
    sorts: Sequence[str] = (FAULT, FREE, TRADE)
    if not trades:
        sorts = sorts[:2] if replays else sorts[:1]
    findings = _search(evidence, sorts, peak_of)
    if replays and (evidence.goal_bytes is not None or not trades):
        return _worthwhile(findings, evidence.goal_bytes, evidence.demand)
    return findings


def _failed_request(demand: Demand) -> tuple[int, SourceLine | None]:
    """Return the bytes and the line of the first request that failed; 0 without one."""
    analysis = demand.analysis
    if not analysis.ran_out:
        return 0, None
    event = int(analysis.phases.oom_events[0])
    return int(analysis.device.events.size[event]), demand.line_at(event)


def _peak_together(
    findings: Sequence[Finding], peak_of: Callable[[Sequence[Change]], Peak]
) -> Peak:
    """Return the peak with the changes of all findings; a single one has its own already."""
    if len(findings) == 1:
        return findings[0].peak
    return peak_of([finding.change for finding in findings])


def quick_findings(analysis: DeviceAnalysis) -> list[Finding]:
    """Find what ``advise`` finds where nobody requests trades, by sums alone.

    Its faults are in the same order. What is free is looked for in short traces alone: in one of
    10^6 events that takes as long as reading it.
    """
    if _why_unknown(analysis):
        return []
    sorts = (FAULT, FREE) if analysis.n_events <= _MOST_QUICK else (FAULT,)
    demand = Demand(analysis)
    evidence = Evidence(demand, LineCalls(analysis), demand.peak)
    return _worthwhile(_search(evidence, sorts, demand.without), None, demand)


def _worthwhile(
    findings: list[Finding], goal_bytes: int | None, demand: Demand
) -> list[Finding]:
    """Leave out findings that cost something where faults reach the goal.

    Without a goal, leave out those that are free and small, unless another one saves more beside
    them than alone.
    """
    if goal_bytes is None:
        return _large_enough(findings, demand.peak.n_bytes)
    faults = [finding for finding in findings if finding.sort == FAULT]
    if faults and demand.without([fault.change for fault in faults]).n_bytes <= goal_bytes:
        return faults
    return findings


def _large_enough(findings: list[Finding], peak_bytes: int) -> list[Finding]:
    least_bytes = peak_bytes * _LEAST_SHARE
    large = []
    needs_small = False
    for finding in findings:
        if finding.sort == FREE and finding.saved_bytes < least_bytes:
            continue
        large.append(finding)
        n_alone = peak_bytes - finding.peak.n_bytes
        needs_small |= finding.reserved_bytes is None and n_alone < finding.saved_bytes
    if not needs_small:
        return large
    return [finding for finding in findings if finding.sort != FREE or finding.saved_bytes]


def _rank(finding: Finding) -> tuple[object, ...]:
    is_batch = finding.kind == "batch"
    sizes = (-finding.saved_bytes, -finding.held_bytes)
    return finding.sort, is_batch, *sizes, finding.kind, finding.what


def _measured(
    finding: Finding, peak_of: Callable[[Sequence[Change]], Peak], demand: Demand
) -> Finding:
    """Give a finding its final peak; what it saves beside others stays the sum of its blocks."""
    peak = peak_of([finding.change])
    full_bytes = demand.peak.n_bytes
    saved = full_bytes - peak.n_bytes
    if finding.saved_bytes > full_bytes - finding.peak.n_bytes:
        saved = max(saved, finding.saved_bytes)
    return replace(finding, peak=peak, saved_bytes=saved, next_place=demand.place_of(peak))


def _enough(
    findings: Sequence[Finding], goal_bytes: int, demand: Demand
) -> Iterator[tuple[int, ...]]:
    """Yield the findings that reach a goal alone, then the first of the others that do together."""
    small: list[int] = []
    for number, finding in enumerate(findings, 1):
        if finding.peak.n_bytes <= goal_bytes:
            yield (number,)
        else:
            small.append(number)

    def reach(numbers: Sequence[int]) -> bool:
        changes = [findings[number - 1].change for number in numbers]
        return demand.without(changes).n_bytes <= goal_bytes

    if len(small) < 2 or not reach(small):
        return
    numbers = small
    for number in reversed(small):
        remaining = [n for n in numbers if n != number]
        if reach(remaining):
            numbers = remaining
    if numbers:
        yield tuple(numbers)


def goal_of(
    analysis: DeviceAnalysis, *, capacity: int | None, save: int | None
) -> int | None:
    """Return the peak to reach; None where no goal is given and no request failed.

    What is reserved beyond the peak of allocated bytes stays. Where a request failed, the capacity
    is what torch had then.
    """
    if save is not None:
        return max(Demand(analysis).peak.n_bytes - save, 0)
    if capacity is None and analysis.ran_out:
        event = int(analysis.phases.oom_events[0])
        capacity = analysis.replay.reserved.at(event) + int(
            analysis.device.events.addr[event]
        )
    if capacity is None:
        return None
    return max(capacity - kept_cached(analysis), 0)


def kept_cached(analysis: DeviceAnalysis) -> int:
    """Return the bytes that are reserved beyond the peak of allocated ones, and stay so."""
    return max(analysis.replay.reserved.peak - analysis.replay.allocated.peak, 0)


def _contents(analysis: DeviceAnalysis, event: int) -> dict[str, int]:
    totals = summary_totals(analysis, analysis.allocations.live_at(event))
    rows = sorted(totals, key=lambda row: -row.block_bytes)
    return {row.category: row.block_bytes for row in rows if row.block_bytes}


def _why_unknown(analysis: DeviceAnalysis) -> str:
    if analysis.device.is_host:
        return "pinned host memory is on no GPU"
    if analysis.history.verdict is Verdict.NO_TRACE:
        return "the file has no trace: advice needs the history of allocations"
    return ""


def _search(
    evidence: Evidence, sorts: Sequence[str], peak_of: Callable[[Sequence[Change]], Peak]
) -> list[Finding]:
    """Return the faults, then what is free, then the trades, each with the largest first.

    Faults stay in the order of their sums, so that the first is the same with and without a replay.
    """
    kinds = [kind for kind in KINDS if kind.sort in sorts]
    findings = [*_reserved(evidence, kinds), *_allocated(evidence, kinds)]
    findings.sort(key=_rank)
    measured = []
    for finding in findings[:MOST_FINDINGS]:
        measured.append(_measured(finding, peak_of, evidence.demand))
    n_faults = sum(finding.sort == FAULT for finding in measured)
    return measured[:n_faults] + sorted(measured[n_faults:], key=_rank)


# Faults come first, on their own: which ones are found there depends on nothing else. Another may
# save only beside what is free, as gradients that stay through forward do where the optimizer's
# step has the peak.
_PASSES = (((FAULT,), False), ((FREE,), False), ((FAULT,), True), ((FREE, TRADE), False))


class _ChangeLog:
    """The changes of the findings so far: a detector may detect them again in a later round."""

    def __init__(self, n_allocations: int) -> None:
        self.changes: list[Change] = []
        self._is_changed = np.zeros(n_allocations, bool)
        self._keys: set[tuple[str, SourceLine | None]] = set()

    def is_new(self, kind: Kind, detected: Detected) -> bool:
        """Return whether a detection is new: a kind but once, but for faults of other lines.

        A fault is new only if no change has all of its memory.
        """
        line = None
        if kind.sort == FAULT:
            line = detected.where or detected.line
            if self._is_changed[detected.change.rows].all():
                return False
        key = (kind.slug, line)
        is_new = key not in self._keys
        self._keys.add(key)
        return is_new

    def is_settled(self, kind: Kind) -> bool:
        """Return whether a kind that is found but once was detected already."""
        return kind.sort != FAULT and (kind.slug, None) in self._keys

    def add(self, change: Change) -> None:
        self.changes.append(change)
        self._is_changed[change.rows] = True


def _allocated(evidence: Evidence, kinds: Sequence[Kind]) -> list[Finding]:
    """Find faults at the peak, at the peak without them, and so on; then all others so."""
    demand = evidence.demand
    change_log = _ChangeLog(len(evidence.table))
    findings: list[Finding] = []
    for sorts, is_beside in _PASSES:
        if is_beside and not any(finding.sort == FREE for finding in findings):
            continue
        chosen = [kind for kind in kinds if kind.sort in sorts and not kind.is_of_reserved]
        moment = demand.without(change_log.changes) if is_beside else demand.peak
        for _ in range(_ROUNDS):
            evidence = evidence.at(moment)
            new_findings = _round(evidence, chosen, change_log, is_beside=is_beside)
            if not new_findings:
                break
            findings += new_findings
            moment = demand.without(change_log.changes)
    return findings


def _round(
    evidence: Evidence, kinds: Sequence[Kind], change_log: _ChangeLog, *, is_beside: bool
) -> list[Finding]:
    """Return the new findings at one moment, and add their changes to those found before."""
    findings = []
    for kind in kinds:
        if change_log.is_settled(kind):
            continue
        for detected in kind.detect(evidence):
            if not change_log.is_new(kind, detected):
                continue
            finding = _finding(kind, detected, evidence, change_log.changes)
            n_bytes = finding.saved_bytes
            if not is_beside:
                n_held = evidence.demand.bytes_at(finding.change, evidence.moment.event)
                n_bytes = max(n_bytes, n_held)
            if kind.has_any_size or evidence.is_worth(n_bytes):
                change_log.add(detected.change)
                findings.append(finding)
    return findings


def _reserved(evidence: Evidence, kinds: Sequence[Kind]) -> Iterator[Finding]:
    """Find memory that is reserved and not allocated, where a replay shows that less would be.

    Where memory ran out PyTorch had waited for all streams, and returned every cache, before.
    """
    replay = evidence.analysis.replay
    reserved = replay.reserved.peak
    least_bytes = max(LEAST_SHARE_OF_TRADE * reserved, 1)
    # Memory that is allocated at once is reserved in any case.
    if evidence.analysis.ran_out or reserved - replay.allocated.peak < least_bytes:
        return
    for kind in kinds:
        if not kind.is_of_reserved:
            continue
        for detected in kind.detect(evidence):
            saved = evidence.demand.saved_of_reserved(detected.change)
            if saved >= least_bytes:
                finding = _finding(kind, detected, evidence, ())
                yield replace(
                    finding,
                    held_bytes=saved,
                    saved_bytes=saved,
                    reserved_bytes=reserved - saved,
                )


def _finding(
    kind: Kind, detected: Detected, evidence: Evidence, changes: Sequence[Change]
) -> Finding:
    """Measure a change alone, and where another peak hides it, beside the changes found before."""
    demand = evidence.demand
    change = detected.alone or detected.change
    alone = demand.without([change])
    saved = _saved_bytes(detected, demand, alone, changes)
    texts = _sentence_values(kind, detected, demand)
    could_be = kind.look_alikes(detected.could_be)
    wrong_if = kind.wrong_if.format(**texts)
    if could_be and not wrong_if:
        wrong_if = f"the memory holds {', or '.join(could_be)}"
    steps = [step.format(**texts) for step in kind.how]
    return Finding(
        kind=kind.slug,
        sort=kind.sort,
        what=kind.what.format(**texts),
        how=tuple(filter(None, steps)),
        costs=kind.costs.format(**texts),
        wrong_if=wrong_if,
        is_certain=detected.could_be is not None and not could_be,
        could_be=could_be,
        estimated=kind.estimated.format(**texts),
        line=detected.line,
        where=detected.where,
        n_allocations=len(distinct(detected.change.rows)),
        held_bytes=demand.bytes_at(detected.change, demand.peak.event),
        saved_bytes=saved,
        peak=alone,
        change=change,
    )


def _saved_bytes(
    detected: Detected, demand: Demand, alone: Peak, changes: Sequence[Change]
) -> int:
    """Return the bytes that a change saves alone, or beside others if it then saves more."""
    saved = demand.peak.n_bytes - alone.n_bytes
    if changes:
        after = demand.without([*changes, detected.change])
        saved = max(saved, demand.without(changes).n_bytes - after.n_bytes)
    return saved


def _sentence_values(kind: Kind, detected: Detected, demand: Demand) -> dict[str, object]:
    """Return the values that fill the sentences of a kind, those of its detector included."""
    number: Any = detected.values.get("number", 0)
    return {
        **detected.values,
        "kind": device_kind(demand.analysis.device.device),
        "counted": counted(number, kind.noun, kind.plural),
        "line": detected.line.place if detected.line else "library code",
        "where": detected.where.place if detected.where else "library code",
    }
