"""``snapconv view``: a file, or two to compare, as one page that opens in any browser."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from snapconv.cli.arguments import (
    Force,
    OneDevice,
    Quiet,
    ReadOptions,
    Snapshot,
    device_number,
    no_pipe,
)
from snapconv.cli.terminal import print_lines, progress_bar, show_notes
from snapconv.units import format_bytes

_Newer = Annotated[
    Path | None,
    typer.Argument(
        metavar="NEWER",
        help="A second file, recorded later: both on one axis, with what differs.",
        callback=no_pipe,
        readable=False,
    ),
]
_Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="The page's file. Default: SNAPSHOT.view.html, of two files NEWER.compare.html.",
    ),
]
_Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def view(
    snapshot: Snapshot,
    newer: _Newer = None,
    *,
    output: _Output = None,
    open_page: _Open = False,
    device: OneDevice = None,
    read: ReadOptions,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write a page that shows a snapshot in any browser, or compares two.

    Its timeline, what was live at any moment, the allocator's map. One file that needs no network and no
    program but a browser. It holds the file paths and function names of the job: think of that before
    you pass it on.
    """
    from snapconv.view import ViewOptions, write_view

    options = ViewOptions(
        output=output,
        device=device_number(device),
        force=force,
        analysis=read.analysis(),
    )
    with progress_bar(shown=not quiet) as progress:
        made = write_view(snapshot, options, other=newer, progress=progress)
    if not quiet:
        print_lines([f"written: {made.path.absolute()} ({format_bytes(made.n_bytes)})"], sys.stdout)
        show_notes([note for note in made.notes if not note.is_minor])
    if open_page:
        made.open()
