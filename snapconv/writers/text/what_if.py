"""Lines of text for ``snapconv what-if``."""

from collections.abc import Iterator, Sequence

from snapconv.answers.what_if.setting_trials import SettingTrials, Tried
from snapconv.units import counted, device_name, format_bytes, format_share
from snapconv.writers.text.size_rows import where

_COLUMNS = (12, 12, 8, 11)
# What is left of 80 columns, enough for the longest setting.
_MOST_NAME = 80 - sum(_COLUMNS) - 4
_INDENT = 6


def what_if_lines(trials: SettingTrials) -> Iterator[str]:
    """Show the trials of one device."""
    batch = "" if trials.batch_scale == 1 else f", batch × {trials.batch_scale:g}"
    events = counted(trials.n_events, "event")
    yield f"{device_name(trials.device)}  {events} replayed{batch}, {_capacity(trials)}"
    yield _columns("reserved", "allocated", "unused", "cudaMalloc")
    recorded = trials.recorded
    failed = f", {counted(recorded['n_ooms'], 'failed request')}" if recorded["n_ooms"] else ""
    yield from _row(
        recorded["peak_reserved"],
        recorded["peak_allocated"],
        recorded["n_segment_allocs"] + recorded["n_segment_maps"],
        f"as recorded{failed}",
    )
    for same in _with_equal_ends(trials.tried):
        yield from _trial_lines(same[0], [tried.name for tried in same])
    yield "  reserved and allocated: peaks; unused: (reserved - allocated) / reserved"
    if trials.model_is_exact:
        yield "  check passed: replaying the recorded settings reproduces the file exactly"
    for reason in trials.estimated:
        yield f"  estimated: {reason}"


def _columns(*cells: str) -> str:
    return "  " + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _COLUMNS, strict=True))


def _row(reserved: int, allocated: int, n_calls: int, name: str) -> Iterator[str]:
    unused = "" if allocated > reserved else format_share(reserved - allocated, reserved)
    cells = _columns(format_bytes(reserved), format_bytes(allocated), unused, str(n_calls))
    yield from _named(cells, name)


def _named(cells: str, name: str) -> Iterator[str]:
    """Show a row and its name; of a long name each setting has its line."""
    parts = [name] if len(name) <= _MOST_NAME else name.replace(",", ",\n").split("\n")
    for number, part in enumerate(parts):
        yield f"{'' if number else cells:<{sum(_COLUMNS) + 2}}  {part}"


def _with_equal_ends(trials: Sequence[Tried]) -> Iterator[list[Tried]]:
    """Group the trials that run out of memory at one event; each of the others is alone."""
    groups: dict[int, list[Tried]] = {}
    for number, tried in enumerate(trials):
        failed = tried.outcome.ran_out
        groups.setdefault(len(trials) + failed.event + 1 if failed else number, []).append(tried)
    yield from groups.values()


def _trial_lines(tried: Tried, names: Sequence[str]) -> Iterator[str]:
    outcome = tried.outcome
    failed = outcome.ran_out
    if failed is None:
        ledger = outcome.ledger
        n_calls = ledger.n_segment_allocs + ledger.n_segment_maps
        yield from _row(ledger.max_reserved_bytes, ledger.max_allocated_bytes, n_calls, tried.name)
        return
    when = "before the first event" if failed.event < 0 else f"at event {failed.event}"
    for number, name in enumerate(names):
        yield from _named("" if number else f"  {f'out of memory {when}':>{sum(_COLUMNS)}}", name)
    allocated, reserved = format_bytes(failed.allocated_bytes), format_bytes(failed.reserved_bytes)
    free, largest = format_bytes(failed.pool_free_bytes), format_bytes(failed.pool_largest_bytes)
    who = where(tried.line) if tried.line else f"the program ({where(None)})"
    asked = f"{who} asked for {format_bytes(failed.requested_bytes)}"
    yield f"{'':{_INDENT}}{asked}; {allocated} of {reserved} reserved were in use"
    yield f"{'':{_INDENT}}cached memory that this request could use: {free}, the largest block {largest}"


def _capacity(trials: SettingTrials) -> str:
    """Show the capacity and where it is from."""
    if trials.capacity_bytes is None:
        return "on a device that never runs out of memory"
    source = f", {trials.capacity_from}" if trials.capacity_from else ""
    return f"with {format_bytes(trials.capacity_bytes)}{source}"
