"""Remedies for a failed allocation: each tried by a replay, then by what follows the request.

Tried are the findings of ``advise``, all together where none is enough, smaller batches until one
is, and allocator settings. The replay covers the last MOST_EVENTS up to the request, since all cost
more, and leaves LEAST_FREE of the memory free. The file's own settings come first: where the
request does not fail under these, other replays prove nothing. A remedy is enough where the rest of
the step fits as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.findings import Finding, advise, goal_of
from snapconv.answers.advice.trades import FEWER, batch_shares
from snapconv.answers.oom.failed_allocation import OutOfMemory, find_out_of_memory
from snapconv.answers.oom.rest_of_step import RestOfStep
from snapconv.answers.what_if.setting_trials import SEARCHED, candidates, why_refused
from snapconv.hypotheses.allocator_calls import AllocatorCalls, CallKind, find_calls
from snapconv.hypotheses.batch_growth import GROWS_WITH_BATCH
from snapconv.hypotheses.changes import Change, changed_calls, scaled_batch
from snapconv.hypotheses.trial import capacity_at_oom, try_out
from snapconv.hypotheses.trial_outcome import Outcome, Trial
from snapconv.notes import Progress
from snapconv.units import format_bytes

MOST_EVENTS = 100_000
LEAST_FREE = 0.01
# What cut blocks and segments may take later, as a multiple of what they took up to the request. In
# simulated trainings of linear layers, torch 2.13, they take 1.7 to 30 %, most with odd batches.
_LATER_PIECES = 1.1
_NOW_SERVED = "nothing could be tried: a replay of the file as it is serves this request"
_FAILS_EARLIER = (
    "nothing could be tried: a replay of the file as it is already fails earlier"
)
_UNKNOWN = "what the rest of the step needs is not known from this trace"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that was tried: whether the request succeeds, and what follows it fits too.

    ``is_served``: it succeeds. ``is_enough``: the whole step fits too; None: unknown, or it may
    not; ``detail`` says why. ``is_setting``: of the allocator, and not of the program. ``kind`` is
    that of ``advise``, ``how`` the change, in a sentence. ``assumptions`` are those of the change
    and of its replay; with any, the outcome is an estimate.
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
    failure = find_out_of_memory(analysis, device_total=device_total)
    request = failure.request
    if request is None or not replay:
        return failure, None
    return failure, find_remedies(analysis, request.event, progress=progress)


@dataclass(frozen=True, slots=True)
class _Trials:
    """The calls up to a request that failed, the memory that torch had, and the rest of the step.

    ``usable_bytes`` of the ``capacity`` are those that a remedy may take.
    """

    calls: AllocatorCalls
    capacity: int
    usable_bytes: int
    step: RestOfStep
    progress: Progress | None

    def replayed(
        self,
        remedy: Remedy,
        changes: Sequence[Change] = (),
        *,
        settings: AllocatorSettings | None = None,
    ) -> Remedy:
        """Try a remedy: changes of the program, or of the settings."""
        step = self.step
        calls = changed_calls(self.calls, step.analysis, changes)
        trial = Trial(settings or calls.file_settings, self.usable_bytes)
        outcome = try_out(calls, trial, progress=self.progress)
        is_enough = None
        detail = _UNKNOWN
        if step.event not in outcome.served:
            is_enough = False
            detail = "memory still runs out"
        elif step.is_known:
            n_bytes = _reserved_bytes(step.most_bytes(changes, remedy.kind), outcome)
            is_enough = True if n_bytes <= self.usable_bytes else None
            verb = "needs at most" if is_enough else "may need"
            capacity = format_bytes(self.capacity)
            detail = f"the whole step {verb} {format_bytes(n_bytes)} of {capacity}"
        assumptions = (*remedy.assumptions, *outcome.assumptions)
        is_served = is_enough is not False
        return replace(
            remedy,
            is_served=is_served,
            is_enough=is_enough,
            detail=detail,
            assumptions=assumptions,
        )


def find_remedies(
    analysis: DeviceAnalysis, event: int, *, progress: Progress | None = None
) -> Remedies:
    """Try remedies for the request that failed at an event."""
    end = event + 1
    n_events = min(end, MOST_EVENTS)
    calls = find_calls(
        analysis.snapshot, analysis.device, analysis.replay, first_event=end - n_events
    )
    # The memory that torch had, which is tried, is less than any fraction of the device's.
    calls = replace(
        calls.until(end), file_settings=replace(calls.file_settings, memory_fraction=1.0)
    )
    capacity = capacity_at_oom(calls, event)
    outcome = try_out(calls, Trial(calls.file_settings, capacity))
    if event not in outcome.failed_again:
        return Remedies(
            n_events, (), _NOW_SERVED if event in outcome.served else _FAILS_EARLIER
        )
    step = RestOfStep(analysis, event)
    usable_bytes = int(capacity * (1 - LEAST_FREE))
    trials = _Trials(calls, capacity, usable_bytes, step, progress)
    request_bytes = int(analysis.device.events.size[event])
    excess = analysis.replay.allocated.at(event) + request_bytes - usable_bytes
    card_bytes = None
    if step.is_known:
        card_bytes = int(_reserved_bytes(step.most_bytes([]), outcome) / (1 - LEAST_FREE))
    return Remedies(
        n_events,
        (*_try_changes(trials), *_try_settings(trials)),
        least_bytes=max(excess, 0),
        to_come_bytes=step.bytes_to_come(),
        card_bytes=card_bytes,
        is_setup=step.is_setup,
        is_optimizer_assumed=step.is_assumed,
        model_bytes=_model_bytes(step),
    )


def _try_changes(trials: _Trials) -> list[Remedy]:
    """Try every change of the program, all together where none is enough, and smaller batches."""
    analysis = trials.step.analysis
    goal = goal_of(analysis, capacity=None, save=None)
    # Bytes alone may be enough where free memory is in pieces: then no batch is found.
    smaller_batch = Remedy("", assumptions=(GROWS_WITH_BATCH,), how=FEWER, kind="batch")
    largest_share = 1.0
    changes = []
    remedies = []
    for finding in advise(analysis, goal_bytes=goal, replays=False).findings:
        remedy = _remedy(finding)
        change = finding.change
        if finding.kind == "batch":
            smaller_batch = remedy
            largest_share = change.failed_scale
        else:
            changes.append(change)
            remedies.append(trials.replayed(remedy, [change]))
    if len(changes) > 1 and not any(remedy.is_enough for remedy in remedies):
        together = Remedy(f"all {len(changes)} changes of the program together")
        remedies.append(trials.replayed(together, changes))
    return remedies + _first_enough_batch(trials, smaller_batch, largest_share)


def _first_enough_batch(
    trials: _Trials, smaller_batch: Remedy, largest_share: float
) -> list[Remedy]:
    """Try smaller and smaller batches, and return the first that is enough, or the last."""
    analysis = trials.step.analysis
    remedies: list[Remedy] = []
    for share in batch_shares(analysis):
        if share <= largest_share:
            remedy = replace(smaller_batch, name=f"batch or sequence × {share:g}")
            remedy = trials.replayed(remedy, [scaled_batch(analysis, share)])
            remedies = [remedy]
            if remedy.is_enough or remedy.detail == _UNKNOWN:
                break
    return remedies


def _try_settings(trials: _Trials) -> list[Remedy]:
    """Try an empty cache at every iteration, and settings other than the file's."""
    calls = trials.calls
    analysis = trials.step.analysis
    begins = [iteration.first_event for iteration in analysis.iterations[1:]]
    first_event, last_event = calls.event[[0, -1]].tolist()
    ends = [event for event in begins if first_event < event <= last_event]
    remedies = []
    if ends:
        n_ends = len(ends)
        calls = calls.insert([CallKind.EMPTY_CACHE] * n_ends, [-1] * n_ends, ends)
        remedy = Remedy("empty_cache() at the end of every iteration", is_setting=True)
        remedies.append(replace(trials, calls=calls).replayed(remedy))
    for name, settings in candidates(trials.calls.file_settings, SEARCHED):
        if not why_refused(analysis.snapshot, name, settings):
            remedy = Remedy(name, is_setting=True)
            remedies.append(trials.replayed(remedy, settings=settings))
    return remedies


def _remedy(finding: Finding) -> Remedy:
    """Return a finding as the remedy to try."""
    estimated = (finding.estimated,) if finding.estimated else ()
    instruction = finding.how[0].rstrip(";")
    name = finding.what.removesuffix(".")
    return Remedy(name, assumptions=estimated, how=instruction, kind=finding.kind)


def _reserved_bytes(allocated_bytes: int, outcome: Outcome) -> int:
    """Return what must be reserved for so many allocated bytes.

    That is more than they are, since blocks and segments are cut.
    """
    ledger = outcome.ledger
    most_reserved = allocated_bytes * _LATER_PIECES * ledger.max_reserved_bytes
    return int(most_reserved / max(ledger.max_allocated_bytes, 1))


def _model_bytes(step: RestOfStep) -> int:
    """Return the bytes of the weights that are being placed; 0 where they are not known.

    They are known where the file has the bytes on the CPU. With nothing there, a model is built on
    the device or moved from none, and what it still lacks is not known.
    """
    cpu_text = step.analysis.snapshot.facts.get("parameters_on_cpu_bytes", "")
    cpu_bytes = int(cpu_text) if cpu_text.isdecimal() else 0
    return step.weight_bytes + cpu_bytes if step.is_setup and cpu_bytes else 0
