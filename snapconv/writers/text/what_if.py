"""Lines of text for ``snapconv what-if``."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from snapconv.answers.what_if.conclusion import conclude
from snapconv.answers.what_if.setting_trials import ONE_STREAM, SettingTrials, Tried
from snapconv.torch_knowledge.backends import backend_of_kind
from snapconv.units import counted, device_kind, device_name, format_bytes, format_share
from snapconv.writers.text.size_rows import where

_COLUMNS = (12, 12, 8, 11)


def what_if_lines(trials: SettingTrials) -> Iterator[str]:
    """Show the conclusion of one device's trials, then each of them."""
    batch = "" if trials.batch_scale == 1 else f", batch × {trials.batch_scale:g}"
    capacity = "on a device that never runs out of memory"
    if trials.capacity_bytes is not None:
        source = f": {trials.capacity_from}" if trials.capacity_from else ""
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
    own = trials.reference
    failed = f", {counted(recorded['n_ooms'], 'failed request')}" if recorded["n_ooms"] else ""
    n_calls = recorded["n_segment_allocs"] + recorded["n_segment_maps"]
    yield _row(
        recorded["peak_reserved"], recorded["peak_allocated"], n_calls, f"as recorded{failed}"
    )
    groups: defaultdict[object, list[Tried]] = defaultdict(list)
    for tried in trials.tried:
        outcome = tried.outcome
        has_effect = tried.is_own or not own.fits or outcome.reserved_bytes != own.reserved_bytes
        # Those that run out of memory at one event have one reason.
        key: object = outcome.ran_out.event if outcome.ran_out else tried.name if has_effect else ""
        groups[key].append(tried)
    same = groups.pop("", [])
    for group in groups.values():
        yield from _trial_lines(group[0], [tried.name for tried in group])
    if same:
        yield f"  no effect on reserved memory: {_grouped([tried.name for tried in same])}"


def _refused_lines(trials: SettingTrials) -> Iterator[str]:
    """Say which settings the job's release may refuse, and what else keeps its variable from being read."""
    tried = {tried.name for tried in trials.tried}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(trials.refused, key=tried.__contains__):
        how = "tried, although" if name in tried else "not tried, as"
        groups[f"{how} {trials.refused[name]}"].append(name)
    yield from (f"  {reason}: {_grouped(names)}" for reason, names in groups.items())
    caution = backend_of_kind(device_kind(trials.device)).caution
    if caution and any(tried.name != ONE_STREAM for tried in trials.others):
        yield f"  before you set {trials.variable}: {caution}"


def _grouped(names: Sequence[str]) -> str:
    """List settings, the values of one behind its name."""
    parts = [name.rpartition(":")[::2] for name in names]
    keys = dict.fromkeys(key for key, _ in parts)
    return "; ".join(
        f"{key}:{', '.join(v for k, v in parts if k == key)}".strip(":") for key in keys
    )


def _columns(*cells: str) -> str:
    return "  " + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _COLUMNS, strict=True))


def _row(reserved: int, allocated: int, n_calls: int, name: str) -> str:
    unused = "" if allocated > reserved else format_share(reserved - allocated, reserved)
    return (
        f"{_columns(format_bytes(reserved), format_bytes(allocated), unused, str(n_calls))}  {name}"
    )


def _trial_lines(tried: Tried, names: Sequence[str]) -> Iterator[str]:
    outcome = tried.outcome
    failed = tried.outcome.ran_out
    if failed is None:
        allocated_bytes = outcome.ledger.max_allocated_bytes
        yield _row(outcome.reserved_bytes, allocated_bytes, outcome.n_driver_calls, tried.name)
        return
    when = "before the first event" if failed.event < 0 else f"at event {failed.event}"
    yield f"  out of memory {when}: {_grouped(names)}"
    sizes = (
        failed.allocated_bytes,
        failed.reserved_bytes,
        failed.pool_free_bytes,
        failed.pool_largest_bytes,
    )
    allocated, reserved, free, largest = map(format_bytes, sizes)
    who = where(tried.line) if tried.line else f"the program ({where(None)})"
    wanted = f"{who} requested {format_bytes(failed.requested_bytes)}"
    yield f"      {wanted}; {allocated} of {reserved} reserved were allocated"
    yield f"      cached for such requests: {free}, the largest block {largest}"
