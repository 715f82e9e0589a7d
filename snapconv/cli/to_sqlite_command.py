"""``snapconv to-sqlite``: a file -> reports in the current folder, and its main figures on the terminal."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from snapconv.cli.arguments import (
    AsJson,
    Force,
    OneDevice,
    Quiet,
    ReadOptions,
    Snapshot,
    device_number,
)
from snapconv.cli.terminal import print_json, print_lines, progress_bar
from snapconv.errors import OutputWriteError
from snapconv.notes import Note

_Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="The report's file. Default: SNAPSHOT.memory.sqlite, here. A capture with times "
        "becomes NAME.memory.sqlite and NAME.time.sqlite: name either, or NAME alone.",
    ),
]
_Extended = Annotated[
    bool, typer.Option("--extended", help="Add snapconv's own tables; Skyline's stay as they are.")
]
_Params = Annotated[
    Path | None,
    typer.Option(
        "--params",
        help="Names for weights that no recording named: safetensors, its index, or JSON (snapconv params).",
        readable=False,
    ),
]


def to_sqlite(
    snapshot: Snapshot,
    *,
    output: _Output = None,
    extended: _Extended = False,
    device: OneDevice = None,
    read: ReadOptions,
    params: _Params = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Convert a snapshot to Skyline's SQLite memory report.

    One report per device. A capture with times becomes Skyline's run time report too.
    """
    from snapconv import convert

    options = convert.ConvertOptions(
        output=_output_file(output),
        extended=extended,
        device=device_number(device),
        force=force,
        analysis=read.analysis(params),
    )
    with progress_bar(shown=not quiet) as progress:
        made = convert.to_sqlite(snapshot, options, progress=progress)
    if quiet:
        return
    from snapconv.analysis import most_urgent_first
    from snapconv.writers.text.summary import summary_lines

    if as_json:
        print_json(made.to_json(), n_bytes=made.n_bytes)
    else:
        order = most_urgent_first([report.analysis for _, report in made.reports])
        reports = tuple(made.reports[position] for position in order)
        print_lines(summary_lines(reports, made.time), sys.stdout)
    _print_notes(made.all_notes, made.notes)


def _print_notes(every: tuple[Note, ...], in_no_report: tuple[Note, ...]) -> None:
    """Print the notes: those in reports are short here, as reports have them whole."""
    from snapconv.writers.text.info import note_lines, short_note_lines

    in_reports = tuple(note for note in every if note not in in_no_report)
    print_lines((*short_note_lines(in_reports), *note_lines(in_no_report)), sys.stderr)


def _output_file(text: str | None) -> Path | None:
    """Refuse what is no file's name, before it becomes a Path, which loses the slash at its end."""
    if text == "-":
        raise OutputWriteError("cannot write -: a report is an SQLite file and no stream; name a file")
    if text and text.endswith(("/", os.sep)) and text.strip("/" + os.sep):
        raise OutputWriteError(
            f"cannot write {text}: it is a folder's name; give --output {text}NAME.memory.sqlite"
        )
    return Path(text) if text is not None else None
