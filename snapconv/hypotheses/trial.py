"""Trials: the calls of a trace, made to the allocator model under other settings or memory.

``try_out`` is pure, and the same for every question that a replay can answer. Its uncertainties are
in ``Outcome.assumptions``; without any, the outcome is what torch would have done.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.columns import Int64Column, chunks, distinct
from snapconv.hypotheses.allocator_calls import AllocatorCalls
from snapconv.hypotheses.compiled_replay import CompiledReplay, OddCalls
from snapconv.hypotheses.model_replay import ModelReplay
from snapconv.hypotheses.trial_outcome import Outcome, Trial
from snapconv.hypotheses.trial_requests import TrialRequests, requests_of
from snapconv.native.library import core
from snapconv.notes import Progress
from snapconv.units import counted


def try_out(
    calls: AllocatorCalls, trial: Trial, *, progress: Progress | None = None
) -> Outcome:
    """Make the calls of a trace to the allocator model, with a trial's settings and memory.

    The model begins with the memory that the trace begins with: as it was, where the settings place
    blocks as the file's own do, otherwise with the blocks allocated anew in the order of their
    addresses. Frees complete where the trace completed them, or where the device is full.
    """
    compact_calls, rows = calls.compact()

    def work(replay: _Replay) -> None:
        if replay.start():
            _make_all(replay, compact_calls, progress)

    outcome, _ = _replayed(requests_of(compact_calls, trial), work)
    failed = outcome.ran_out
    if failed is not None and failed.row >= 0:
        outcome.ran_out = replace(failed, row=int(rows[failed.row]))
    outcome.assumptions = tuple(_assumptions(calls, outcome))
    return outcome


def block_sizes(calls: AllocatorCalls) -> Int64Column:
    """Return the bytes of every block under the file's own settings without a limit.

    The last entry is that of no block. Small pools split off all that is left, as all do with
    expandable segments: the block is the rounded request. So only the others are replayed.
    """

    def work(replay: _Replay) -> None:
        replay.start()
        if not calls.file_settings.expandable_segments:
            is_replayed = np.array(replay.sizes) > SMALL_REQUEST_BYTES
            _make_all(replay, calls.select(is_replayed[calls.row] | (calls.row < 0)))

    _, sizes = _replayed(requests_of(calls, Trial(calls.file_settings)), work)
    return sizes


def capacity_at_oom(calls: AllocatorCalls, event: int) -> int:
    """Return the bytes that the device had for torch when a request failed (an ``oom`` event).

    Reserved and free memory together. Where the segment would have fit into what was free, a memory
    fraction was the limit: it lies less than that segment above what was reserved, which is
    returned.
    """
    reserved = int(calls.reserved_after[event])
    free = int(calls.events.addr[event])
    segment = calls.file_settings.segment_size(int(calls.events.size[event]))
    return reserved + free if free < segment else reserved


class _Replay(Protocol):
    """A replay, by the compiled core or by its twin.

    ``sizes`` has the rounded request of each row, and from its malloc on the bytes of its block.
    """

    @property
    def sizes(self) -> Sequence[int] | Int64Column:
        """The bytes of every block."""

    def start(self) -> bool:
        """Fill the model with the memory before the first call; False where it does not fit."""

    def make(self, calls: AllocatorCalls) -> bool:
        """Make some calls; False where memory ran out."""


def _replayed(
    requests: TrialRequests, work: Callable[[_Replay], None]
) -> tuple[Outcome, Int64Column]:
    """Replay in the compiled core, or in its twin where there is none or it meets something odd.

    Return the outcome, and the bytes of every block.
    """
    compiled = core()
    if compiled is not None:
        with suppress(OddCalls), CompiledReplay(compiled, requests) as replay:
            work(replay)
            return replay.outcome, np.array(replay.sizes, np.int64)
    twin = ModelReplay(requests)
    work(twin)
    return twin.outcome, np.array(twin.sizes, np.int64)


def _make_all(
    replay: _Replay, calls: AllocatorCalls, progress: Progress | None = None
) -> None:
    """Make all calls, or those until memory runs out."""
    n_calls = len(calls)
    for part in chunks(n_calls):
        if progress:
            progress("replaying", part.start, n_calls)
        if not replay.make(calls.select(part)):
            return


def _assumptions(calls: AllocatorCalls, outcome: Outcome) -> Iterator[str]:
    """List what an outcome assumes beside the trace."""
    trial = outcome.trial
    start = calls.start
    if trial.settings.garbage_collection_threshold and trial.limit is None:
        yield (
            "garbage_collection_threshold did nothing: it needs per_process_memory_fraction "
            "below 1, and a capacity that this is a part of"
        )
    if start.rows and outcome.is_placed_anew:
        placed = f"{counted(len(start.rows), 'block')} from before the trace placed anew"
        yield f"{placed}, in the order of their addresses"
    elif start.n_inexact:
        yield (
            f"{counted(start.n_inexact, 'block')} from before the trace may be "
            f"larger than requested"
        )
    if start.n_outside:
        yield (
            f"left out: {counted(start.n_outside, 'block')} from before the trace "
            f"that no segment has"
        )
    if trial.settings.garbage_collection_threshold and start.segments:
        yield "what was free before the trace is taken as free since it began"
    if len(distinct(calls.stream)) > 1:
        yield (
            "on several streams, freed memory becomes reusable at the same events "
            "as in the trace"
        )
    if calls.n_unsure_returns:
        yield (
            f"{calls.n_unsure_returns} times segments were given back just before others were "
            "got: taken as the allocator's doing on a full device, not as empty_cache()"
        )
    if calls.n_missing:
        yield f"{calls.n_missing} allocs or frees are missing in the trace"
