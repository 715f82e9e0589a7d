"""What ``snapconv growth`` prints, as text and as JSON-ready values."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from snapconv.answers.growth_report import GrowthLine, GrowthReport
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import counted, device_kind, device_name, format_bytes

_N_LINES = 8
_N_CALLERS = 3


def growth_lines(report: GrowthReport) -> Iterator[str]:
    """What grows on one device, line by line."""
    name = device_name(report.device)
    if report.unknown:
        yield f"{name}  growth is not known"
        yield f"  {report.unknown}"
        return
    n_iterations = counted(len(report.end_bytes), "iteration")
    growing, late = report.growing, report.freed_late
    if growing:
        yield f"{name}  grows by {format_bytes(report.bytes_per_iteration)} per iteration, of {n_iterations}"
    else:
        yield f"{name}  nothing grows up to the end, in {n_iterations}"
    yield f"  allocated when {_ends(report.end_bytes)}"
    yield from _table("not freed to the end of the trace", growing, "held in the end")
    yield from _table("held over several iterations, and freed then", late, "held at most")


def _ends(end_bytes: Sequence[int]) -> str:
    """The last iteration ends with the trace: by then the program may have dropped what it kept."""
    *ended, at_end = map(format_bytes, end_bytes)
    between = [f"the first ended: {ended[0]}"] if ended else []
    between += [f"the last but one: {ended[-1]}"] if len(ended) > 1 else []
    return ", ".join((*between, f"the trace ended: {at_end}"))


def _table(title: str, lines: Sequence[GrowthLine], held: str) -> Iterator[str]:
    if not lines:
        return
    yield f"  {title}"
    for line in lines[:_N_LINES]:
        yield f"  {format_bytes(line.bytes_per_iteration):>14} per iteration  {_place(line.frames)}"
        yield (
            f"{'':>18}{_seen(line)}, {format_bytes(line.block_bytes)} {held}; confidence: {line.confidence}"
        )
    more = lines[_N_LINES:]
    if more:
        n_bytes = sum(line.bytes_per_iteration for line in more)
        yield f"  {format_bytes(n_bytes):>14} per iteration  {counted(len(more), 'more line')}"


def _seen(line: GrowthLine) -> str:
    span = f"iterations {line.first_iteration} to {line.last_iteration}"
    n_spanned = line.last_iteration - line.first_iteration + 1
    every = "" if line.n_iterations == n_spanned else f"{line.n_iterations} of "
    how = ", each time by a larger one" if line.fate == "replaced by larger" else ""
    return f"in {every}{span}{how}"


def _place(frames: Sequence[SourceLine]) -> str:
    if not frames:
        return "no line of the project"
    return " < ".join(f"{line.place} in {line.function}" for line in frames[:_N_CALLERS])


def growth_values(report: GrowthReport) -> dict[str, object]:
    """The same for machines: plain values in bytes; docs/reference/json.md has the schema."""
    return {
        "device": report.device,
        "kind": device_kind(report.device),
        "unknown": report.unknown or None,
        "iteration_end_bytes": list(report.end_bytes),
        "bytes_per_iteration": report.bytes_per_iteration,
        "lines": [_line_values(line) for line in report.lines],
    }


def _line_values(line: GrowthLine) -> dict[str, object]:
    frames = [
        {"file": frame.file_path, "line": frame.line_number, "function": frame.function}
        for frame in line.frames
    ]
    return asdict(line) | {"frames": frames}
