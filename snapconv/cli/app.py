"""The command line: parse, call the library, print. Of the commands only the one that is called is loaded."""

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Annotated, NamedTuple

import typer

from snapconv.cli.terminal import give_up_stdout, open_stdout, print_error, print_lines
from snapconv.errors import OutputWriteError, SnapconvError
from snapconv.stop_signals import BY_SIGNAL, STOPPING, signals_raise, stage
from snapconv.version import VERSION

# Of Ctrl-C, and of the reader of a pipe that left.
_INTERRUPTED, _NOBODY_READS = BY_SIGNAL + 2, BY_SIGNAL + 13
# They run a program of the user in this process.
_PROGRAM_COMMANDS = {"record", "watch", "params"}


class Command(NamedTuple):
    """A command: the module of its function, and its help in a line that no terminal cuts."""

    module: str
    help: str


# Every command. Its function has its name, with _ in place of -; its module may have COMMAND_SETTINGS.
COMMANDS = {
    "to-sqlite": Command("to_sqlite_command", "Convert a snapshot to Skyline's SQLite memory report."),
    "verdict": Command("questions", "Say what matters most; `snapconv FILE` does it too."),
    "summary": Command("questions", "Show what is live at the peak, or at any other moment."),
    "tree": Command("questions", "Show live memory as a tree of lines, modules or operations."),
    "oom": Command("oom_command", "Explain why memory ran out, and try what would have helped."),
    "fragmentation": Command("questions", "Show what is reserved and not used, and which lines keep it."),
    "what-if": Command("what_if_command", "Try other allocator settings, or another card, by a replay."),
    "info": Command("questions", "Show what a snapshot contains, and how much of the job it covers."),
    "view": Command("view_command", "Write a page that shows a snapshot in any browser, or compares two."),
    "record": Command("record_command", "Run a training script and record its memory and its times."),
    "watch": Command(
        "watch_command", "Run a training script, and write a capture where its memory runs out."
    ),
    "params": Command("params_command", "Write the names, shapes and types of a model's parameters."),
    "explain": Command("questions", "Show what an allocation was for, and how that is known."),
    "growth": Command("questions", "Show the lines whose memory grows from iteration to iteration."),
    "diff": Command(
        "diff_command", "Compare two files: what appeared, went and grew, and what it did to the peak."
    ),
    "check": Command("check_command", "Check limits for the memory, and end with 7 where one does not hold."),
    "export": Command("export_command", "Write it for other programs: a smaller snapshot, traces, tables."),
}
_WITHOUT_NAME = "verdict"


class ProgramEnded(Exception):
    """The program is over, and ``exit_code`` is to be the exit code of the command line.

    ``until_exit`` is closed when the process ends; whoever lives on after the command closes it before.
    """

    def __init__(self, exit_code: int, until_exit: ExitStack | None = None) -> None:
        super().__init__(exit_code)
        self.exit_code, self._until_exit = exit_code, until_exit

    def close(self) -> None:
        """End what would last until the process does."""
        if self._until_exit is not None:
            atexit.unregister(self._until_exit.close)
            self._until_exit.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; see errors.py for the codes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
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


@contextmanager
def collector_on() -> Iterator[None]:
    """Switch Python's cyclic collector on while a program of the user runs in this process."""
    was_on = gc.isenabled()
    gc.enable()
    try:
        yield
    finally:
        if not was_on:
            gc.disable()


def _run(argv: list[str]) -> int:
    line = _with_command(argv)
    name = line[0] if line else ""
    is_program = name in _PROGRAM_COMMANDS
    if not is_program:  # a program that is recorded finds stdout as it is
        open_stdout()
    try:
        with signals_raise(is_program=is_program), collector_on() if is_program else nullcontext():
            app_with([name] if name in COMMANDS else COMMANDS)(line)
    except SystemExit as stop:  # how typer ends, whatever happened
        if isinstance(stop.__context__, BrokenPipeError):  # for which typer has the code of any failure
            return _NOBODY_READS
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if code == _INTERRUPTED or code - BY_SIGNAL in STOPPING:
            print_error("stopped: no unfinished file is left behind")
        return code
    except OSError as error:  # only the terminal is left: files have errors of their own
        give_up_stdout()
        reason = error.strerror or "it is closed"
        raise OutputWriteError(f"the standard output cannot be written: {reason}") from error
    return 0


def _with_command(argv: list[str]) -> list[str]:
    """Add the command to a command line that begins with a file."""
    if argv and argv[0] not in COMMANDS and _is_file(argv[0]):
        return [_WITHOUT_NAME, *argv]
    return argv


def _is_file(word: str) -> bool:
    """Whether a word is meant as a file: there is one, or no command could have such a name."""
    if not word or word.startswith("-"):
        return False
    # In a folder that may not be searched, and of a name that is too long, nothing can be said to exist.
    return "." in word or "/" in word or "\\" in word or os.path.exists(word)  # noqa: PTH110  # Path's raises


def _show_version(wanted: bool) -> None:
    if wanted:
        from snapconv.native.library import kind

        print_lines([f"snapconv {VERSION} ({kind()})"], sys.stdout)
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options before the command."""


def app_with(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """Make the command line with these of its commands, whose modules are loaded."""
    app = typer.Typer(
        name="snapconv",
        help="Where GPU memory and time went: read PyTorch's memory snapshots (no GPU, no torch, nothing in "
        "the file is run), or record a training script.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for name in commands:
        module = importlib.import_module(f"snapconv.cli.{COMMANDS[name].module}")
        command = getattr(module, name.replace("-", "_"))
        is_program = name in _PROGRAM_COMMANDS
        settings = getattr(module, "COMMAND_SETTINGS", {})
        app.command(name, short_help=COMMANDS[name].help, **settings)(
            command if is_program else stage(command)
        )
    return app
