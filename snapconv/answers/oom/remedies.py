"""Remedies for a failed allocation: each tried by a replay up to the failed request, then by what follows it.

Tried are the findings of ``advise``, all together where none is enough, smaller batches until one is, and
allocator settings. The replay covers the last MOST_EVENTS before the request, since all cost more, and
leaves LEAST_FREE of the memory free. The file's own settings come first: where the request does not fail
under these, other replays prove nothing. A remedy is enough where the rest of the step fits as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.changes import (
    GROWS_WITH_BATCH,
    Change,
    changed_calls,
    scaled_batch,
)
from snapconv.answers.advice.findings import advise, goal_of
from snapconv.answers.advice.trades import FEWER, batch_shares
from snapconv.answers.growth import find_growth, growth_notes
from snapconv.answers.oom.failed_allocation import OutOfMemory, find_out_of_memory
from snapconv.answers.oom.rest_of_step import RestOfStep
from snapconv.answers.what_if.calls import AllocatorCalls, CallKind, find_calls
from snapconv.answers.what_if.setting_trials import SEARCHED, candidates, why_refused
from snapconv.answers.what_if.trial import Outcome, Trial, capacity_at_oom, try_out
from snapconv.notes import Progress
from snapconv.units import format_bytes

MOST_EVENTS = 100_000
LEAST_FREE = 0.01
# Of what cut blocks and segments took up to the request: what they may take later. In simulated trainings of
# linear layers, torch 2.13, they take 1.7 to 30 %, most with odd batches.
_LATER_PIECES = 1.1
_UNKNOWN = "what the rest of the step needs is not known from this trace"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that was tried: whether the request succeeds, and whether what follows it fits too.

    ``is_served``: it succeeds. ``is_enough``: the whole step fits too, None: that is not known, or it may
    not; ``detail`` says why. ``is_setting``: of the allocator, and not of the program. ``kind`` is that of
    ``advise``, ``how`` the change, in a sentence. ``assumptions`` are those of the change and of its replay;
    with any, the outcome is an estimate.
    """

    name: str
    is_served: bool
    detail: str
    assumptions: tuple[str, ...]
    is_setting: bool = False
    how: str = ""
    kind: str = ""
    is_enough: bool | None = False


@dataclass(frozen=True, slots=True)
class Remedies:
    """The remedies tried for one failed allocation; ``why_none`` where none could be tried.

    ``least_bytes`` must go at least, so that the request succeeds. ``to_come_bytes`` are the most that
    gradients, states and temporaries of weights still take. ``card_bytes`` are enough for the program as it
    is, where that is known. ``is_setup``: weights were being moved; ``model_bytes`` are all of them, 0 where
    the file does not have what is still on the CPU.
    """

    n_events: int
    tried: tuple[Remedy, ...]
    why_none: str = ""
    least_bytes: int = 0
    to_come_bytes: int = 0
    card_bytes: int | None = None
    is_setup: bool = False
    model_bytes: int = 0


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


def find_remedies(analysis: DeviceAnalysis, event: int, *, progress: Progress | None = None) -> Remedies:
    """Try remedies for the request that failed at an event."""
    first = max(event + 1 - MOST_EVENTS, 0)
    calls = find_calls(analysis.snapshot, analysis.device, analysis.replay, first_event=first)
    calls = calls.until(event + 1)
    capacity, own = capacity_at_oom(calls, event), replace(calls.own, memory_fraction=1.0)
    again = try_out(calls, Trial(own, capacity))
    n_events = event + 1 - first
    if event not in again.failed_again:
        return Remedies(n_events, (), _not_reproduced(again, event))
    usable, rest, tried = int(capacity * (1 - LEAST_FREE)), RestOfStep(analysis, event), list[Remedy]()
    # What grows from step to step has no step that shows the most.
    is_known = rest.is_known and not any(growth_notes(analysis, find_growth(analysis)))
    for remedy, changes, others, settings in _attempts(analysis, calls, own, first, tried):
        if progress:
            progress("replaying", len(tried), len(tried) + 1)
        outcome = try_out(changed_calls(others, analysis, changes), Trial(settings, usable))
        is_enough: bool | None = None
        detail = _UNKNOWN
        if event not in outcome.served:
            is_enough, detail = False, "memory still runs out"
        elif is_known:
            needed = _with_pieces(rest.most(changes, remedy.kind), outcome)
            is_enough = True if needed <= usable else None
            most = "needs at most" if is_enough else "may need"
            detail = f"the whole step {most} {format_bytes(needed)} of {format_bytes(capacity)}"
        assumptions = (*remedy.assumptions, *outcome.assumptions)
        is_served = is_enough is not False
        tried.append(
            replace(remedy, is_served=is_served, is_enough=is_enough, detail=detail, assumptions=assumptions)
        )
    needed = analysis.replay.allocated.at(event) + int(analysis.device.events.size[event])
    return Remedies(
        n_events,
        tuple(tried),
        least_bytes=max(needed - usable, 0),
        to_come_bytes=rest.bytes_to_come(),
        card_bytes=int(_with_pieces(rest.most([]), again) / (1 - LEAST_FREE)) if is_known else None,
        is_setup=rest.is_setup,
        model_bytes=_model_bytes(analysis, rest) if rest.is_setup else 0,
    )


