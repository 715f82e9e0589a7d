"""Trials of other allocator settings, another card or another batch size, beside the record."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace

from snapconv.allocator.allocator_settings import (
    MODELLED_SETTINGS,
    AllocatorSettings,
    require_taken,
    split_conf,
)
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.peak import device_memory
from snapconv.columns import count_of, distinct
from snapconv.errors import SettingError
from snapconv.hypotheses.allocator_calls import (
    MOST_BYTES,
    AllocatorCalls,
    CallChange,
    find_calls,
)
from snapconv.hypotheses.batch_growth import GROWS_WITH_BATCH, scaled_requests
from snapconv.hypotheses.changes import scaled_batch
from snapconv.hypotheses.trial import capacity_at_oom, try_out
from snapconv.hypotheses.trial_outcome import Outcome, Trial
from snapconv.notes import Progress
from snapconv.phases.trace_phases import Phase
from snapconv.replay.device_replay import Replay
from snapconv.replay.history_verdict import Verdict
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot, Snapshot
from snapconv.stacks.project_lines import SourceLine
from snapconv.torch_knowledge.cards import USUAL_OUTSIDE_BYTES, find_card, named_cards
from snapconv.units import Device, format_bytes, parse_bytes

OWN = "the file's own settings"
OWN_PLACED_ANEW = f"{OWN}, older blocks placed anew"
ONE_STREAM = "all work on one stream"
AS_AT_OOM = "as torch had when event"
_PHASES = {
    Phase.FORWARD: "the forward pass",
    Phase.BACKWARD: "the backward pass",
    Phase.OPTIMIZER: "the optimizer's step",
}
# A replay that differs by a larger part of the most reserved bytes shows nothing about settings.
_LARGE_DIFFERENCE = 0.1
# Part of the most reserved bytes: a setting that saves as much is worth a sentence.
_LEAST_SAVED = 0.05
# Changes of settings that are worth a trial, by ``--search`` and by ``oom``, as in
# PYTORCH_ALLOC_CONF. The collector works with a memory fraction only; this one takes next to
# nothing away.
SEARCHED = (
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.99",
)


@dataclass(frozen=True, slots=True)
class Request:
    """Alternatives to the file's settings, each as PYTORCH_ALLOC_CONF is written.

    ``capacity`` is what torch can have, None: as much as it likes, or, in a file with a failed
    request, what it had then. ``card_bytes`` in its place is a whole card, of which something is
    not torch's: as much as the file shows, or as is usual. ``card_name`` is the name that it was
    given by, if any. ``one_stream``: also try all work on one stream, where no free waits for
    another, and no cache belongs to another.
    """

    settings: tuple[str, ...] = ()
    is_search: bool = False
    capacity: int | None = None
    card_bytes: int | None = None
    card_name: str = ""
    one_stream: bool = False

    @classmethod
    def read(
        cls,
        *settings: str,
        search: bool = False,
        capacity: str | int | None = None,
        card: str | int | None = None,
        one_stream: bool = False,
    ) -> "Request":
        """Read the options of the command line.

        Such as ``Request.read("expandable_segments:True", card="H100")``. Raises ValueError for a
        text that is no setting, no size and no card's name.
        """
        if isinstance(capacity, str):
            capacity = parse_bytes(capacity)
        card_name = ""
        if isinstance(card, str):
            card, card_name = read_card(card)
        confs = tuple(map(read_setting, settings))
        return cls(confs, search, capacity, card, card_name, one_stream)


def read_card(text: str) -> tuple[int, str]:
    """Read a card, by its memory or by its name; raises ValueError for anything else."""
    card = find_card(text)
    if card is not None:
        return card.total_bytes, card.name
    try:
        return parse_bytes(text), ""
    except ValueError as error:
        names = ", ".join(named_cards())
        message = f"expected a size such as 24GiB, or one of {names}; got {text!r}"
        raise ValueError(message) from error


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial: its settings as given, its outcome, and the line and phase of a failed request."""

    name: str
    outcome: Outcome
    line: SourceLine | None
    phase: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the settings are the file's."""
        return self.name in (OWN, OWN_PLACED_ANEW)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        outcome = self.outcome
        ledger = outcome.ledger
        failed = None
        if outcome.ran_out is not None:
            line = self.line.place if self.line else None
            failed = asdict(outcome.ran_out) | {"line": line, "phase": self.phase or None}
            del failed["row"]
        return {
            "setting": self.name,
            "fits": outcome.fits,
            "peak_reserved_bytes": ledger.max_reserved_bytes,
            "peak_allocated_bytes": ledger.max_allocated_bytes,
            "n_segment_allocs": ledger.n_segment_allocs,
            "n_segment_maps": ledger.n_segment_maps,
            "served_events": outcome.served,
            "out_of_memory": failed,
        }


