"""Remedies for a failed allocation: each tried by a replay up to the failed request, then by what follows it.

Tried are the findings of ``advise``, all together where none is enough, smaller batches until one is, and
allocator settings. The replay covers the last MOST_EVENTS before the request, since all cost more, and
leaves LEAST_FREE of the memory free. The file's own settings come first: where the request does not fail
under these, other replays prove nothing. A remedy is enough where the rest of the step fits as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.changes import (
    GROWS_WITH_BATCH,
    Change,
    Demand,
    changed_calls,
    combined,
    failed_grows,
    removed,
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
# Of what is allocated: what cut blocks and segments take more, at least, and beyond what they took up to the
# request. In simulated trainings of linear layers, torch 2.13, it is 1.7 to 30 %, most with odd batches.
_LEAST_FOR_PIECES, _MORE_FOR_PIECES = 0.1, 0.05
# What keeps memory from growing from step to step.
_ENDS_GROWTH = ("growing", "graphs-kept")


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that was tried: whether the request succeeds, and whether what follows it fits too.

    ``is_served``: it succeeds; ``detail`` says how well, or why not. ``is_enough``: this step and the next
    fit, None: that is not known, or they may not; ``rest`` says why. ``is_setting``: of the allocator, and
    not of the program. ``kind`` is that of ``advise``, ``how`` the change, in a sentence. ``assumptions`` are
    those of the change and of its replay; with any, the outcome is an estimate.
    """

    name: str
    is_served: bool
    detail: str
    assumptions: tuple[str, ...]
    is_setting: bool = False
    how: str = ""
    kind: str = ""
    is_enough: bool | None = False
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Remedies:
    """The remedies tried for one failed allocation; ``why_none`` where none could be tried.

    ``least_bytes`` must go at least, so that the request succeeds. ``to_come`` lists what the step still
    makes. ``card_bytes`` are enough for the program as it is, where that is known. ``is_setup``: weights were
    being moved: ``model_bytes`` in all, of which ``unmoved_bytes`` are still on the CPU, as far as recorded.
    """

    n_events: int
    tried: tuple[Remedy, ...]
    why_none: str = ""
    least_bytes: int = 0
    to_come: str = ""
    card_bytes: int | None = None
    is_setup: bool = False
    unmoved_bytes: int = 0
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
    n_events, rest = event + 1 - first, RestOfStep(analysis, event)
    if event not in again.failed_again:
        return Remedies(n_events, (), _not_reproduced(again, event))
    usable, tried = int(capacity * (1 - LEAST_FREE)), list[Remedy]()
    grows = any(growth_notes(analysis, find_growth(analysis)))
    for remedy, changes, changed, settings in _attempts(analysis, calls, own, first, tried):
        if progress:
            progress("replaying", len(tried), len(tried) + 1)
        outcome = try_out(changed, Trial(settings, capacity))
        is_served, detail = _result(outcome, event, capacity)
        remedy = replace(remedy, is_served=is_served, detail=detail)
        is_tight = outcome.ledger.max_reserved_bytes > usable
        # Cached memory may have filled the device, and goes back where it is not enough.
        if is_served and is_tight and event not in try_out(changed, Trial(settings, usable)).served:
            remedy = replace(remedy, detail=f"{detail}, which leaves less than 1 %")
        elif is_served:
            most = rest.most_after(combined(analysis, changes), remedy.kind)
            is_enough, what = _rest(rest, most, outcome, (usable, capacity))
            if grows and remedy.kind not in _ENDS_GROWTH:
                is_enough, what = None, "memory grows from step to step, so that a later one fails"
            remedy = replace(remedy, is_enough=is_enough, rest=what)
        tried.append(replace(remedy, assumptions=(*remedy.assumptions, *outcome.assumptions)))
    most = None if grows else rest.most_after(removed(analysis, np.zeros(0, np.int64)))
    needed = analysis.replay.allocated.at(event) + int(analysis.device.events.size[event])
    metadata = analysis.snapshot.metadata
    facts = dict(metadata.facts) if metadata and rest.is_setup else {}
    unmoved = facts.get("parameters_on_cpu_bytes", "")
    n_unmoved = int(unmoved) if unmoved.isdecimal() else 0
    return Remedies(
        n_events,
        tuple(tried),
        least_bytes=max(needed - usable, 0),
        to_come=rest.to_come(),
        card_bytes=None if most is None else int(_with_pieces(most, again) / (1 - LEAST_FREE)),
        is_setup=rest.is_setup,
        unmoved_bytes=n_unmoved,
        model_bytes=rest.weight_bytes + n_unmoved if rest.is_setup else 0,
    )


