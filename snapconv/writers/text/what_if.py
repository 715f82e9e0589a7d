"""Lines of text for ``snapconv what-if``."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from snapconv.answers.what_if.conclusion import conclude
from snapconv.answers.what_if.setting_trials import ONE_STREAM, SettingTrials, Tried
from snapconv.torch_knowledge.backends import backend_of_kind
from snapconv.units import (
    counted,
    device_kind,
    device_name,
    format_bytes,
    format_share,
    optional,
)
from snapconv.writers.text.size_rows import line_shown

_COLUMNS = (12, 12, 8, 11)
_NO_EFFECT = ""


def what_if_lines(trials: SettingTrials) -> Iterator[str]:
    """Show the conclusion of one device's trials, then each of them."""
    batch = "" if trials.batch_scale == 1 else f", batch × {trials.batch_scale:g}"
    capacity = "on a device that never runs out of memory"
    if trials.capacity_bytes is not None:
        source = optional(": {}", trials.capacity_from)
        capacity = f"with {format_bytes(trials.capacity_bytes)} for PyTorch{source}"
    yield f"{device_name(trials.device)}  {conclude(trials)}"
    yield f"  {counted(trials.n_events, 'event')} replayed{batch}, {capacity}"
    yield from _table(trials)
    yield "  reserved and allocated: peaks; unused: (reserved - allocated) / reserved"
    if trials.model_is_exact and trials.n_events:
        yield "  check passed: replaying the recorded settings reproduces the file exactly"
    if trials.recorded["peak_allocated"] > trials.recorded["peak_reserved"]:
        yield "  the trace contradicts the file's segments: reserved as recorded is too low"
    yield from (f"  estimated: {reason}" for reason in trials.estimated)
    yield from _refused_lines(trials)


def _table(trials: SettingTrials) -> Iterator[str]:
    """Show a row of what was recorded and of each trial; trials without an effect share a line."""
    calls = "cudaMalloc" if device_kind(trials.device) == "cuda" else "segments"
    yield _columns("reserved", "allocated", "unused", calls)
    recorded = trials.recorded
    reference = trials.reference
    failed = (
        f", {counted(recorded['n_ooms'], 'failed request')}" if recorded["n_ooms"] else ""
    )
    n_calls = recorded["n_segment_allocs"] + recorded["n_segment_maps"]
    peaks = (recorded["peak_reserved"], recorded["peak_allocated"])
    yield _row(*peaks, n_calls, f"as recorded{failed}")
    groups: defaultdict[object, list[Tried]] = defaultdict(list)
    for tried in trials.tried:
        outcome = tried.outcome
        is_different = (
            not reference.fits or outcome.reserved_bytes != reference.reserved_bytes
        )
        key: object = _NO_EFFECT
        if outcome.ran_out:
            # Trials that run out of memory at one event have one reason.
            key = outcome.ran_out.event
        elif is_different or tried.is_own:
            key = tried.name
        groups[key].append(tried)
    ineffective = groups.pop(_NO_EFFECT, [])
    for group in groups.values():
        yield from _trial_lines(group[0], [tried.name for tried in group])
    if ineffective:
        yield f"  no effect on reserved memory: {_grouped([tried.name for tried in ineffective])}"


def _refused_lines(trials: SettingTrials) -> Iterator[str]:
    """Name the settings that the job's release may refuse, and the caution about its variable."""
    tried_names = {tried.name for tried in trials.tried}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(trials.refused, key=tried_names.__contains__):
        action = "tried, although" if name in tried_names else "not tried, as"
        groups[f"{action} {trials.refused[name]}"].append(name)
    yield from (f"  {reason}: {_grouped(names)}" for reason, names in groups.items())
    caution = backend_of_kind(device_kind(trials.device)).caution
    if caution and any(tried.name != ONE_STREAM for tried in trials.alternatives):
        yield f"  before you set {trials.variable}: {caution}"


def _grouped(names: Sequence[str]) -> str:
    """List settings, the values of one behind its name."""
    values_by_key: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        key, _, value = name.rpartition(":")
        values_by_key[key].append(value)
    settings = [f"{key}:{', '.join(values)}" for key, values in values_by_key.items()]
    return "; ".join(setting.strip(":") for setting in settings)


def _columns(*cells: str) -> str:
    return "  " + "".join(
        f"{cell:>{width}}" for cell, width in zip(cells, _COLUMNS, strict=True)
    )


def _row(reserved: int, allocated: int, n_calls: int, name: str) -> str:
    unused = "" if allocated > reserved else format_share(reserved - allocated, reserved)
    cells = (format_bytes(reserved), format_bytes(allocated), unused, str(n_calls))
    return f"{_columns(*cells)}  {name}"


def _trial_lines(tried: Tried, names: Sequence[str]) -> Iterator[str]:
    outcome = tried.outcome
    failure = outcome.ran_out
    if failure is None:
        yield _row(
            outcome.reserved_bytes,
            outcome.ledger.max_allocated_bytes,
            outcome.n_driver_calls,
            tried.name,
        )
        return
    moment = "before the first event" if failure.event < 0 else f"at event {failure.event}"
    yield f"  out of memory {moment}: {_grouped(names)}"
    allocated = format_bytes(failure.allocated_bytes)
    reserved = format_bytes(failure.reserved_bytes)
    free = format_bytes(failure.pool_free_bytes)
    largest = format_bytes(failure.pool_largest_bytes)
    requester = (
        line_shown(tried.line) if tried.line else f"the program ({line_shown(None)})"
    )
    request = f"{requester} requested {format_bytes(failure.requested_bytes)}"
    yield f"      {request}; {allocated} of {reserved} reserved were allocated"
    yield f"      cached for such requests: {free}, the largest block {largest}"