@dataclass(frozen=True, slots=True)
class SavingSetting:
    """An allocator setting, as in PYTORCH_ALLOC_CONF, its peak of reserved bytes, and its fit."""

    name: str
    reserved_bytes: int
    is_enough: bool


@dataclass(frozen=True, slots=True)
class SettingTrials:
    """All trials of one device, at ``batch_scale`` times the batch.

    ``recorded`` are the figures of the file. ``capacity_from`` says where the capacity is from;
    empty: it was given, or there is none. ``tried`` begins with the file's own settings; after a
    search the others are ranked: those that do not run out of memory first, the least reserved
    first. ``model_is_exact``: under the file's own settings as much is reserved after every request
    as in the trace. ``estimated``: why the figures are estimates. ``variable`` is the one of the
    environment that this kind of device reads. ``refused``: settings that the job's release may
    refuse, and why; of a search they are not tried. ``is_whole``: nothing was in use before the
    trace.
    """

    device: Device
    n_events: int
    recorded: dict[str, int]
    capacity_bytes: int | None
    capacity_from: str
    batch_scale: float
    tried: tuple[Tried, ...]
    model_is_exact: bool
    estimated: tuple[str, ...]
    variable: str
    refused: dict[str, str]
    is_whole: bool = True

    @property
    def alternatives(self) -> Sequence[Tried]:
        """The trials of other settings than the file's own."""
        return [tried for tried in self.tried if not tried.is_own]

    @property
    def reference(self) -> Outcome:
        """The outcome under the file's own settings that the other trials are compared with."""
        return self.tried[-len(self.alternatives) - 1].outcome

    @property
    def unsure(self) -> str:
        """Return why the trials prove nothing: how a replay of the file's own settings differs."""
        outcome = self.tried[0].outcome
        recorded = self.recorded["peak_reserved"]
        if outcome.served and self.capacity_from.startswith(AS_AT_OOM):
            return (
                f"a replay of the file's own settings serves the request that failed "
                f"at event {outcome.served[0]}"
            )
        replayed = outcome.reserved_bytes
        # A larger batch that fits reserves no less, a smaller one anything.
        difference = 0
        batch = ""
        if self.batch_scale == 1:
            difference = abs(replayed - recorded)
        else:
            batch = f" with batch × {self.batch_scale:g}"
            if self.batch_scale > 1 and outcome.fits:
                difference = recorded - replayed
        has_room = self.capacity_bytes is None or self.capacity_bytes >= recorded
        if difference > _LARGE_DIFFERENCE * recorded and has_room:
            sizes = (
                f"{format_bytes(replayed)}, the program reserved {format_bytes(recorded)}"
            )
            return f"a replay of the file's own settings{batch} reserves {sizes}"
        return ""

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values; docs/reference/json.md has the schema."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tried = [tried.to_json() for tried in self.tried]
        return values | {"unknown": None, "tried": tried}


def read_setting(text: str) -> str:
    """Check a setting that is to be tried; raises ValueError with what the model has."""
    try:
        values = dict(split_conf(text))
        AllocatorSettings.from_conf(text)
    except SettingError as error:
        raise ValueError(str(error).removeprefix("allocator settings: ")) from error
    if not values:
        raise ValueError("expected key:value, got nothing")
    unknown = [key for key in values if key not in MODELLED_SETTINGS]
    if unknown:
        raise ValueError(
            f"the model has no setting {unknown[0]!r}, or it moves no blocks; it has: "
            f"{', '.join(MODELLED_SETTINGS)}"
        )
    return text


def try_settings(
    analysis: DeviceAnalysis,
    request: Request,
    *,
    scale: float = 1.0,
    progress: Progress | None = None,
) -> SettingTrials | None:
    """Replay one device under its own settings and under each alternative.

    The batch is ``scale`` times as large. None for pinned host memory, whose allocator is another.
    Raises InputError where a setting contradicts the file's own.
    """
    if analysis.device.is_host:
        return None
    analysis.require_allocator()
    replayed = analysis.replay
    calls = find_calls(analysis.snapshot, analysis.device, replayed)
    difference = _difference(calls, replayed, progress)
    capacity, capacity_from = _capacity(analysis, calls, request)
    request = replace(request, capacity=capacity)
    reasons = list(_estimates(analysis, request, difference, scale))
    if scale != 1:
        sizes = scaled_requests(analysis, scale)
        calls = calls.resized(sizes, scaled_batch(analysis, scale).failed_scale)
    alternatives, refused = _alternatives(analysis.snapshot, calls.file_settings, request)
    trials = _try_all(
        analysis, calls, request, alternatives, is_placed_anew=scale != 1, progress=progress
    )
    for tried in trials:
        reasons += tried.outcome.assumptions
    return SettingTrials(
        device=analysis.device.device,
        n_events=analysis.n_events,
        recorded=_recorded(analysis.device, replayed),
        capacity_bytes=capacity,
        capacity_from=capacity_from,
        tried=tuple(trials),
        batch_scale=scale,
        model_is_exact=not difference,
        variable=analysis.snapshot.backend.variable,
        refused=refused,
        estimated=tuple(dict.fromkeys(reasons)),
        is_whole=analysis.history.verdict is Verdict.COMPLETE,
    )


