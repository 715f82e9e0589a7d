"""Commands that turn a file into another: reports, a page, or a trace."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapconv.cli.answers import analysis_of, session_of
from snapconv.cli.arguments import (
    ForceOption,
    JsonOption,
    QuietOption,
    RangeOptions,
    ReadOptions,
    SnapshotArgument,
    device_number,
    output_option,
    refuse_pipe,
)
from snapconv.cli.terminal import print_json, print_lines, progress_bar, show_notes
from snapconv.files import checked_output
from snapconv.units import format_bytes

if TYPE_CHECKING:
    from snapconv.notes import Note


def to_sqlite(
    snapshot: SnapshotArgument,
    *,
    output: Annotated[
        str | None,
        output_option(
            "The report's file. Default: SNAPSHOT.memory.sqlite, here. A capture with times "
            "becomes NAME.memory.sqlite and NAME.time.sqlite: name either, or NAME alone.",
        ),
    ] = None,
    extended: Annotated[
        bool,
        typer.Option(
            "--extended", help="Add snapconv's own tables; Skyline's stay as they are."
        ),
    ] = False,
    read: ReadOptions,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Convert a snapshot to Skyline's SQLite memory report.

    One report per device, of 44 KiB at least (140 KiB with --extended). A capture with times
    becomes Skyline's run time report too.
    """
    from snapconv import convert

    options = convert.ConvertOptions(
        output=output,
        extended=extended,
        device=device_number(read.device),
        force=force,
        analysis=read.analysis(),
    )
    with progress_bar(shown=not quiet) as progress:
        reports = convert.to_sqlite(snapshot, options, progress=progress)
    if quiet:
        return
    from snapconv.writers.text.moment import summary_lines

    if as_json:
        print_json(reports.to_json(), n_bytes=reports.n_bytes)
    else:
        shown = sorted(reports.reports, key=lambda report: report[1].analysis.urgency)
        print_lines(summary_lines(shown, reports.time), sys.stdout)
    show_notes(reports.notes)


def view(
    snapshot: SnapshotArgument,
    newer: Annotated[
        Path | None,
        typer.Argument(
            metavar="NEWER",
            help="A second file, recorded later: both on one axis, with what differs.",
            readable=False,
            callback=refuse_pipe,
        ),
    ] = None,
    *,
    output: Annotated[
        str | None,
        output_option(
            "The page's file. Default: SNAPSHOT.view.html, of two files NEWER.compare.html."
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Add the project's source with the bytes of its lines, as annotate shows it: from "
            "this folder, or else what the capture has of it. No other file is read.",
            readable=False,
        ),
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    events: RangeOptions,
    read: ReadOptions,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a page that shows a snapshot in any browser, or compares two.

    Its timeline, what was live at any moment, the allocator's map; of a range with --from and --to.
    One file that needs no network and no program but a browser. It holds the file paths and
    function names of the job, and with --source its code: think of that before you pass it on.
    """
    from snapconv.writers.html.page import page_output, write_view

    inputs = [snapshot] if newer is None else [snapshot, newer]
    path = page_output(inputs, output, force=force)
    shows_progress = not quiet
    files = [
        analysis_of(file, read, events=events, shows_progress=shows_progress)
        for file in inputs
    ]
    page = write_view(files, path, source=source, force=force)
    if not quiet:
        _report(page.path, [note for note in page.notes if not note.is_minor], page.n_bytes)
    if open_page:
        page.open()


def export(
    snapshot: SnapshotArgument,
    *,
    output: Annotated[
        str | None,
        output_option("The trace's file. Default: SNAPSHOT.trace.json, here."),
    ] = None,
    kineto_trace: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="TRACE",
            help="Add the memory to this trace of torch.profiler (export_chrome_trace; in gzip "
            "too) of the same run, on one time axis.",
            readable=False,
        ),
    ] = None,
    events: RangeOptions,
    force: ForceOption = False,
    read: ReadOptions,
    quiet: QuietOption = False,
) -> None:
    """Write memory over time as a trace for Perfetto.

    Every device with its curves, categories, iterations, phases and annotations; ui.perfetto.dev
    opens it. With --from and --to only a range of the events, with --with beside what
    torch.profiler recorded of the same run.
    """
    from snapconv.answers.notes import main_notes
    from snapconv.writers.perfetto_trace import write_trace

    inputs = [snapshot] if kineto_trace is None else [kineto_trace, snapshot]
    path = checked_output(inputs, output, ".trace.json", force=force)
    analysis = analysis_of(snapshot, read, events=events)
    alignment = write_trace(path, analysis, kineto_trace=kineto_trace, force=force)
    if not quiet:
        _report(path, main_notes(analysis))
        if alignment:
            print_lines([f"times: {alignment}"], sys.stdout)


def cut(
    snapshot: SnapshotArgument,
    *,
    events: RangeOptions,
    output: Annotated[
        str | None,
        output_option("The snapshot's file. Default: SNAPSHOT.part.pickle, here."),
    ] = None,
    force: ForceOption = False,
    read: ReadOptions,
    quiet: QuietOption = False,
) -> None:
    """Write a range of events as a smaller snapshot, which PyTorch's own viewer opens too.

    With the segments at its end, and what was live before it. Example: snapconv cut run.pickle
    --from iteration:2 --to iteration:3
    """
    events.check()
    if events.begin is None and events.end is None:
        raise typer.BadParameter("give --from, --to or both", param_hint="--from")
    checked_output([snapshot], output, ".part.pickle", force=force)
    session = session_of(snapshot, read)
    path = session.cut(events.begin, events.end, output=output, force=force)
    if not quiet:
        _report(path, (), path.stat().st_size)


def _report(path: Path, notes: "Sequence[Note]", n_bytes: int | None = None) -> None:
    size = "" if n_bytes is None else f" ({format_bytes(n_bytes)})"
    print_lines([f"written: {path.absolute()}{size}"], sys.stdout)
    show_notes(notes)
