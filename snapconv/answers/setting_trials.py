"""What one device would have needed under other settings, or on another card: trials, beside the record."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from snapconv.allocator.allocator_settings import (
    MIN_BLOCK_BYTES,
    MODELLED_SETTINGS,
    AllocatorSettings,
    split_conf,
)
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.allocator_calls import AllocatorCalls, find_calls
from snapconv.answers.batch_scale import MOST_BYTES, ScaledSizes
from snapconv.answers.device_memory import device_memory
from snapconv.answers.model_check import ModelCheck, check_model
from snapconv.answers.what_if import Outcome, Trial, capacity_at_oom, try_out
from snapconv.errors import InputError, SettingError
from snapconv.notes import Progress
from snapconv.replay.device_replay import Replay
from snapconv.replay.history_verdict import History, Verdict
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.units import device_name, format_bytes

OWN = "the file's own settings"
OWN_PLACED_ANEW = f"{OWN}, placed anew"
# What --search tries: each changes the file's own settings.
SEARCHED = (
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:16",
    "max_split_size_mb:128,roundup_power2_divisions:16",
)
# Collection works with a memory fraction only, and a fraction is of a known capacity.
SEARCHED_WITH_CAPACITY = ("garbage_collection_threshold:0.8,per_process_memory_fraction:0.99",)


@dataclass(frozen=True, slots=True)
class Request:
    """What is tried: alternatives to the file's settings, each as PYTORCH_ALLOC_CONF is written, and memory.

    ``capacity`` is what torch can have, None: as much as it likes, or, in a file with a failed request, what
    it had then. ``card_bytes`` in its place is a whole card, with ``outside_bytes`` that are not torch's;
    None: as many as the file shows.
    """

    settings: tuple[str, ...] = ()
    is_search: bool = False
    capacity: int | None = None
    card_bytes: int | None = None
    outside_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the file itself shows."""

    peak_reserved: int
    peak_allocated: int
    n_segment_allocs: int
    n_segment_maps: int
    n_ooms: int


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial: its settings as given, and its outcome."""

    name: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class SettingTrials:
    """All trials of one device, at ``scale`` times the batch.

    ``capacity_from`` says where the capacity is from; empty: it was given, or there is none.
    ``tried`` begins with the file's own settings; after a search the others are ranked: those that do not run
    out of memory first, the least reserved first. ``estimated`` are reasons why the figures are estimates.
    """

    device: int
    n_events: int
    recorded: Recorded
    capacity: int | None
    capacity_from: str
    scale: float
    tried: tuple[Tried, ...]
    check: ModelCheck
    estimated: tuple[str, ...]


def read_setting(text: str) -> str:
    """Check a setting that is to be tried; raises ValueError with what the model has."""
    try:
        values = split_conf(text)
        AllocatorSettings.from_conf(text)
    except SettingError as error:
        raise ValueError(str(error).removeprefix("allocator settings: ")) from error
    if not values:
        raise ValueError("expected key:value, got nothing")
    unknown = [key for key in values if key not in MODELLED_SETTINGS]
    if unknown:
        raise ValueError(
            f"the model has no setting {unknown[0]!r}, or it moves no blocks; "
            f"it has: {', '.join(MODELLED_SETTINGS)}"
        )
    if values.get("expandable_segments", "True") not in ("True", "False"):
        raise ValueError(f"expandable_segments must be True or False, got {values['expandable_segments']!r}")
    return text


def try_settings(
    analysis: DeviceAnalysis,
    request: Request,
    *,
    scaled: ScaledSizes | None = None,
    progress: Progress | None = None,
) -> SettingTrials:
    """Replay one device under its own settings and under each of the others.

    ``scaled`` replaces what the allocations requested. Raises InputError where a card is requested and what
    lies outside of torch is not known.
    """
    device, replayed = analysis.device, analysis.replay
    calls = find_calls(analysis.snapshot, device, replayed)
    check = check_model(calls, device, replayed.allocations.addr, progress=progress)
    capacity, capacity_from = _capacity(analysis, calls, request)
    if scaled is not None:
        calls = _scaled_calls(calls, scaled)
    request = replace(request, capacity=capacity)
    tried = _try_all(calls, request, is_placed_anew=scaled is not None, progress=progress)
    return SettingTrials(
        device=device.device,
        n_events=len(device.events),
        recorded=_recorded(device, replayed),
        capacity=capacity,
        capacity_from=capacity_from,
        tried=tuple(tried),
        check=check,
        scale=1.0 if scaled is None else scaled.scale,
        estimated=(
            *([] if scaled is None else [f"batch × {scaled.scale:g}: {scaled.how}"]),
            *_reasons(check, analysis.history, [one.outcome for one in tried]),
        ),
    )


def _numbered(progress: Progress | None, number: int, n_all: int) -> Progress | None:
    """The same progress, that says which of the alternatives it is of."""
    if progress is None:
        return None
    return lambda stage, done, total: progress(f"{stage}, alternative {number} of {n_all}", done, total)


def _trial(calls: AllocatorCalls, settings: AllocatorSettings, request: Request) -> Trial:
    """One trial; without a card, what torch can have is what the file's own memory fraction left."""
    device_bytes, fraction = request.card_bytes, settings.memory_fraction
    if device_bytes is None and request.capacity is not None and 0 < fraction == calls.own.memory_fraction:
        device_bytes = math.ceil(min(request.capacity / fraction, MOST_BYTES))
    return Trial(settings, request.capacity, device_bytes)