def _estimates(
    analysis: DeviceAnalysis, request: Request, difference: str, scale: float
) -> Iterator[str]:
    """Say why the figures of all trials are estimates."""
    if scale != 1:
        yield f"batch × {scale:g}: {GROWS_WITH_BATCH}"
    if difference:
        yield f"under the file's own settings the model differs from the file {difference}"
    if analysis.history.verdict is Verdict.TRUNCATED:
        yield "the oldest events are lost, and with them what they did to fragmentation"
    if request.one_stream:
        yield f"{ONE_STREAM}: requests and frees keep their order"
    if "allocated" in analysis.replay.lower_bounds:
        yield "the file has no segments, and what was in use before its trace counts only in part"


def saving_setting(
    analysis: DeviceAnalysis, capacity: int | None
) -> tuple[bool, SavingSetting | None]:
    """Search as ``what-if --search`` does: return whether the file's settings fit, and the best."""
    trials = (
        try_settings(analysis, Request(is_search=True)) if analysis.has_allocator else None
    )
    if (
        trials is None
        or not trials.alternatives
        or trials.unsure
        or not trials.model_is_exact
    ):
        return False, None
    reference = trials.reference
    best = trials.alternatives[0]
    fits = [analysis.ran_out]
    if capacity is not None:
        limited = try_settings(analysis, Request((best.name,), capacity=capacity))
        if limited:
            fits = [tried.outcome.fits for tried in limited.tried]
    fits_already = fits[0] and not analysis.ran_out
    is_less = best.outcome.reserved_bytes <= reference.reserved_bytes * (1 - _LEAST_SAVED)
    if not best.outcome.fits or (reference.fits and not is_less):
        return fits_already, None
    conf = reference.trial.settings.conf_with(best.name)
    return fits_already, SavingSetting(conf, best.outcome.reserved_bytes, fits[-1])


def _difference(calls: AllocatorCalls, replayed: Replay, progress: Progress | None) -> str:
    """Say where a replay under the file's own settings differs from the trace; empty: nowhere."""
    outcome = try_out(calls, Trial(calls.file_settings, is_check=True), progress=progress)
    if outcome.differs_at is not None:
        return f"from event {outcome.differs_at} on"
    return "" if outcome.ledger.reserved_bytes == replayed.reserved.end else "at the end"


def _tried(name: str, outcome: Outcome, analysis: DeviceAnalysis) -> Tried:
    """Add the line and the phase of a failed request; one that failed in the trace has no row."""
    failed = outcome.ran_out
    if failed is None:
        return Tried(name, outcome, None)
    stack = -1
    phase = ""
    if failed.event >= 0:
        stack = analysis.device.events.stack_id[failed.event]
        phase = _PHASES.get(Phase(int(analysis.phases.certain[failed.event])), "")
    if failed.row >= 0:
        stack = analysis.allocations.stack_id[failed.row]
    return Tried(name, outcome, analysis.lines.innermost(int(stack)), phase)


def _try_all(
    analysis: DeviceAnalysis,
    calls: AllocatorCalls,
    request: Request,
    alternatives: Iterable[tuple[str, AllocatorSettings]],
    *,
    is_placed_anew: bool,
    progress: Progress | None,
) -> list[Tried]:
    """Try the file's own settings, then the alternatives."""

    def tried_out(
        name: str,
        settings: AllocatorSettings = calls.file_settings,
        calls: AllocatorCalls = calls,
        *,
        is_anew: bool = is_placed_anew,
    ) -> Tried:
        device_bytes = request.card_bytes or _device_bytes(
            request, settings, calls.file_settings
        )
        trial = Trial(settings, request.capacity, device_bytes, is_placed_anew=is_anew)
        return _tried(name, try_out(calls, trial, progress=progress), analysis)

    own_trials = [tried_out(OWN)]
    trials = [tried_out(*alternative) for alternative in alternatives]
    if request.one_stream:
        allocations = tuple(range(len(calls.stream)))
        streams = tuple(distinct(calls.stream).tolist())
        merged = calls.changed(CallChange(completed=allocations, merged=streams))
        trials.append(tried_out(ONE_STREAM, calls=merged))
    if request.is_search:
        trials.sort(key=rank)
    beginnings = {tried.outcome.is_placed_anew for tried in (*own_trials, *trials)}
    if calls.start.rows and len(beginnings) > 1:
        # Beside trials that had to begin otherwise, the same beginning under the file's own
        # settings.
        own_trials.append(tried_out(OWN_PLACED_ANEW, is_anew=True))
    return [*own_trials, *trials]


