"""Trials of settings for the terminal, and as JSON-ready values."""

from collections.abc import Iterator
from dataclasses import asdict

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.setting_trials import SettingTrials, Tried, shown_capacity
from snapconv.answers.what_if import FailedRequest
from snapconv.stacks.project_lines import ProjectLines, SourceLine
from snapconv.units import counted, device_kind, device_name, format_bytes, format_share
from snapconv.writers.text.size_rows import place

_COLUMNS = (11, 11, 8, 11)
_MOST_NAME = 80 - sum(_COLUMNS) - 4
_INDENT = 6
_HOST = "pinned host memory has an allocator of its own, which is not modelled"


def what_if_lines(
    trials: SettingTrials | None, analysis: DeviceAnalysis, lines: ProjectLines
) -> Iterator[str]:
    """What was tried for one device, line by line; None: nothing could be."""
    name = device_name(analysis.device.device)
    if trials is None:
        yield f"{name}  {_HOST}"
        return
    batch = "" if trials.scale == 1 else f", batch × {trials.scale:g}"
    yield f"{name}  {counted(trials.n_events, 'event')} replayed{batch}, {shown_capacity(trials)}"
    yield _columns("reserved", "allocated", "unused", "cudaMalloc")
    recorded = trials.recorded
    failed = f", {counted(recorded.n_ooms, 'failed request')}" if recorded.n_ooms else ""
    yield from _row(
        recorded.peak_reserved,
        recorded.peak_allocated,
        recorded.n_segment_allocs + recorded.n_segment_maps,
        f"as recorded{failed}",
    )
    for tried in trials.tried:
        yield from _trial_lines(tried, analysis, lines)
    yield "  the peaks; unused: the share of reserved above the allocated peak"
    if trials.check.is_exact:
        yield "  under its own settings, the model gives the file's segments to the byte"
    for reason in trials.estimated:
        yield from _wrapped("estimated: ", reason)


def _columns(*cells: str) -> str:
    return "  " + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _COLUMNS, strict=True))


def _row(reserved: int, allocated: int, n_calls: int, name: str) -> Iterator[str]:
    unused = format_share(reserved - allocated, reserved)
    cells = _columns(format_bytes(reserved), format_bytes(allocated), unused, str(n_calls))
    yield from _named(cells, name)


def _named(cells: str, name: str) -> Iterator[str]:
    """A row and what it is of; of a long name each setting has its line."""
    parts = [name] if len(name) <= _MOST_NAME else name.replace(",", ",\n").split("\n")
    for number, part in enumerate(parts):
        cut = part if len(part) <= _MOST_NAME else f"{part[: _MOST_NAME - 1]}…"
        yield f"{'' if number else cells:<{sum(_COLUMNS) + 2}}  {cut.strip()}"


def _trial_lines(tried: Tried, analysis: DeviceAnalysis, lines: ProjectLines) -> Iterator[str]:
    outcome = tried.outcome
    failed = outcome.ran_out
    if failed is None:
        n_calls = outcome.n_segment_allocs + outcome.n_segment_maps
        yield from _row(outcome.peak_reserved, outcome.peak_allocated, n_calls, tried.name)
        return
    where = "before the first event" if failed.event < 0 else f"at event {failed.event}"
    yield from _named(f"  {f'out of memory {where}':>{sum(_COLUMNS)}}", tried.name)
    line = place(_line_of(failed, analysis, lines))
    state = failed.state
    yield (
        f"{'':{_INDENT}}{format_bytes(failed.requested_bytes)} requested by {line}; "
        f"{format_bytes(state.allocated_bytes)} allocated,"
    )
    yield (
        f"{'':{_INDENT}}{format_bytes(state.reserved_bytes)} reserved; in its pool "
        f"{format_bytes(failed.pool_free_bytes)} free, in one piece {format_bytes(failed.pool_largest_bytes)}"
    )


def _line_of(failed: FailedRequest, analysis: DeviceAnalysis, lines: ProjectLines) -> SourceLine | None:
    if failed.row >= 0:
        return lines.innermost(int(analysis.allocations.stack_id[failed.row]))
    return lines.innermost(int(analysis.device.events.stack_id[failed.event]))


def _wrapped(head: str, text: str, *, width: int = 78) -> Iterator[str]:
    """A sentence on as many lines as it needs."""
    line = f"  {head}"
    for word in text.split(" "):
        if len(line) + len(word) + 1 > width and line.strip() != head.strip():
            yield line.rstrip()
            line = "    "
        line += f"{word} "
    yield line.rstrip()


def what_if_values(
    trials: SettingTrials | None, analysis: DeviceAnalysis, lines: ProjectLines
) -> dict[str, object]:
    """The same for machines."""
    device = analysis.device.device
    values: dict[str, object] = {"device": device, "kind": device_kind(device)}
    if trials is None:
        return values | {"unknown": _HOST}
    return values | {
        "unknown": None,
        "n_events": trials.n_events,
        "capacity_bytes": trials.capacity,
        "capacity_from": trials.capacity_from,
        "batch_scale": trials.scale,
        "recorded": asdict(trials.recorded),
        "model_is_exact": trials.check.is_exact,
        "estimated": list(trials.estimated),
        "tried": [_values_of(tried, analysis, lines) for tried in trials.tried],
    }


def _values_of(tried: Tried, analysis: DeviceAnalysis, lines: ProjectLines) -> dict[str, object]:
    outcome = tried.outcome
    failed = outcome.ran_out
    return {
        "setting": tried.name,
        "settings": _settings(outcome.trial.settings),
        "fits": failed is None,
        "peak_reserved_bytes": outcome.peak_reserved,
        "peak_reserved_event": outcome.peak_reserved_event,
        "peak_allocated_bytes": outcome.peak_allocated,
        "end_reserved_bytes": outcome.end.reserved_bytes,
        "n_segment_allocs": outcome.n_segment_allocs,
        "n_segment_maps": outcome.n_segment_maps,
        "n_segment_frees": outcome.n_segment_frees,
        "served_events": list(outcome.served),
        "out_of_memory": None if failed is None else _failed_values(failed, analysis, lines),
    }


def _settings(settings: AllocatorSettings) -> dict[str, object]:
    return {name: value for name, value in asdict(settings).items() if name != "conf"}


def _failed_values(failed: FailedRequest, analysis: DeviceAnalysis, lines: ProjectLines) -> dict[str, object]:
    line = _line_of(failed, analysis, lines) if failed.event >= 0 or failed.row >= 0 else None
    values = {name: value for name, value in asdict(failed).items() if name not in ("row", "state")}
    return values | asdict(failed.state) | {"line": None if line is None else line.place}
