"""``snapconv export``: a file -> what other programs read."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from snapconv.cli.answers import read_session
from snapconv.cli.arguments import (
    At,
    Force,
    OneDevice,
    Output,
    Quiet,
    ReadOptions,
    Snapshot,
    moment_question,
    parsed,
)
from snapconv.cli.terminal import print_lines, show_notes

if TYPE_CHECKING:
    from snapconv.answers.views.event_window import Range
    from snapconv.export import Exported
    from snapconv.session import Session

_FORMATS = ("perfetto", "chrome", "speedscope", "folded", "pprof", "csv", "jsonl", "parquet", "snapshot")
# Options that another format than snapshot has.
_HAVE = {"--at": ("speedscope", "folded", "pprof"), "--csv-safe": ("csv",)}


def _known(name: str) -> str:
    if name not in _FORMATS:
        raise typer.BadParameter(f"expected {', '.join(_FORMATS)}; got {name!r}")
    return name


_Format = Annotated[
    str, typer.Option("--format", metavar="FORMAT", callback=_known, help=f"One of: {', '.join(_FORMATS)}.")
]
_Events = Annotated[
    str | None,
    typer.Option("--events", metavar="A:B", help="snapshot: only events A to B, such as 1000:1999 or 1000:."),
]
_Iterations = Annotated[
    str | None, typer.Option("--iterations", metavar="A:B", help="snapshot: only iterations A to B.")
]
_NoCpp = Annotated[bool, typer.Option("--no-cpp-frames", help="Leave out the frames of C++ code.")]
_Redact = Annotated[
    bool,
    typer.Option(
        "--redact",
        help="snapshot: replace the names of files, functions and annotations, so that it can be given away.",
    ),
]

_RedactAll = Annotated[
    bool,
    typer.Option(
        "--redact-all",
        help="As --redact, with times and addresses moved.",
    ),
]

_CsvSafe = Annotated[
    bool, typer.Option("--csv-safe", help="csv: put an apostrophe before texts that a spreadsheet would run.")
]


def export(
    snapshot: Snapshot,
    *,
    format: _Format,
    output: Output = None,
    force: Force = False,
    device: OneDevice = None,
    at: At = "peak",
    events: _Events = None,
    iterations: _Iterations = None,
    no_cpp_frames: _NoCpp = False,
    redact: _Redact = False,
    redact_all: _RedactAll = False,
    csv_safe: _CsvSafe = False,
    read: ReadOptions,
    quiet: Quiet = False,
) -> None:
    """Write it for other programs: a smaller snapshot, traces, tables.

    perfetto, chrome: a trace for ui.perfetto.dev, or as JSON; every device, its memory over time.
    speedscope, folded, pprof: what is live on one device --at a moment, by stack, weighted by bytes.
    csv, parquet (folders of files), jsonl: the tables of `to-sqlite --extended`, of one device.
    snapshot: a smaller snapshot of one device, which torch's memory_viz opens.
    """
    from snapconv import export as exports
    from snapconv.writers.exports.snapshot_pickle import SnapshotOptions

    window = {"--events": events, "--iterations": iterations, "--redact": redact, "--redact-all": redact_all}
    others = {"--at": at if at != "peak" else None, "--csv-safe": csv_safe}
    _refuse_what_has_no_effect(format, {**window, **others})
    options = exports.ExportOptions(
        format=format,
        output=output,
        force=force,
        at=moment_question(at),
        events=_range(events, "--events", instead_of=iterations),
        iterations=_range(iterations, "--iterations"),
        csv_safe=csv_safe,
        snapshot=SnapshotOptions(cpp_frames=not no_cpp_frames, redact=redact or redact_all, shift=redact_all),
    )
    path = exports.output_of(snapshot, options)
    session = read_session(snapshot, read, device=device)
    made = exports.export(session, path, options)
    if not quiet:
        _report(session, made)


def _report(session: "Session", made: "Exported") -> None:
    from snapconv.answers.notes import main_notes

    print_lines([f"written: {path.absolute()}" for path in made.files], sys.stdout)
    show_notes((*main_notes(session.analysis), *made.notes))


def _refuse_what_has_no_effect(name: str, given: dict[str, object]) -> None:
    """Refuse an option that the format does not have, above all --redact, which must not be trusted there."""
    for option, value in given.items():
        formats = _HAVE.get(option, ("snapshot",))
        if value and name not in formats:
            raise typer.BadParameter(f"it is for --format {', '.join(formats)} only", param_hint=option)


def _range(text: str | None, option: str, *, instead_of: str | None = None) -> "Range | None":
    if text and instead_of:
        raise typer.BadParameter("give --events or --iterations, not both", param_hint=option)
    from snapconv.answers.views.event_window import parse_range

    return None if text is None else parsed(text, parse_range, option)
