"""The command line: parse, call the library, print. Only the command that is called is loaded."""

import atexit
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

import snapconv.cli
from snapconv.cli import outputs, questions
from snapconv.cli.answers import QUESTIONS, error_values
from snapconv.cli.arguments import Command, Commands, expanded
from snapconv.cli.outputs import OUTPUTS
from snapconv.cli.terminal import give_up_stdout, open_stdout, print_error, print_json, print_lines
from snapconv.errors import BudgetExceeded, InputError, OutputWriteError, SnapconvError
from snapconv.files import is_capture
from snapconv.stop_signals import BY_SIGNAL, STOPPING, signals_raise, stage
from snapconv.version import VERSION

# Exit codes after Ctrl-C, and after the reader of a pipe has left.
_INTERRUPTED, _NOBODY_READS = BY_SIGNAL + 2, BY_SIGNAL + 13
# These commands run a program of the user in this process.
_PROGRAM_COMMANDS = {"record", "watch"}


# Every command: the questions, the outputs, and of each module NAME_command its function of that
# name.
_MODULES = (
    name for _, name, _ in pkgutil.iter_modules(snapconv.cli.__path__) if name.endswith("_command")
)
_OTHERS = (name.removesuffix("_command").replace("_", "-") for name in _MODULES)
COMMANDS = (*QUESTIONS, *sorted((*OUTPUTS, *_OTHERS)))
# The commands of a line that begins with a file, or with a folder of a job's files.
_FILE_COMMAND, _FOLDER_COMMAND = "verdict", "ranks"
_HELP = {"help_option_names": ["--help", "-h"]}


class ProgramEnded(Exception):
    """The program is over, and ``exit_code`` is to be the exit code of the command line.

    ``until_exit`` is closed when the process ends; whoever lives on after the command closes it
    before.
    """

    def __init__(self, exit_code: int, until_exit: ExitStack | None = None) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
        self._until_exit = until_exit

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
    line = list(sys.argv[1:] if argv is None else argv)
    try:
        line = _add_command(line)
        return _run(line)
    except ProgramEnded as ended:
        if argv is not None:  # called from Python, and no process of its own
            ended.close()
        return ended.exit_code
    except SnapconvError as error:
        return _failed(line, error)
    except MemoryError:
        return _failed(line, InputError("this machine's memory does not suffice for the file"))


def _run(line: list[str]) -> int:
    name = line[0] if line else ""
    is_program = name in _PROGRAM_COMMANDS
    if not is_program:  # a program that is recorded finds stdout as it is
        open_stdout()
    try:
        with signals_raise(is_program=is_program):
            app_with([name] if name in COMMANDS else COMMANDS)(line, prog_name="snapconv")
    except SystemExit as stop:  # how typer ends, whatever happened
        error = stop.__context__
        if isinstance(error, BrokenPipeError):  # typer gives it the code of any failure
            return _NOBODY_READS
        if hasattr(error, "format_message"):  # a wrong command line
            _print_document(line, error)
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if code == _INTERRUPTED or code - BY_SIGNAL in STOPPING:
            print_error("stopped: no unfinished file is left behind")
        return code
    except OSError as error:  # only the terminal is left: files have errors of their own
        give_up_stdout()
        reason = error.strerror or "it is closed"
        raise OutputWriteError(f"the standard output cannot be written: {reason}") from error
    return 0


def _failed(line: list[str], error: SnapconvError) -> int:
    print_error(f"error: {error}")
    if not isinstance(error, BudgetExceeded):  # its document is the answer, which is printed
        _print_document(line, error)
    return error.exit_code


def _print_document(line: list[str], error: BaseException | None) -> None:
    if "--json" in line and line[0] not in _PROGRAM_COMMANDS:
        with suppress(OSError):
            print_json({"error": error_values(error)})


def _add_command(words: list[str]) -> list[str]:
    """Add the command to a line that begins with a file or folder; turn ``help`` into an option."""
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    if not words or words[0] in COMMANDS or not _is_file(words[0]):
        return words
    if os.path.isdir(words[0]) and not is_capture(Path(words[0])):  # noqa: PTH112
        print_error(
            f"{words[0]} is a folder: comparing its files as ranks of a job (snapconv ranks "
            f"{words[0]})"
        )
        return [_FOLDER_COMMAND, *words]
    if len(words) > 1 and all(map(os.path.exists, words)):
        files = " ".join(words)
        print_error(
            f"error: several files: type `snapconv ranks {files}`, or `snapconv diff OLD NEW` for "
            f"two"
        )
        raise ProgramEnded(2)  # a wrong command line
    return [_FILE_COMMAND, *words]


def _is_file(word: str) -> bool:
    """Return whether a word means a file: there is one, or no command could have such a name."""
    if word == "-":  # the standard input
        return True
    if not word or word.startswith("-"):
        return False
    if any(sign in word for sign in "./\\"):
        return True
    # Path.exists raises in a folder that may not be searched, and for a name that is too long.
    return os.path.exists(word)  # noqa: PTH110


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from snapconv.native.library import kind

        print_lines([f"snapconv {VERSION} ({kind()})"], sys.stdout)
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options before the command."""


def _module_of(function: str) -> ModuleType:
    for module in (questions, outputs):
        if hasattr(module, function):
            return module
    return importlib.import_module(f"snapconv.cli.{function}_command")


def app_with(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """Make the command line with these of its commands, whose modules are loaded."""
    app = typer.Typer(
        name="snapconv",
        cls=Commands,
        help="Show what fills GPU memory and takes time: read PyTorch's memory snapshots (no GPU, "
        "no torch, nothing in the file is run), or record a training script. `snapconv help "
        "COMMAND` shows a command's options.",
        no_args_is_help=True,
        context_settings=_HELP,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for name in commands:
        function = name.replace("-", "_")
        module = _module_of(function)
        command = expanded(getattr(module, function))
        settings = {"cls": Command} | getattr(module, "COMMAND_SETTINGS", {})
        settings["context_settings"] = _HELP | settings.get("context_settings", {})
        summary = (command.__doc__ or "").partition("\n")[0]
        run = command if name in _PROGRAM_COMMANDS else stage(command)
        app.command(name, short_help=summary, **settings)(run)
    return app
