"""``snapconv export``: a file -> a trace for ui.perfetto.dev, or a smaller snapshot."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from snapconv.cli.answers import read_session
from snapconv.cli.arguments import Force, OneDevice, Output, Quiet, ReadOptions, Snapshot, parsed
from snapconv.cli.terminal import print_lines, show_notes
from snapconv.errors import InputError
from snapconv.files import checked_output
from snapconv.units import HOST, device_argument

if TYPE_CHECKING:
    from snapconv.analysis import DeviceAnalysis
    from snapconv.answers.event_window import EventWindow, Range
    from snapconv.session import Session

_ENDINGS = {"perfetto": ".trace.json", "snapshot": ".window.pickle"}

_Format = Annotated[
    Literal["perfetto", "snapshot"], typer.Option("--format", metavar="FORMAT", help="perfetto or snapshot.")
]
_Events = Annotated[
    str | None,
    typer.Option("--events", metavar="A:B", help="snapshot: only events A to B, such as 1000:1999 or 1000:."),
]
_Iterations = Annotated[
    str | None, typer.Option("--iterations", metavar="A:B", help="snapshot: only iterations A to B.")
]
_NoCpp = Annotated[bool, typer.Option("--no-cpp-frames", help="snapshot: leave out the frames of C++ code.")]
_Redact = Annotated[
    bool,
    typer.Option(
        "--redact",
        help="snapshot: replace the names of files, functions and annotations, and move times and addresses, "
        "so that it can be given away.",
    ),
]


def export(
    snapshot: Snapshot,
    *,
    format: _Format,
    output: Output = None,
    force: Force = False,
    device: OneDevice = None,
    events: _Events = None,
    iterations: _Iterations = None,
    no_cpp_frames: _NoCpp = False,
    redact: _Redact = False,
    read: ReadOptions,
    quiet: Quiet = False,
) -> None:
    """Write it for other programs: a trace, or a smaller snapshot.

    perfetto: a trace for ui.perfetto.dev; every device, its memory over time.
    snapshot: a smaller snapshot of one device, which torch's memory_viz opens.
    """
    from snapconv.answers.notes import main_notes
    from snapconv.writers.exports.snapshot_pickle import SnapshotOptions, write_snapshot
    from snapconv.writers.exports.traces import write_trace

    of_snapshot = {
        "--events": events,
        "--iterations": iterations,
        "--no-cpp-frames": no_cpp_frames,
        "--redact": redact,
    }
    for option, value in of_snapshot.items():  # above all --redact, which must not be trusted elsewhere
        if value and format != "snapshot":
            raise typer.BadParameter("it is for --format snapshot only", param_hint=option)
    by_events, by_iterations = _range(events, "--events"), _range(iterations, "--iterations")
    if events and iterations:
        raise typer.BadParameter("give --events or --iterations, not both", param_hint="--events")
    path = checked_output([snapshot], output, _ENDINGS[format], force=force)
    session = read_session(snapshot, read, device=device)
    notes = main_notes(session.analysis)
    if format == "perfetto":
        write_trace(path, session.analysis, force=force)
    else:
        found = _the_device(session)
        window = _window(found, by_events, by_iterations)
        options = SnapshotOptions(cpp_frames=not no_cpp_frames, redact=redact)
        notes = (*notes, *write_snapshot(path, found, window, options, force=force))
    if not quiet:
        print_lines([f"written: {path.absolute()}"], sys.stdout)
        show_notes(notes)


def _range(text: str | None, option: str) -> "Range | None":
    from snapconv.answers.event_window import parse_range

    return None if text is None else parsed(text, parse_range, option)


def _the_device(session: "Session") -> "DeviceAnalysis":
    """Return the one device of a session, or of several the only CUDA device; else raises InputError."""
    devices = [found for found in session.devices if found.device.device != HOST]
    if not devices:
        raise InputError("torch's viewer knows no pinned host memory: name another device with --device")
    if len(devices) > 1:
        there = ", ".join(device_argument(found.device.device) for found in session.devices)
        raise InputError(f"{session.snapshot.path} has several devices ({there}): name one with --device")
    return devices[0]


def _window(analysis: "DeviceAnalysis", events: "Range | None", iterations: "Range | None") -> "EventWindow":
    from snapconv.answers.event_window import whole_window, window_of_events, window_of_iterations

    if events:
        return window_of_events(analysis, events)
    return window_of_iterations(analysis, iterations) if iterations else whole_window(analysis)