def rank(tried: Tried) -> tuple[bool, int]:
    """Return the order of trials: what fits comes first, and of these what reserves least."""
    return not tried.outcome.fits, tried.outcome.reserved_bytes


def _device_bytes(
    request: Request, settings: AllocatorSettings, file_settings: AllocatorSettings
) -> int | None:
    """Return the memory of a device without a card; its memory fraction of it is the capacity."""
    fraction = settings.memory_fraction
    if request.capacity is None or not 0 < fraction == file_settings.memory_fraction:
        return None
    return math.ceil(min(request.capacity / fraction, MOST_BYTES))


def _alternatives(
    snapshot: Snapshot, file_settings: AllocatorSettings, request: Request
) -> tuple[list[tuple[str, AllocatorSettings]], dict[str, str]]:
    """List the settings of a request, then those of a search, without those that the file has.

    Also return those that may be refused, with the reason; those of the request are tried all the
    same.
    """
    alternatives = list(candidates(file_settings, request.settings, skipped=()))
    refused = {}
    for text, settings in alternatives:
        reason = why_refused(snapshot, text, settings)
        if reason:
            refused[text] = reason
    for text, settings in candidates(file_settings, SEARCHED if request.is_search else ()):
        # A memory fraction is a part of the capacity.
        has_fraction = settings.memory_fraction != file_settings.memory_fraction
        if text in request.settings or (has_fraction and request.capacity is None):
            continue
        reason = why_refused(snapshot, text, settings)
        if reason:
            refused[text] = reason
        else:
            alternatives.append((text, settings))
    return alternatives, refused


def why_refused(snapshot: Snapshot, conf: str, settings: AllocatorSettings) -> str:
    """Say why the file's allocator may refuse a change that leads to these settings.

    The text is empty where it takes the change.
    """
    is_on = {
        "expandable_segments": settings.expandable_segments,
        "max_split_size_mb": settings.max_split_size_bytes is not None,
        "garbage_collection_threshold": settings.garbage_collection_threshold > 0,
    }
    enabled = [name for name, is_set in is_on.items() if is_set]
    names = dict(split_conf(conf))
    release = snapshot.earliest_release
    reason = snapshot.backend.refusal(names, enabled, release=release)
    if not reason and snapshot.backend.kind == "cuda":
        try:
            require_taken(conf, release)
        except SettingError:
            reason = f"torch {release} refuses this value"
    return reason


def candidates(
    file_settings: AllocatorSettings,
    confs: Iterable[str],
    *,
    skipped: tuple[type[Exception], ...] = (SettingError,),
) -> Iterator[tuple[str, AllocatorSettings]]:
    """List the confs that change a file's own settings, and that torch would take."""
    for conf in confs:
        with suppress(*skipped):
            settings = file_settings.changed(conf)
            if replace(settings, conf=file_settings.conf) != file_settings:
                yield conf, settings


def _capacity(
    analysis: DeviceAnalysis, calls: AllocatorCalls, request: Request
) -> tuple[int | None, str]:
    """Find the memory that torch can have, and where that figure is from."""
    if request.card_bytes is not None:
        outside, source = _outside(analysis)
        card = format_bytes(request.card_bytes)
        if request.card_name:
            card = f"{request.card_name}, {card}"
        sizes = f"{card} less {format_bytes(outside)} outside PyTorch"
        return max(request.card_bytes - outside, 0), f"{sizes}{source}"
    if request.capacity is not None:
        return request.capacity, ""
    if analysis.ran_out:
        event = int(analysis.phases.oom_events[0])
        return capacity_at_oom(calls, event), f"{AS_AT_OOM} {event} failed"
    return None, ""


def _outside(analysis: DeviceAnalysis) -> tuple[int, str]:
    """Find the memory outside PyTorch when a request failed, of a real device; else estimate it."""
    metadata = analysis.snapshot.metadata
    if metadata is not None and not metadata.is_simulated:
        outside = device_memory(analysis, analysis.n_events - 1).outside_bytes
        if outside is not None:
            return outside, ", as when a request failed"
    return USUAL_OUTSIDE_BYTES, " (estimated; --capacity is exact)"


def _recorded(device: DeviceSnapshot, replayed: Replay) -> dict[str, int]:
    figures = {
        "peak_reserved": replayed.reserved.peak,
        "peak_allocated": replayed.allocated.peak,
    }
    for action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM):
        figures[f"n_{action.name.lower()}s"] = count_of(device.events.action == action)
    return figures
