"""Lines of text for ``snapconv what-if``."""

from collections.abc import Iterator, Sequence

from snapconv.answers.what_if.setting_trials import SettingTrials, Tried
from snapconv.units import counted, device_name, format_bytes, format_share
from snapconv.writers.text.size_rows import where

_COLUMNS = (12, 12, 8, 11)
_INDENT = 6


def what_if_lines(trials: SettingTrials) -> Iterator[str]:
    """Show the trials of one device."""
    batch = "" if trials.batch_scale == 1 else f", batch × {trials.batch_scale:g}"
    capacity = "on a device that never runs out of memory"
    if trials.capacity_bytes is not None:
        source = f", {trials.capacity_from}" if trials.capacity_from else ""
        capacity = f"with {format_bytes(trials.capacity_bytes)}{source}"
    events = counted(trials.n_events, "event")
    yield f"{device_name(trials.device)}  {events} replayed{batch}, {capacity}"
    yield _columns("reserved", "allocated", "unused", "cudaMalloc")
    recorded = trials.recorded
    failed = f", {counted(recorded['n_ooms'], 'failed request')}" if recorded["n_ooms"] else ""
    n_calls = recorded["n_segment_allocs"] + recorded["n_segment_maps"]
    yield _row(recorded["peak_reserved"], recorded["peak_allocated"], n_calls, f"as recorded{failed}")
    groups: dict[int, list[Tried]] = {}  # those that run out of memory at one event have one reason
    for number, tried in enumerate(trials.tried):
        ran_out = tried.outcome.ran_out
        groups.setdefault(len(trials.tried) + ran_out.event + 1 if ran_out else number, []).append(tried)
    for same in groups.values():
        yield from _trial_lines(same[0], [tried.name for tried in same])
    yield "  reserved and allocated: peaks; unused: (reserved - allocated) / reserved"
    if trials.model_is_exact:
        yield "  check passed: replaying the recorded settings reproduces the file exactly"
    for reason in trials.estimated:
        yield f"  estimated: {reason}"


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
    yield f"  out of memory {when}: {', '.join(names)}"
    allocated, reserved = format_bytes(failed.allocated_bytes), format_bytes(failed.reserved_bytes)
    free, largest = format_bytes(failed.pool_free_bytes), format_bytes(failed.pool_largest_bytes)
    who = where(tried.line) if tried.line else f"the program ({where(None)})"
    asked = f"{who} asked for {format_bytes(failed.requested_bytes)}"
    yield f"{'':{_INDENT}}{asked}; {allocated} of {reserved} reserved were in use"
    yield f"{'':{_INDENT}}cached memory that this request could use: {free}, the largest block {largest}"