def _rest(
    rest: RestOfStep, most: int | None, outcome: Outcome, memory: tuple[int, int]
) -> tuple[bool | None, str]:
    """Say whether the rest of the step fits, and what it needs; None: that is not known."""
    usable, capacity = memory
    if most is None:
        return None, rest.why_unknown()
    needed = _with_pieces(most, outcome)
    size = f"{format_bytes(needed)} of {format_bytes(capacity)}"
    if needed > usable:
        return None, f"what follows may need {size}"
    return True, f"this step and the next need at most {size}"


def _with_pieces(most: int, outcome: Outcome) -> int:
    """Return what must be reserved for so many allocated bytes, as cut blocks and segments take more."""
    ledger = outcome.ledger
    seen = ledger.max_reserved_bytes / max(ledger.max_allocated_bytes, 1) - 1 + _MORE_FOR_PIECES
    return int(max(most * (1 + max(seen, _LEAST_FOR_PIECES)), most + outcome.enclosed_bytes))


def _attempts(
    analysis: DeviceAnalysis, calls: AllocatorCalls, own: AllocatorSettings, first: int, tried: list[Remedy]
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
            largest, smaller = float(np.min(finding.change.failed_scale)), remedy
        else:
            changes.append(finding.change)
            yield remedy, changes[-1:], changed_calls(calls, analysis, changes[-1:]), own
    if len(changes) > 1 and not any(one.is_enough for one in tried):
        together = changed_calls(calls, analysis, changes)
        name = f"all {len(changes)} changes of the program together"
        yield Remedy(name, False, "", ()), changes, together, own
    shares = [share for share in batch_shares(analysis) if share <= largest]
    for remedy, change in _smaller_batches(analysis, int(calls.event[-1]), shares, smaller, tried):
        yield remedy, [change], changed_calls(calls, analysis, [change]), own
    last = int(calls.event[-1])
    ends = [i.first_event for i in analysis.iterations[1:] if first < i.first_event <= last]
    if ends:
        name = "empty_cache() at the end of every iteration"
        empty, none = [CallKind.EMPTY_CACHE] * len(ends), [-1] * len(ends)
        yield Remedy(name, False, "", (), is_setting=True), [], calls.with_others(empty, none, ends), own
    for name, settings in candidates(calls.own, SEARCHED):
        if not why_refused(analysis.snapshot, name, settings):
            yield Remedy(name, False, "", (), is_setting=True), [], calls, settings


def _smaller_batches(
    analysis: DeviceAnalysis, event: int, shares: Sequence[float], smaller: Remedy, tried: list[Remedy]
) -> Iterator[tuple[Remedy, Change]]:
    """Yield smaller batches until one is enough; ``tried`` keeps that one, else the first that is served."""
    n_others = len(tried)
    for share in shares:
        change = scaled_batch(analysis, share)
        if not (failed_grows(analysis, event) or Demand(analysis).bytes_at(change, event)):
            detail = "neither the request nor what is in use grows with it"
            tried.append(replace(smaller, name="a smaller batch or sequence", detail=detail))
            return
        remedy = replace(smaller, name=f"batch or sequence × {share:g}")
        yield remedy, change
        if tried[-1].is_enough:
            tried[n_others:-1] = []
            return
    served = [one for one in tried[n_others:] if one.is_enough is None]
    tried[n_others:] = (served or tried[n_others:][-1:])[:1]


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
