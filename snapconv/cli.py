"""The command line: parse, call the library, print. NumPy and the rest load when a command runs."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from snapconv.errors import OutputWriteError, SnapconvError
from snapconv.units import printable
from snapconv.version import VERSION

if TYPE_CHECKING:
    from snapconv.analysis.paths import PathMap

Progress = Callable[[str, int, int], None]

_INTERRUPTED = 130

app = typer.Typer(
    name="snapconv",
    help="Read PyTorch CUDA memory snapshots offline: no GPU, no torch, nothing in the file is run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; see errors.py for the codes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except SnapconvError as error:
        _say([f"error: {error}"], sys.stderr)
        return error.exit_code
    except MemoryError:
        _say(["error: this machine's memory does not suffice for the file"], sys.stderr)
        return 3


def _run(argv: list[str]) -> int:
    try:
        app(argv)
    except SystemExit as stop:  # how typer ends, whatever happened
        if stop.code == _INTERRUPTED:
            _say(["interrupted: nothing was written"], sys.stderr)
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except OSError as error:  # only the terminal is left: files have errors of their own
        _give_up_stdout()
        raise OutputWriteError(f"the standard output cannot be written: {error.strerror}") from error
    return 0


def _give_up_stdout() -> None:
    """Keep the interpreter from failing once more when it flushes stdout at its end."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123  # no path, a device
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"snapconv {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options before the command."""


_Snapshot = Annotated[
    Path, typer.Argument(help="The snapshot: a pickle, its gzip, JSON, or a page of torch's viewer.")
]
_Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="The report's file. Default: SNAPSHOT.memory.sqlite beside the snapshot."
    ),
]
_Extended = Annotated[
    bool, typer.Option("--extended", help="Add snapconv's own tables; Skyline's stay as they are.")
]
_Device = Annotated[
    int | None, typer.Option("--device", help="Report this device only. Default: a report per device.")
]
_ProjectRoot = Annotated[
    str | None,
    typer.Option(
        "--project-root",
        help="The project's folder as recorded in the file; it need not exist here. Default: inferred.",
    ),
]
_PathMaps = Annotated[
    list[str] | None,
    typer.Option("--path-map", metavar="OLD=NEW", help="Show files below OLD as below NEW. May be repeated."),
]
_Force = Annotated[bool, typer.Option("--force", help="Replace an existing report.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@app.command("to-sqlite")
def _to_sqlite(
    snapshot: _Snapshot,
    output: _Output = None,
    extended: _Extended = False,
    device: _Device = None,
    project_root: _ProjectRoot = None,
    path_map: _PathMaps = None,
    force: _Force = False,
    as_json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Convert a snapshot to Skyline's SQLite memory report, one per device."""
    from snapconv.convert import ConvertOptions, to_sqlite
    from snapconv.reports.summary import note_lines, summary_lines, summary_values

    options = ConvertOptions(
        output=output,
        extended=extended,
        device=device,
        project_root=project_root,
        path_maps=_path_maps(path_map or []),
        force=force,
    )
    with _progress(shown=not quiet) as progress:
        made = to_sqlite(snapshot, options, progress=progress)
    if quiet:
        return
    _say(note_lines(tuple(note for _, report in made.reports for note in report.notes)), sys.stderr)
    if as_json:
        _print_json(summary_values(made.reports))
    else:
        _say(summary_lines(made.reports), sys.stdout)


@app.command("info")
def _info(snapshot: _Snapshot, as_json: _Json = False) -> None:
    """Say what a snapshot file is: torch version, devices, events, settings, history."""
    from snapconv.describe import describe
    from snapconv.reports.summary import note_lines

    with _progress(shown=True) as progress:
        facts = describe(snapshot, progress=progress)
    if as_json:
        _print_json(facts.values())
        return
    _say(facts.lines(), sys.stdout)
    _say(note_lines(facts.notes), sys.stderr)


def _path_maps(texts: Sequence[str]) -> "tuple[PathMap, ...]":
    from snapconv.convert import parse_path_map

    try:
        return tuple(parse_path_map(text) for text in texts)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--path-map") from error


def _say(lines: Iterable[str], stream: TextIO | None) -> None:
    """Print lines, with everything escaped that a name in a file could do to a terminal."""
    if stream is None:  # closed by whoever started us
        return
    for line in lines:
        print(printable(line), file=stream)
    stream.flush()


def _print_json(values: object) -> None:
    import orjson

    text = orjson.dumps(_writable(values), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    sys.stdout.write(text.decode())
    sys.stdout.flush()


def _writable(values: object) -> object:
    """The same values with lone surrogates escaped: they are in no text that UTF-8 can hold."""
    if isinstance(values, str):
        return values.encode("utf-8", "backslashreplace").decode()
    if isinstance(values, dict):
        return {_writable(key): _writable(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_writable(value) for value in values]
    return values


@contextmanager
def _progress(*, shown: bool) -> Iterator[Progress | None]:
    """A progress bar on stderr where that is a terminal; None elsewhere."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening", total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)