def _scaled_calls(calls: AllocatorCalls, scaled: ScaledSizes) -> AllocatorCalls:
    """The same calls for other sizes; what failed is taken to grow with the batch."""
    events = calls.events
    is_failed = events.action == Action.OOM
    grown = np.minimum(events.size * scaled.scale, MOST_BYTES).astype(np.int64)
    size = np.where(is_failed, grown - grown % -MIN_BLOCK_BYTES, events.size)
    return replace(calls, requested_bytes=scaled.requested_bytes, events=replace(events, size=size))


def _try_all(
    calls: AllocatorCalls, request: Request, *, is_placed_anew: bool, progress: Progress | None
) -> list[Tried]:
    """The file's own settings, then the alternatives."""
    own = replace(_trial(calls, calls.own, request), is_placed_anew=is_placed_anew)
    others = [(text, _trial(calls, calls.own.changed(text), request)) for text in _texts(request)]
    others = [(text, replace(trial, is_placed_anew=is_placed_anew)) for text, trial in others]
    others = [(text, trial) for text, trial in others if _differs(trial.settings, calls.own)]
    tried = [Tried(OWN, try_out(calls, own, progress=progress))]
    tried_others = []
    for number, (text, trial) in enumerate(others):
        shown = _numbered(progress, number + 1, len(others))
        tried_others.append(Tried(text, try_out(calls, trial, progress=shown)))
    if request.is_search:
        tried_others.sort(key=lambda one: (one.outcome.ran_out is not None, one.outcome.peak_reserved))
    if calls.start.rows and {one.outcome.is_placed_anew for one in (*tried, *tried_others)} == {False, True}:
        # Beside trials that had to begin otherwise, the same beginning under the file's own settings.
        anew = replace(own, is_placed_anew=True)
        tried.append(Tried(OWN_PLACED_ANEW, try_out(calls, anew, progress=progress)))
    return [*tried, *tried_others]


def _differs(settings: AllocatorSettings, own: AllocatorSettings) -> bool:
    return replace(settings, conf=own.conf) != own


def _texts(request: Request) -> Iterator[str]:
    yield from request.settings
    if request.is_search:
        yield from (text for text in SEARCHED if text not in request.settings)
        yield from SEARCHED_WITH_CAPACITY if request.capacity is not None else ()


def _capacity(analysis: DeviceAnalysis, calls: AllocatorCalls, request: Request) -> tuple[int | None, str]:
    """What torch can have, and where that is from."""
    if request.card_bytes is not None:
        outside = _outside(analysis) if request.outside_bytes is None else request.outside_bytes
        left = max(request.card_bytes - outside, 0)
        return left, f"{format_bytes(request.card_bytes)} less {format_bytes(outside)} outside of torch"
    if request.capacity is not None:
        return request.capacity, ""
    failed = np.flatnonzero(calls.events.action == Action.OOM)
    if len(failed):
        event = int(failed[0])
        return capacity_at_oom(calls, event), f"what torch had when event {event} failed"
    return None, ""


def _outside(analysis: DeviceAnalysis) -> int:
    """What lay outside of torch when a request failed, of a real device."""
    metadata = analysis.snapshot.metadata
    if metadata is not None and not metadata.is_simulated:
        found = device_memory(analysis, len(analysis.device.events) - 1).outside_bytes
        if found is not None:
            return found
    name = device_name(analysis.device.device)
    raise InputError(
        f"{analysis.snapshot.path} does not show what lies outside of torch on {name} "
        "(a capture of a real GPU in which a request failed does): give it with --outside, or what torch can "
        "have with --capacity"
    )


def _recorded(device: DeviceSnapshot, replayed: Replay) -> Recorded:
    def count(action: Action) -> int:
        return int(np.count_nonzero(device.events.action == action))

    return Recorded(
        peak_reserved=replayed.reserved.peak,
        peak_allocated=replayed.allocated.peak,
        n_segment_allocs=count(Action.SEGMENT_ALLOC),
        n_segment_maps=count(Action.SEGMENT_MAP),
        n_ooms=count(Action.OOM),
    )


def _reasons(check: ModelCheck, history: History, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Why figures are estimates, each reason once."""
    if not check.is_exact:
        where = f"from event {check.event} on" if check.event >= 0 else "at the end"
        yield f"under the file's own settings the model differs from the file {where}: {check.reason}"
    if history.verdict is Verdict.TRUNCATED:
        yield "the oldest events are lost, and with them what they did to fragmentation"
    yield from dict.fromkeys(reason for outcome in outcomes for reason in outcome.assumptions)


def shown_capacity(trials: SettingTrials) -> str:
    """The capacity and where it is from, as a sentence has it."""
    if trials.capacity is None:
        return "on a device that never runs out of memory"
    source = f", {trials.capacity_from}" if trials.capacity_from else ""
    return f"with {format_bytes(trials.capacity)}{source}"
