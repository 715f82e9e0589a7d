"""Remedies for a failed allocation: each tried by a replay of the trace up to the failed request.

What is tried: the findings of ``advise``, a smaller batch, and settings of the allocator. The replay begins
some events before the request, with the memory of that moment, because a replay of all costs more. The file's
own settings are tried first: where the request does not fail under these, other replays prove nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.changes import Change
from snapconv.answers.advice.findings import Finding, advise
from snapconv.answers.what_if.batch_scale import scale_batch
from snapconv.answers.what_if.calls import AllocatorCalls, find_calls
from snapconv.answers.what_if.setting_trials import candidates, scaled_calls
from snapconv.answers.what_if.trial import Outcome, Trial, capacity_at_oom, try_out
from snapconv.notes import Progress
from snapconv.units import format_bytes

MOST_EVENTS = 100_000
# Shares of the batch that are tried, the largest that suffices by bisection.
_BATCHES = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.125, 0.1, 0.05)


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that was tried, and whether the request was served; ``detail`` says how well, or why not.

    ``is_setting``: of the allocator, and not of the program. ``how`` is the change, in a sentence.
    ``assumptions`` are those of the replay; with any, the outcome is an estimate.
    """

    name: str
    is_served: bool
    detail: str
    assumptions: tuple[str, ...]
    is_setting: bool = False
    how: str = ""


@dataclass(frozen=True, slots=True)
class Remedies:
    """The remedies tried for one failed allocation; ``why_none`` where nothing could be."""

    n_events: int
    tried: tuple[Remedy, ...]
    why_none: str = ""


def find_remedies(
    analysis: DeviceAnalysis,
    event: int,
    *,
    thorough: bool = False,
    progress: Progress | None = None,
) -> Remedies:
    """Try to get past the request that failed at an event; ``thorough``: by the whole trace."""
    first = 0 if thorough else max(event + 1 - MOST_EVENTS, 0)
    tries = _Tries(analysis, first, event)
    again = tries.outcome(tries.calls, tries.own)
    n_events = event + 1 - first
    if event not in again.failed_again:
        return Remedies(n_events, (), _not_reproduced(again, event))
    tried: list[Remedy] = []
    for remedy in tries.all():
        if progress:
            progress("replaying", len(tried), len(tried) + 1)
        tried.append(remedy)
    return Remedies(n_events, tuple(tried))


class _Tries:
    """Replays of the calls up to a failed request, with the memory that torch had then."""

    def __init__(self, analysis: DeviceAnalysis, first: int, event: int) -> None:
        self.analysis, self.first, self.event = analysis, first, event
        self.calls = self._calls()
        self.own = replace(self.calls.own, memory_fraction=1.0)
        self.capacity = capacity_at_oom(self.calls, event)

    def outcome(
        self, calls: AllocatorCalls, settings: AllocatorSettings, *, is_placed_anew: bool = False
    ) -> Outcome:
        """Replay calls under settings."""
        trial = Trial(settings, self.capacity, device_bytes=self.capacity, is_placed_anew=is_placed_anew)
        return try_out(calls, trial)

    def all(self) -> Iterator[Remedy]:
        """Try changes of the program, the batch, then settings that the file does not have already."""
        for finding in advise(self.analysis, trades=True).findings:
            outcome = self.outcome(self._changed(finding.change), self.own)
            yield _remedy(_name(finding), outcome, self.event, how=finding.how[0])
        yield from self._smaller_batch()
        ends = [i.first_event for i in self.analysis.iterations[1:]]
        if ends := [end for end in ends if self.first < end <= self.event]:
            emptied = self._calls(empty_cache_before=ends)
            outcome = self.outcome(emptied, self.own)
            yield _remedy("empty_cache() at the end of every iteration", outcome, self.event, is_setting=True)
        for candidate, settings in candidates(self.calls.own):
            if candidate.in_oom:
                outcome = self.outcome(self.calls, settings)
                yield _remedy(candidate.shown or candidate.conf, outcome, self.event, is_setting=True)

    def _calls(
        self, *, freed_before: dict[int, int] | None = None, empty_cache_before: Sequence[int] = ()
    ) -> AllocatorCalls:
        """Find the calls up to the failed request."""
        return find_calls(
            self.analysis.snapshot,
            self.analysis.device,
            self.analysis.replay,
            first_event=self.first,
            freed_before=freed_before,
            empty_cache_before=empty_cache_before,
        ).until(self.event + 1)

    def _changed(self, change: Change) -> AllocatorCalls:
        """Find the calls of the changed program: allocations that are not made, freed earlier, or smaller."""
        table = self.analysis.allocations
        alloc, whole = table.alloc_event[change.rows], table.block_bytes[change.rows]
        is_whole = change.n_bytes >= whole
        is_in_window = alloc >= self.first
        is_missing = is_whole & is_in_window & (change.first <= alloc)
        is_early = is_whole & ~is_missing & (change.first <= self.event) & (change.last > self.event)
        at = np.maximum(change.first, self.first)[is_early]
        freed_before = dict(zip(change.rows[is_early].tolist(), at.tolist(), strict=True))
        calls = self._calls(freed_before=freed_before)
        kept = ~np.isin(calls.row, change.rows[is_missing])
        sizes = calls.requested_bytes.copy()
        part = change.rows[~is_whole]
        share = 1 - change.n_bytes[~is_whole] / np.maximum(whole[~is_whole], 1)
        sizes[part] = np.maximum(sizes[part] * share, 1).astype(np.int64)
        return replace(
            calls,
            operation=calls.operation[kept],
            row=calls.row[kept],
            event=calls.event[kept],
            requested_bytes=sizes,
        )

    def _smaller_batch(self) -> Iterator[Remedy]:
        """Find the largest share of the batch that gets past the request."""
        first, after, best = 0, len(_BATCHES), None
        while first < after:
            middle = (first + after) // 2
            scaled = scale_batch(self.analysis, _BATCHES[middle])
            calls = scaled_calls(self.calls, scaled)
            outcome = self.outcome(calls, self.own, is_placed_anew=True)
            if self.event in outcome.served:
                best, after = (_BATCHES[middle], outcome, scaled.how), middle
            else:
                first = middle + 1
        if best:
            share, outcome, how = best
            remedy = _remedy(f"batch or sequence × {share:g}", outcome, self.event)
            yield replace(remedy, assumptions=(how, *remedy.assumptions))


def _name(finding: Finding) -> str:
    return finding.what.removesuffix(".")


def _remedy(name: str, outcome: Outcome, event: int, *, is_setting: bool = False, how: str = "") -> Remedy:
    is_served = event in outcome.served
    ran_out = outcome.ran_out
    if is_served:
        detail = f"reserved at most {format_bytes(outcome.peak_reserved)}"
    elif ran_out is None or ran_out.event == event:
        detail = "fails at the same request"
    elif ran_out.event < 0:
        detail = "the memory of before the trace does not fit"
    else:
        detail = f"fails earlier, at event {ran_out.event}"
    return Remedy(name, is_served, detail, outcome.assumptions, is_setting, how)


def _not_reproduced(outcome: Outcome, event: int) -> str:
    """Why nothing is tried: the replay of the file as it is has another end."""
    if event in outcome.served:
        return "a replay under the file's own settings serves the request: what others do would say nothing"
    failed = outcome.ran_out.event if outcome.ran_out else event
    where = "before the trace" if failed < 0 else f"at event {failed}"
    return f"a replay under the file's own settings fails {where} already: what others do would say nothing"
