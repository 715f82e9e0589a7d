"""Commands that turn a file into another: reports, a page, a trace or a smaller snapshot."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from snapconv.cli.answers import read_session
from snapconv.cli.arguments import ReadOptions, device_number, output_file, parsed
from snapconv.cli.terminal import print_json, print_lines, progress_bar, show_notes
from snapconv.errors import InputError
from snapconv.files import checked_output
from snapconv.units import HOST, device_argument, format_bytes

if TYPE_CHECKING:
    from snapconv.analysis import DeviceAnalysis
    from snapconv.answers.event_window import Range
    from snapconv.notes import Note
    from snapconv.session import Session

OUTPUTS = ("to-sqlite", "view", "export")
_ENDINGS = {"perfetto": ".trace.json", "snapshot": ".window.pickle"}


def to_sqlite(
    snapshot: Path,
    *,
    output: str | None = None,
    extended: bool = False,
    device: str | None = None,
    read: ReadOptions,
    params: Path | None = None,
    force: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Convert a snapshot to Skyline's SQLite memory report.

    One report per device. A capture with times becomes Skyline's run time report too.
    """
    from snapconv import convert

    options = convert.ConvertOptions(
        output=output_file(output),
        extended=extended,
        device=device_number(device),
        force=force,
        analysis=read.analysis(params),
    )
    with progress_bar(shown=not quiet) as progress:
        made = convert.to_sqlite(snapshot, options, progress=progress)
    if quiet:
        return
    from snapconv.writers.text.info import note_lines
    from snapconv.writers.text.summary import summary_lines

    if as_json:
        print_json(made.to_json(), n_bytes=made.n_bytes)
    else:
        reports = sorted(made.reports, key=lambda one: one[1].analysis.urgency)
        print_lines(summary_lines(reports, made.time), sys.stdout)
    print_lines(note_lines(made.all_notes), sys.stderr)


def view(
    snapshot: Path,
    newer: Path | None = None,
    *,
    output: str | None = None,
    open_page: bool = False,
    device: str | None = None,
    read: ReadOptions,
    force: bool = False,
    quiet: bool = False,
) -> None:
    """Write a page that shows a snapshot in any browser, or compares two.

    Its timeline, what was live at any moment, the allocator's map. One file that needs no network and no
    program but a browser. It holds the file paths and function names of the job: think of that before
    you pass it on.
    """
    from snapconv.writers.html.page import page_output, write_view

    inputs = [snapshot] if newer is None else [snapshot, newer]
    path = page_output(inputs, output_file(output), force=force)
    sessions = [read_session(one, read, device=device, shows_progress=not quiet) for one in inputs]
    made = write_view([one.analysis for one in sessions], path, force=force)
    if not quiet:
        _report(made.path, [note for note in made.notes if not note.is_minor], made.n_bytes)
    if open_page:
        made.open()


def export(
    snapshot: Path,
    *,
    format: Literal["perfetto", "snapshot"],
    output: str | None = None,
    force: bool = False,
    device: str | None = None,
    events: str | None = None,
    iterations: str | None = None,
    no_cpp_frames: bool = False,
    redact: bool = False,
    read: ReadOptions,
    quiet: bool = False,
) -> None:
    """Write it for other programs: a trace, or a smaller snapshot.

    perfetto: a trace for ui.perfetto.dev; every device, its memory over time.
    snapshot: a smaller snapshot of one device, which torch's memory_viz opens.
    """
    from snapconv.answers.event_window import find_window
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
    path = checked_output([snapshot], output_file(output), _ENDINGS[format], force=force)
    session = read_session(snapshot, read, device=device)
    notes = main_notes(session.analysis)
    if format == "perfetto":
        write_trace(path, session.analysis, force=force)
    else:
        found = _the_device(session)
        window = find_window(found, events=by_events, iterations=by_iterations)
        options = SnapshotOptions(cpp_frames=not no_cpp_frames, redact=redact)
        notes = (*notes, *write_snapshot(path, found, window, options, force=force))
    if not quiet:
        _report(path, notes)


def _report(path: Path, notes: "Sequence[Note]", n_bytes: int | None = None) -> None:
    size = "" if n_bytes is None else f" ({format_bytes(n_bytes)})"
    print_lines([f"written: {path.absolute()}{size}"], sys.stdout)
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
