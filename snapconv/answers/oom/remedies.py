"""Remedies for a failed allocation: each tried by a replay up to the failed request, then by what follows it.

Tried are the findings of ``advise``, all together where none is enough, smaller batches until one
is, and allocator settings. The replay covers the last MOST_EVENTS before the request, since all
cost more, and leaves LEAST_FREE of the memory free. The file's own settings come first: where the
request does not fail under these, other replays prove nothing. A remedy is enough where the rest of
the step fits as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.changes import (
    GROWS_WITH_BATCH,
    Change,
    changed_calls,
    scaled_batch,
)
from snapconv.answers.advice.findings import Finding, advise, goal_of
from snapconv.answers.advice.trades import FEWER, batch_shares
from snapconv.answers.oom.failed_allocation import OutOfMemory, find_out_of_memory
from snapconv.answers.oom.rest_of_step import RestOfStep
from snapconv.answers.what_if.calls import AllocatorCalls, CallKind, find_calls
from snapconv.answers.what_if.setting_trials import SEARCHED, candidates, why_refused
from snapconv.answers.what_if.trial import Outcome, Trial, capacity_at_oom, try_out
from snapconv.notes import Progress
from snapconv.units import format_bytes

MOST_EVENTS = 100_000
LEAST_FREE = 0.01
# Of what cut blocks and segments took up to the request: what they may take later. In simulated
# trainings of linear layers, torch 2.13, they take 1.7 to 30 %, most with odd batches.
_LATER_PIECES = 1.1
_NOW_SERVED = "nothing could be tried: a replay of the file as it is serves this request"
_FAILS_EARLIER = "nothing could be tried: a replay of the file as it is already fails earlier"
_UNKNOWN = "what the rest of the step needs is not known from this trace"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that was tried: whether the request succeeds, and whether what follows it fits too.

    ``is_served``: it succeeds. ``is_enough``: the whole step fits too; None: unknown, or it may
    not; ``detail`` says why. ``is_setting``: of the allocator, and not of the program. ``kind`` is
    that of ``advise``, ``how`` the change, in a sentence. ``assumptions`` are those of the change
    and of its replay;
    with any, the outcome is an estimate.
    """

    name: str
    is_served: bool = False
    detail: str = ""
    assumptions: tuple[str, ...] = ()
    is_setting: bool = False
    how: str = ""
    kind: str = ""
    is_enough: bool | None = False


@dataclass(frozen=True, slots=True)
class Remedies:
    """The remedies tried for one failed allocation; ``why_none`` where none could be tried.

    ``least_bytes`` must be freed at least for the request to succeed. ``to_come_bytes`` are the
    most that gradients, states and temporaries of weights still take. ``card_bytes`` are enough for
    the program as it is, where that is known. ``is_setup``: the model was being put on the device;
    ``model_bytes`` are all of its weights and buffers, 0 where the file does not have what is still
    on the CPU.
    ``is_optimizer_assumed``: no step shows the optimizer.
    """

    n_events: int
    tried: tuple[Remedy, ...]
    why_none: str = ""
    least_bytes: int = 0
    to_come_bytes: int = 0
    card_bytes: int | None = None
    is_setup: bool = False
    model_bytes: int = 0
    is_optimizer_assumed: bool = False


def explain_oom(
    analysis: DeviceAnalysis,
    *,
    device_total: int | None = None,
    replay: bool = True,
    progress: Progress | None = None,
) -> tuple[OutOfMemory, Remedies | None]:
    """Explain the first failed request of a device; see ``Session.explain_oom``."""
    found = find_out_of_memory(analysis, device_total=device_total)
    if found.request is None or not replay:
        return found, None
    return found, find_remedies(analysis, found.request.event, progress=progress)


@dataclass(frozen=True, slots=True)
class _Trials:
    """The calls up to a request that failed, the memory that torch had, and the rest of the step.

    ``usable_bytes`` of the ``capacity`` are those that a remedy may take.
    """

    calls: AllocatorCalls
    capacity: int
    usable_bytes: int
    rest: RestOfStep
    progress: Progress | None

    def replayed(
        self,
        remedy: Remedy,
        changes: Sequence[Change] = (),
        *,
        settings: AllocatorSettings | None = None,
    ) -> Remedy:
        """Try a remedy: changes of the program, or of the settings."""
        calls = changed_calls(self.calls, self.rest.analysis, changes)
        rest = self.rest
        trial = Trial(settings or calls.own, self.usable_bytes)
        outcome = try_out(calls, trial, progress=self.progress)
        is_enough = None
        detail = _UNKNOWN
        if rest.event not in outcome.served:
            is_enough = False
            detail = "memory still runs out"
        elif rest.is_known:
            needed = _with_pieces(rest.most(changes, remedy.kind), outcome)
            is_enough = True if needed <= self.usable_bytes else None
            most = "needs at most" if is_enough else "may need"
            detail = (
                f"the whole step {most} {format_bytes(needed)} of {format_bytes(self.capacity)}"
            )
        assumptions = (*remedy.assumptions, *outcome.assumptions)
        is_served = is_enough is not False
        return replace(
            remedy, is_served=is_served, is_enough=is_enough, detail=detail, assumptions=assumptions
        )


