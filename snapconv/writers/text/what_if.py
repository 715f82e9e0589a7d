"""Lines of text for ``snapconv what-if``."""

from collections.abc import Iterator, Sequence

from snapconv.answers.what_if.conclusion import alternatives, conclude, reference
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
    calls = "cudaMalloc" if device_kind(trials.device) == "cuda" else "segments"
    yield _columns("reserved", "allocated", "unused", calls)
    recorded = trials.recorded
    failed = f", {counted(recorded['n_ooms'], 'failed request')}" if recorded["n_ooms"] else ""
    n_calls = recorded["n_segment_allocs"] + recorded["n_segment_maps"]
    yield _row(recorded["peak_reserved"], recorded["peak_allocated"], n_calls, f"as recorded{failed}")
    own, others = reference(trials), alternatives(trials)
    own_bytes = own.ledger.max_reserved_bytes
    same = [
        tried.name
        for tried in others
        if tried.outcome.ran_out is None and own.ran_out is None
        if tried.outcome.ledger.max_reserved_bytes == own_bytes
    ]
    for tried, names in _trial_groups([tried for tried in trials.tried if tried.name not in same]):
        yield from _trial_lines(tried, names)
    if same:
        yield f"  no effect on reserved memory: {_grouped(same)}"
    yield "  reserved and allocated: peaks; unused: (reserved - allocated) / reserved"
    if trials.model_is_exact and trials.n_events:
        yield "  check passed: replaying the recorded settings reproduces the file exactly"
    if recorded["peak_allocated"] > recorded["peak_reserved"]:
        yield "  the trace contradicts the file's segments: reserved as recorded is too low"
    yield from (f"  estimated: {reason}" for reason in trials.estimated)
    yield from _refused_lines(trials)


def _refused_lines(trials: SettingTrials) -> Iterator[str]:
    """Say which settings the job's release may refuse, and what else keeps its variable from being read."""
    done = {tried.name for tried in trials.tried}
    for is_tried, how in ((False, "not tried, as"), (True, "tried, although")):
        refused = {name: why for name, why in trials.refused.items() if (name in done) == is_tried}
        for reason in dict.fromkeys(refused.values()):
            yield f"  {how} {reason}: {_grouped([name for name in refused if refused[name] == reason])}"
    caution = backend_of_kind(device_kind(trials.device)).caution
    if caution and any(tried.name != ONE_STREAM for tried in alternatives(trials)):
        yield f"  before you set {trials.variable}: {caution}"


def _trial_groups(trials: Sequence[Tried]) -> Iterator[tuple[Tried, list[str]]]:
    """Group the trials that run out of memory at one event, as they have one reason; with their names."""
    groups: dict[tuple[str, int], list[Tried]] = {}
    for number, tried in enumerate(trials):
        failed = tried.outcome.ran_out
        key = ("failed", failed.event) if failed else ("fits", number)
        groups.setdefault(key, []).append(tried)
    for group in groups.values():
        yield group[0], [tried.name for tried in group]


def _grouped(names: Sequence[str]) -> str:
    """List settings, the values of one behind its name."""
    parts = [name.rpartition(":")[::2] for name in names]
    keys = dict.fromkeys(key for key, _ in parts)
    return "; ".join(f"{key}:{', '.join(v for k, v in parts if k == key)}".strip(":") for key in keys)


def _columns(*cells: str) -> str:
    return "  " + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _COLUMNS, strict=True))


def _row(reserved: int, allocated: int, n_calls: int, name: str) -> str:
    unused = "" if allocated > reserved else format_share(reserved - allocated, reserved)
    return f"{_columns(format_bytes(reserved), format_bytes(allocated), unused, str(n_calls))}  {name}"


def _trial_lines(tried: Tried, names: Sequence[str]) -> Iterator[str]:
    ledger, failed = tried.outcome.ledger, tried.outcome.ran_out
    if failed is None:
        n_calls = ledger.n_segment_allocs + ledger.n_segment_maps
        yield _row(ledger.max_reserved_bytes, ledger.max_allocated_bytes, n_calls, tried.name)
        return
    when = "before the first event" if failed.event < 0 else f"at event {failed.event}"
    yield f"  out of memory {when}: {_grouped(names)}"
    sizes = (failed.allocated_bytes, failed.reserved_bytes, failed.pool_free_bytes, failed.pool_largest_bytes)
    allocated, reserved, free, largest = map(format_bytes, sizes)
    who = where(tried.line) if tried.line else f"the program ({where(None)})"
    wanted = f"{who} requested {format_bytes(failed.requested_bytes)}"
    yield f"      {wanted}; {allocated} of {reserved} reserved were allocated"
    yield f"      cached for such requests: {free}, the largest block {largest}"
