"""The command line: parse, call the library, print. NumPy and the rest load when a command runs."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from snapconv.devices import parse_device
from snapconv.errors import InputError, OutputWriteError, SnapconvError
from snapconv.params_cli import params
from snapconv.record_cli import CONTEXT_SETTINGS, Command, ProgramEnded, record
from snapconv.terminal import complain, give_up_stdout, print_json, progress_bar, say
from snapconv.version import VERSION

if TYPE_CHECKING:
    from snapconv.analysis.paths import PathMap

# As shells count: 128 plus the number of the signal; 130 for Ctrl-C, 141 for the reader of a pipe that left.
_BY_SIGNAL = 128
_INTERRUPTED, _NOBODY_READS = _BY_SIGNAL + 2, _BY_SIGNAL + 13
# What a scheduler or `kill` sends, and a terminal that is closed (not on Windows).
_STOPPING = [number for number in signal.Signals if number.name in ("SIGTERM", "SIGHUP")]

app = typer.Typer(
    name="snapconv",
    help="Where GPU memory and time went: read PyTorch's memory snapshots (no GPU, no torch, nothing in the "
    "file is run), or record a training script.",
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
        with _signals_raise():
            return _run(list(sys.argv[1:] if argv is None else argv))
    except ProgramEnded as ended:
        return ended.exit_code
    except SnapconvError as error:
        complain(f"error: {error}")
        return error.exit_code
    except MemoryError:
        complain("error: this machine's memory does not suffice for the file")
        return 3


def _run(argv: list[str]) -> int:
    try:
        app(argv)
    except SystemExit as stop:  # how typer ends, whatever happened
        if isinstance(stop.__context__, BrokenPipeError):  # for which typer has the code of any failure
            return _NOBODY_READS
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if code == _INTERRUPTED or code - _BY_SIGNAL in _STOPPING:
            complain("stopped: no unfinished file is left behind")
        return code
    except OSError as error:  # only the terminal is left: files have errors of their own
        give_up_stdout()
        raise OutputWriteError(f"the standard output cannot be written: {error.strerror}") from error
    return 0


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Let a signal that would end the program end it by an exception, so that everything is tidied up.

    One that is ignored (nohup) or handled by someone else stays so.
    """

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(_BY_SIGNAL + number)

    ours = [number for number in _STOPPING if signal.getsignal(number) == signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, leave)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _show_version(wanted: bool) -> None:
    if wanted:
        say([f"snapconv {VERSION}"], sys.stdout)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options before the command."""


def _no_pipe(path: Path) -> Path:
    """Refuse a pipe before it is opened, which may wait for ever."""
    with suppress(OSError):  # what cannot be looked at has its error when it is read
        if path.is_fifo():
            raise InputError(f"{path} is a pipe, and a snapshot is read twice: save it to a file first")
    return path


def _output_file(text: str | None) -> Path | None:
    """Refuse what is no file's name, while it still says so: a Path has lost the slash at its end."""
    if text == "-":
        raise OutputWriteError("cannot write -: a report is an SQLite file and no stream; name a file")
    if text and text.endswith(("/", os.sep)) and text.strip("/" + os.sep):
        raise OutputWriteError(
            f"cannot write {text}: it is a folder's name; say --output {text}NAME.memory.sqlite"
        )
    return Path(text) if text is not None else None


