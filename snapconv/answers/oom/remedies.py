"""Remedies for a failed allocation: each tried by a replay of the trace up to the failed request.

Tried are the findings of ``advise``, all together where none is enough, smaller batches until one is, and
allocator settings. The replay covers the last MOST_EVENTS before the request, since all cost more. The
file's own settings come first: where the request does not fail under these, other replays prove nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.changes import GROWS_WITH_BATCH, Change, changed_calls, scaled_batch
from snapconv.answers.advice.findings import advise, goal_of
from snapconv.answers.advice.trades import FEWER, batch_shares
from snapconv.answers.oom.failed_allocation import OutOfMemory, find_out_of_memory
from snapconv.answers.what_if.calls import AllocatorCalls, CallKind, find_calls
from snapconv.answers.what_if.setting_trials import SEARCHED, candidates, why_refused
from snapconv.answers.what_if.trial import Outcome, Trial, capacity_at_oom, try_out
from snapconv.notes import Progress
from snapconv.units import format_bytes

MOST_EVENTS = 100_000


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that was tried, and whether the request was served; ``detail`` says how well, or why not.

    ``is_setting``: of the allocator, and not of the program. ``how`` is the change, in a sentence.
    ``assumptions`` are those of the change and of its replay; with any, the outcome is an estimate.
    """

    name: str
    is_served: bool
    detail: str
    assumptions: tuple[str, ...]
    is_setting: bool = False
    how: str = ""


@dataclass(frozen=True, slots=True)
class Remedies:
    """The remedies tried for one failed allocation; ``why_none`` where none could be tried."""

    n_events: int
    tried: tuple[Remedy, ...]
    why_none: str = ""


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
    tried: list[Remedy] = []
    for remedy, changed, settings in _attempts(analysis, calls, own, first, tried):
        if progress:
            progress("replaying", len(tried), len(tried) + 1)
        outcome = try_out(changed, Trial(settings, capacity))
        is_served, detail = _result(outcome, event, capacity)
        assumptions = (*remedy.assumptions, *outcome.assumptions)
        tried.append(replace(remedy, is_served=is_served, detail=detail, assumptions=assumptions))
    return Remedies(n_events, tuple(tried))


def _attempts(
    analysis: DeviceAnalysis, calls: AllocatorCalls, own: AllocatorSettings, first: int, tried: list[Remedy]
) -> Iterator[tuple[Remedy, AllocatorCalls, AllocatorSettings]]:
    """Yield changes of the program, then settings other than the file's; ``tried`` gets each one's result."""
    goal = goal_of(analysis, capacity=None, save=None)
    largest, changes = 1.0, list[Change]()
    # Bytes alone may be enough where free memory is in pieces: then no batch is found.
    smaller = Remedy("", False, "", (GROWS_WITH_BATCH,), how=FEWER)
    for finding in advise(analysis, goal_bytes=goal, replays=False).findings:
        estimated = (finding.estimated,) if finding.estimated else ()
        how = finding.how[0].rstrip(";")
        remedy = Remedy(finding.what.removesuffix("."), False, "", estimated, how=how)
        if finding.kind == "batch":
            largest, smaller = finding.change.failed_scale, remedy
        else:
            changes.append(finding.change)
            yield remedy, changed_calls(calls, analysis, changes[-1:]), own
    if len(changes) > 1 and not any(one.is_served for one in tried):
        together = changed_calls(calls, analysis, changes)
        yield Remedy(f"all {len(changes)} changes of the program together", False, "", ()), together, own
    shares = [share for share in batch_shares(analysis) if share <= largest]
    for share in shares:
        changed = changed_calls(calls, analysis, [scaled_batch(analysis, share)])
        yield replace(smaller, name=f"batch or sequence × {share:g}"), changed, own
        if tried[-1].is_served or share == shares[-1]:
            break
        tried.pop()
    last = int(calls.event[-1])
    ends = [i.first_event for i in analysis.iterations[1:] if first < i.first_event <= last]
    if ends:
        name = "empty_cache() at the end of every iteration"
        empty, none = [CallKind.EMPTY_CACHE] * len(ends), [-1] * len(ends)
        yield Remedy(name, False, "", (), is_setting=True), calls.with_others(empty, none, ends), own
    for name, settings in candidates(calls.own, SEARCHED):
        if not why_refused(analysis.snapshot, name, settings):
            yield Remedy(name, False, "", (), is_setting=True), calls, settings


def _result(outcome: Outcome, event: int, capacity: int) -> tuple[bool, str]:
    """Return whether the request of an event was served, and how well, or why not."""
    ran_out = outcome.ran_out
    if event in outcome.served:
        reserved = format_bytes(outcome.ledger.max_reserved_bytes)
        return True, f"reserved at most {reserved} of {format_bytes(capacity)}"
    if ran_out is None or ran_out.event == event:
        return False, "fails at the same request"
    if ran_out.event < 0:
        return False, "the memory of before the trace does not fit"
    return False, f"fails earlier, at event {ran_out.event}"


def _not_reproduced(outcome: Outcome, event: int) -> str:
    """Return why no remedy was tried: replaying the file does not fail the same way."""
    failed = outcome.ran_out.event if outcome.ran_out else event
    where = "before the trace" if failed < 0 else f"at event {failed}"
    end = "serves this request" if event in outcome.served else f"already fails {where}"
    return f"nothing could be tried: a replay of the file as it is {end}"