def _with_pieces(most: int, outcome: Outcome) -> int:
    """Return what must be reserved for so many allocated bytes, as cut blocks and segments take more."""
    ledger = outcome.ledger
    return int(most * _LATER_PIECES * ledger.max_reserved_bytes / max(ledger.max_allocated_bytes, 1))


def _model_bytes(analysis: DeviceAnalysis, rest: RestOfStep) -> int:
    """Return the bytes of weights, moved or not; 0 where what is on the CPU was not recorded."""
    metadata = analysis.snapshot.metadata
    on_cpu = dict(metadata.facts).get("parameters_on_cpu_bytes", "") if metadata else ""
    return rest.weight_bytes + int(on_cpu) if on_cpu.isdecimal() else 0


def _attempts(
    analysis: DeviceAnalysis,
    calls: AllocatorCalls,
    own: AllocatorSettings,
    first: int,
    tried: list[Remedy],
) -> Iterator[tuple[Remedy, list[Change], AllocatorCalls, AllocatorSettings]]:
    """Yield changes of the program, then settings other than the file's; ``tried`` gets each one's result."""
    goal = goal_of(analysis, capacity=None, save=None)
    largest, changes = 1.0, list[Change]()
    # Bytes alone may be enough where free memory is in pieces: then no batch is found.
    smaller = Remedy("", False, "", (GROWS_WITH_BATCH,), how=FEWER, kind="batch")
    for finding in advise(analysis, goal_bytes=goal, replays=False).findings:
        estimated = (finding.estimated,) if finding.estimated else ()
        how = finding.how[0].rstrip(";")
        remedy = Remedy(finding.what.removesuffix("."), False, "", estimated, how=how, kind=finding.kind)
        if finding.kind == "batch":
            largest, smaller = finding.change.failed_scale, remedy
        else:
            changes.append(finding.change)
            yield remedy, changes[-1:], calls, own
    if len(changes) > 1 and not any(one.is_enough for one in tried):
        name = f"all {len(changes)} changes of the program together"
        yield Remedy(name, False, "", ()), changes, calls, own
    shares = [share for share in batch_shares(analysis) if share <= largest]
    for share in shares:
        remedy = replace(smaller, name=f"batch or sequence × {share:g}")
        yield remedy, [scaled_batch(analysis, share)], calls, own
        if tried[-1].is_enough or tried[-1].detail == _UNKNOWN or share == shares[-1]:
            break
        tried.pop()
    last = int(calls.event[-1])
    ends = [i.first_event for i in analysis.iterations[1:] if first < i.first_event <= last]
    if ends:
        name = "empty_cache() at the end of every iteration"
        empty, none = [CallKind.EMPTY_CACHE] * len(ends), [-1] * len(ends)
        yield Remedy(name, False, "", (), is_setting=True), [], calls.with_others(empty, none, ends), own
    for name, settings in candidates(calls.own, SEARCHED):
        if not why_refused(analysis.snapshot, name, settings):
            yield Remedy(name, False, "", (), is_setting=True), [], calls, settings


def _not_reproduced(outcome: Outcome, event: int) -> str:
    """Return why no remedy was tried: replaying the file does not fail the same way."""
    end = "serves this request" if event in outcome.served else "already fails earlier"
    return f"nothing could be tried: a replay of the file as it is {end}"