def find_remedies(
    analysis: DeviceAnalysis, event: int, *, progress: Progress | None = None
) -> Remedies:
    """Try remedies for the request that failed at an event."""
    first = max(event + 1 - MOST_EVENTS, 0)
    calls = find_calls(analysis.snapshot, analysis.device, analysis.replay, first_event=first)
    # The memory that torch had, which is tried, is less than any fraction of the device's.
    calls = replace(calls.until(event + 1), own=replace(calls.own, memory_fraction=1.0))
    capacity = capacity_at_oom(calls, event)
    n_events = event + 1 - first
    again = try_out(calls, Trial(calls.own, capacity))
    if event not in again.failed_again:
        return Remedies(n_events, (), _NOW_SERVED if event in again.served else _FAILS_EARLIER)
    rest = RestOfStep(analysis, event)
    usable = int(capacity * (1 - LEAST_FREE))
    trials = _Trials(calls, capacity, usable, rest, progress)
    needed = analysis.replay.allocated.at(event) + int(analysis.device.events.size[event])
    return Remedies(
        n_events,
        (*_changes_tried(trials), *_settings_tried(trials)),
        least_bytes=max(needed - usable, 0),
        to_come_bytes=rest.bytes_to_come(),
        card_bytes=int(_with_pieces(rest.most([]), again) / (1 - LEAST_FREE))
        if rest.is_known
        else None,
        is_setup=rest.is_setup,
        is_optimizer_assumed=rest.is_assumed,
        model_bytes=_model_bytes(rest),
    )


def _changes_tried(trials: _Trials) -> Iterator[Remedy]:
    """Try every change of the program, all together where none is enough, and smaller batches."""
    analysis = trials.rest.analysis
    goal = goal_of(analysis, capacity=None, save=None)
    findings = advise(analysis, goal_bytes=goal, replays=False).findings
    others = [finding for finding in findings if finding.kind != "batch"]
    tried = [trials.replayed(_remedy(finding), [finding.change]) for finding in others]
    yield from tried
    if len(others) > 1 and not any(remedy.is_enough for remedy in tried):
        together = Remedy(f"all {len(others)} changes of the program together")
        yield trials.replayed(together, [finding.change for finding in others])
    # Bytes alone may be enough where free memory is in pieces: then no batch is found.
    smaller = Remedy("", assumptions=(GROWS_WITH_BATCH,), how=FEWER, kind="batch")
    largest = 1.0
    for finding in findings:
        if finding.kind == "batch":
            smaller = _remedy(finding)
            largest = finding.change.failed_scale
    yield from _first_enough_batch(trials, smaller, largest)


def _first_enough_batch(trials: _Trials, smaller: Remedy, largest: float) -> list[Remedy]:
    """Try smaller and smaller batches, and return the first that is enough, or the last."""
    tried: list[Remedy] = []
    for share in batch_shares(trials.rest.analysis):
        if share <= largest:
            named = replace(smaller, name=f"batch or sequence × {share:g}")
            tried = [trials.replayed(named, [scaled_batch(trials.rest.analysis, share)])]
            if tried[0].is_enough or tried[0].detail == _UNKNOWN:
                break
    return tried


def _settings_tried(trials: _Trials) -> Iterator[Remedy]:
    """Try an empty cache at every iteration, and settings other than the file's."""
    calls = trials.calls
    analysis = trials.rest.analysis
    first = int(calls.event[0])
    begins = [iteration.first_event for iteration in analysis.iterations[1:]]
    ends = [event for event in begins if first < event <= int(calls.event[-1])]
    if ends:
        empty = calls.with_others([CallKind.EMPTY_CACHE] * len(ends), [-1] * len(ends), ends)
        remedy = Remedy("empty_cache() at the end of every iteration", is_setting=True)
        yield replace(trials, calls=empty).replayed(remedy)
    for name, settings in candidates(calls.own, SEARCHED):
        if not why_refused(analysis.snapshot, name, settings):
            yield trials.replayed(Remedy(name, is_setting=True), settings=settings)


def _remedy(finding: Finding) -> Remedy:
    """Return a finding as the remedy to try."""
    estimated = (finding.estimated,) if finding.estimated else ()
    how = finding.how[0].rstrip(";")
    name = finding.what.removesuffix(".")
    return Remedy(name, assumptions=estimated, how=how, kind=finding.kind)


def _with_pieces(most: int, outcome: Outcome) -> int:
    """Return what must be reserved for so many allocated bytes, as cut blocks and segments take more."""
    ledger = outcome.ledger
    return int(
        most * _LATER_PIECES * ledger.max_reserved_bytes / max(ledger.max_allocated_bytes, 1)
    )


def _model_bytes(rest: RestOfStep) -> int:
    """Return the bytes of the weights that are being placed; 0 where what is on the CPU was not recorded.

    With nothing there, a model is built on the device or moved from none: the rest of it is not
    known.
    """
    on_cpu = rest.analysis.snapshot.facts.get("parameters_on_cpu_bytes", "")
    is_moved = rest.is_setup and on_cpu.isdecimal() and int(on_cpu) > 0
    return rest.weight_bytes + int(on_cpu) if is_moved else 0
