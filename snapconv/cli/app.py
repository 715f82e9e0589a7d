"""The command line: parse, call the library, print. NumPy and the rest load when a command runs."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from snapconv.cli.check_command import check
from snapconv.cli.diff_command import diff
from snapconv.cli.explain_command import explain
from snapconv.cli.export_command import export
from snapconv.cli.fragmentation_command import fragmentation
from snapconv.cli.growth_command import growth
from snapconv.cli.info_command import info
from snapconv.cli.oom_command import oom
from snapconv.cli.params_command import params
from snapconv.cli.plain_command import PlainCommand, PlainGroup
from snapconv.cli.record_command import CONTEXT_SETTINGS, ProgramEnded, RecordCommand, record
from snapconv.cli.summary_command import summary
from snapconv.cli.terminal import give_up_stdout, print_error, print_lines
from snapconv.cli.to_sqlite_command import to_sqlite
from snapconv.cli.tree_command import tree
from snapconv.cli.verdict_command import verdict, with_command
from snapconv.cli.view_command import view
from snapconv.cli.watch_command import watch
from snapconv.cli.what_if_command import what_if
from snapconv.errors import OutputWriteError, SnapconvError
from snapconv.garbage_collector import collector_off, collector_on
from snapconv.version import VERSION

# As shells count: 128 plus the number of the signal; 130 for Ctrl-C, 141 for the reader of a pipe that left.
_BY_SIGNAL = 128
_INTERRUPTED, _NOBODY_READS = _BY_SIGNAL + 2, _BY_SIGNAL + 13
# What a scheduler or `kill` sends, and a terminal that is closed (not on Windows).
_STOPPING = [number for number in signal.Signals if number.name in ("SIGTERM", "SIGHUP")]
# A program that runs in this process finds Python as it is.
_PROGRAM_COMMANDS = {"record", "watch", "params"}

app = typer.Typer(
    name="snapconv",
    cls=PlainGroup,
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
        if argv is not None:  # called from Python, and no process of its own
            ended.close()
        return ended.exit_code
    except SnapconvError as error:
        print_error(f"error: {error}")
        return error.exit_code
    except MemoryError:
        print_error("error: this machine's memory does not suffice for the file")
        return 3


def _run(argv: list[str]) -> int:
    line = with_command(argv, _commands())
    runs_a_program = bool(_PROGRAM_COMMANDS & set(line[:1]))
    try:
        with collector_on() if runs_a_program else collector_off():
            app(line)
    except SystemExit as stop:  # how typer ends, whatever happened
        if isinstance(stop.__context__, BrokenPipeError):  # for which typer has the code of any failure
            return _NOBODY_READS
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if code == _INTERRUPTED or code - _BY_SIGNAL in _STOPPING:
            print_error("stopped: no unfinished file is left behind")
        return code
    except OSError as error:  # only the terminal is left: files have errors of their own
        give_up_stdout()
        raise OutputWriteError(f"the standard output cannot be written: {error.strerror}") from error
    return 0


def _commands() -> set[str]:
    """The names of all commands."""
    return {info.name for info in app.registered_commands if info.name}


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
        from snapconv.native.library import kind

        print_lines([f"snapconv {VERSION} ({kind()})"], sys.stdout)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options before the command."""


def _command(
    name: str, short_help: str, *, cls: type[TyperCommand] = PlainCommand, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command; its short help is given so that `snapconv --help` never cuts it off with dots."""
    return app.command(name, short_help=short_help, cls=cls, **settings)


_command("to-sqlite", "Convert a snapshot to Skyline's SQLite memory report.")(to_sqlite)
_command("verdict", "Say what matters most; `snapconv FILE` does it too.")(verdict)
_command("summary", "Show what is live at the peak, or at any other moment.")(summary)
_command("tree", "Show live memory as a tree of lines, modules or operations.")(tree)
_command("oom", "Explain why memory ran out, and try what would have helped.")(oom)
_command("fragmentation", "Show what is reserved and not used, and which lines keep it.")(fragmentation)
_command("what-if", "Try other allocator settings, or another card, by a replay.")(what_if)
_command("info", "Show what a snapshot contains, and how much of the job it covers.")(info)
_command("view", "Write a page that shows a snapshot in any browser, or compares two.")(view)
_command(
    "record",
    "Run a training script and record its memory and its times.",
    cls=RecordCommand,
    context_settings=CONTEXT_SETTINGS,
)(record)
_command(
    "watch",
    "Run a training script, and write a capture where its memory runs out.",
    context_settings=CONTEXT_SETTINGS,
)(watch)
_command("params", "Write the names, shapes and types of a model's parameters.")(params)
_command("explain", "Show what an allocation was for, and how that is known.")(explain)
_command("growth", "Show the lines whose memory grows from iteration to iteration.")(growth)
_command("diff", "Compare two files: what appeared, went and grew, and what it did to the peak.")(diff)
_command("check", "Check limits for the memory, and end with 7 where one does not hold.")(check)
_command("export", "Write it for other programs: a smaller snapshot, traces, tables.")(export)