# Whether a file can be read is seen when it is read: typer's own look at it would end with the code of a
# wrong command line.
_Snapshot = Annotated[
    Path,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A snapshot (a pickle, its gzip, JSON, a page of torch's viewer), or a capture's folder.",
        callback=_no_pipe,
        readable=False,
    ),
]
_Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="The report's file. Default: SNAPSHOT.memory.sqlite beside the snapshot. A capture with times "
        "becomes NAME.memory.sqlite and NAME.time.sqlite: name either, or NAME alone.",
    ),
]
_Extended = Annotated[
    bool, typer.Option("--extended", help="Add snapconv's own tables; Skyline's stay as they are.")
]
_Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="N", help="Report this device only, or `host` for pinned memory. Default: each."
    ),
]
_ProjectRoot = Annotated[
    str | None,
    typer.Option(
        "--project-root",
        help="Count only what lies below this folder as the project; as recorded, it need not exist here. "
        "Default: all Python files that are not installed.",
    ),
]
_Includes = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="PACKAGE_OR_PATH",
        help="Count a library as part of the project too: a package such as timm.models, or a folder as the "
        "file has it. May be repeated. Always counted: transformers.models, diffusers.models.",
    ),
]
_PathMaps = Annotated[
    list[str] | None,
    typer.Option("--path-map", metavar="OLD=NEW", help="Show files below OLD as below NEW. May be repeated."),
]
_Rules = Annotated[
    Path | None,
    typer.Option(
        "--rules",
        help="Your own rules for categories (TOML or JSON), asked before snapconv's.",
        readable=False,
    ),
]
_Params = Annotated[
    Path | None,
    typer.Option(
        "--params",
        help="Names for weights that no recording named: safetensors, its index, or JSON (snapconv params).",
        readable=False,
    ),
]
# As text: an empty name would be the current folder as a path.
_Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="FOLDER",
        help="The program's source files, or site-packages, to name operations by their lines. Read, never "
        "run. May be repeated.",
    ),
]
_Force = Annotated[bool, typer.Option("--force", help="Replace an existing report.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


# The short help is given so that `snapconv --help` never cuts it off with dots.
@app.command("to-sqlite", short_help="Convert a snapshot to Skyline's SQLite memory report.")
def _to_sqlite(
    snapshot: _Snapshot,
    output: _Output = None,
    extended: _Extended = False,
    device: _Device = None,
    project_root: _ProjectRoot = None,
    include: _Includes = None,
    path_map: _PathMaps = None,
    rules: _Rules = None,
    params: _Params = None,
    source: _Sources = None,
    force: _Force = False,
    as_json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Convert a snapshot to Skyline's SQLite memory report, one per device.

    A capture with times becomes Skyline's run time report too.
    """
    from snapconv.convert import ConvertOptions, to_sqlite
    from snapconv.reports.summary import note_lines, summary_lines, summary_values

    options = ConvertOptions(
        output=_output_file(output),
        extended=extended,
        device=_device(device),
        project_root=project_root,
        includes=tuple(include or ()),
        path_maps=_path_maps(path_map or []),
        rules=rules,
        params=params,
        sources=tuple(source or ()),
        force=force,
    )
    with progress_bar(shown=not quiet) as progress:
        made = to_sqlite(snapshot, options, progress=progress)
    if quiet:
        return
    say(note_lines(made.all_notes), sys.stderr)
    if as_json:
        print_json(summary_values(made.reports, made.time))
    else:
        say(summary_lines(made.reports, made.time), sys.stdout)


@app.command("info", short_help="Say what is in a snapshot, and how much of the job it covers.")
def _info(snapshot: _Snapshot, as_json: _Json = False, quiet: _Quiet = False) -> None:
    """Say what a snapshot file is: torch version, devices, events, settings, history."""
    from snapconv.describe import describe
    from snapconv.reports.summary import note_lines

    with progress_bar(shown=not quiet) as progress:
        facts = describe(snapshot, progress=progress)
    if quiet:
        return
    say(note_lines(facts.notes), sys.stderr)
    if as_json:
        print_json(facts.values())
    else:
        say(facts.lines(), sys.stdout)


app.command(
    "record",
    short_help="Run a training script and record its memory and its times.",
    cls=Command,
    context_settings=CONTEXT_SETTINGS,
)(record)
app.command("params", short_help="Write the names, shapes and types of a model's parameters.")(params)


@app.command("explain", short_help="Say what an allocation was for, and how that is known.")
def _explain(
    snapshot: _Snapshot,
    question: Annotated[
        str,
        typer.Argument(
            metavar="ADDR-OR-EVENT",
            help="An address such as 0x7f3c40001000, also inside a block, or an event such as '#1234'.",
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="N", help="Look at this device only, or `host`. Default: at all."),
    ] = None,
    project_root: _ProjectRoot = None,
    include: _Includes = None,
    path_map: _PathMaps = None,
    rules: _Rules = None,
    source: _Sources = None,
    stack: Annotated[bool, typer.Option("--stack", help="Show whole stacks, also that of the free.")] = False,
    as_json: _Json = False,
) -> None:
    """Explain an allocation: its size, its life, its category, and the evidence for and against it."""
    from snapconv.explain import parse_question
    from snapconv.reports.summary import note_lines
    from snapconv.session import load

    try:
        parse_question(question)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="ADDR-OR-EVENT") from error
    chosen = _device(device)
    with progress_bar(shown=True) as progress:
        session = load(
            snapshot,
            project_root=project_root,
            includes=include or (),
            path_maps=_path_maps(path_map or []),
            rules=rules or (),
            sources=source or (),
            progress=progress,
        )
        found = session.explain(question, device=chosen)
    say(note_lines(session.notes), sys.stderr)
    if as_json:
        print_json(found.values())
    else:
        say(found.lines(whole_stack=stack), sys.stdout)


def _device(text: str | None) -> int | None:
    try:
        return None if text is None else parse_device(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error


def _path_maps(texts: Sequence[str]) -> "tuple[PathMap, ...]":
    from snapconv.convert import parse_path_map

    try:
        return tuple(parse_path_map(text) for text in texts)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--path-map") from error
