"""The command line: parse, call the library, print. Only the command that is called is loaded."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from snapconv.cli import outputs
from snapconv.cli.answers import error_values
from snapconv.cli.arguments import Command, flat
from snapconv.cli.program_end import ProgramEnded
from snapconv.cli.questions import QUESTION_COMMANDS
from snapconv.cli.terminal import (
    give_up_stdout,
    open_stdout,
    print_error,
    print_json,
    print_lines,
)
from snapconv.errors import BudgetExceeded, InputError, OutputWriteError, SnapconvError
from snapconv.files import is_capture
from snapconv.stop_signals import BY_SIGNAL, STOPPING, signals_raise, stage
from snapconv.version import VERSION

# Exit codes after Ctrl-C, and after the reader of a pipe has left.
_INTERRUPTED, _NOBODY_READS = BY_SIGNAL + 2, BY_SIGNAL + 13
# These commands run a program of the user in this process.
_PROGRAM_COMMANDS = {"record", "watch"}
_OUTPUTS: dict[str, Callable[..., None]] = {
    "cut": outputs.cut,
    "export": outputs.export,
    "to-sqlite": outputs.to_sqlite,
    "view": outputs.view,
}
_LOADED_WHEN_CALLED = ("fit", "mcp", "ranks", "record", "watch")
# Every command.
COMMANDS = (*QUESTION_COMMANDS, *sorted((*_OUTPUTS, *_LOADED_WHEN_CALLED)))
# The groups of the help, each with its commands in order.
GROUPS = {
    "What fills the memory": (
        *("verdict", "summary", "tree", "annotate", "growth", "fragmentation"),
        *("explain", "info"),
    ),
    "What to change": ("oom", "advise", "what-if", "fit"),
    "Several files, and limits": ("diff", "check", "ranks"),
    "Pages, tables and traces": ("view", "export", "to-sqlite", "cut"),
    "Recording, and agents": ("record", "watch", "mcp"),
}
# The commands of a line that begins with a file, or with a folder of a job's files.
_FILE_COMMAND, _FOLDER_COMMAND = "verdict", "ranks"
_HELP = {"help_option_names": ["--help", "-h"]}
_PLAIN_OUTPUT: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


class _GroupedHelp(TyperGroup):
    """The command line, whose help lists the commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of the help that list the commands."""
        width = max(map(len, self.commands), default=0)
        for title, names in GROUPS.items():
            rows = [
                (
                    f"{name:<{width}}",
                    self.commands[name].get_short_help_str(formatter.width),
                )
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


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
        return _failed(
            line, InputError("this machine's memory does not suffice for the file")
        )


def _run(line: list[str]) -> int:
    name = line[0] if line else ""
    is_program = name in _PROGRAM_COMMANDS
    if not is_program:  # a program that is recorded finds stdout as it is
        open_stdout()
    try:
        with signals_raise(is_program=is_program):
            if name in COMMANDS:
                _app_of(name)(line[1:], prog_name=f"snapconv {name}")
            else:
                whole_app()(line, prog_name="snapconv")
    except SystemExit as stop:  # how typer ends, whatever happened
        error = stop.__context__
        if isinstance(error, BrokenPipeError):  # typer gives it the code of any failure
            return _NOBODY_READS
        if hasattr(error, "format_message"):  # a wrong command line
            _print_document(line, error)
        code = _code_of(stop)
        if code == _INTERRUPTED or code - BY_SIGNAL in STOPPING:
            print_error("stopped: no unfinished file is left behind")
        return code
    except OSError as error:  # only the terminal is left: files have errors of their own
        give_up_stdout()
        reason = error.strerror or "it is closed"
        raise OutputWriteError(
            f"the standard output cannot be written: {reason}"
        ) from error
    return 0


def _code_of(stop: SystemExit) -> int:
    """Return the exit code with which Python would end: 1 for a text."""
    if isinstance(stop.code, int):
        return stop.code
    return 0 if stop.code is None else 1


def _failed(line: list[str], error: SnapconvError) -> int:
    print_error(f"error: {error}")
    # A budget's document is the answer, which is printed already.
    if not isinstance(error, BudgetExceeded):
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
            f"{words[0]} is a folder: comparing its files as ranks of a job (snapconv "
            f"ranks {words[0]})"
        )
        return [_FOLDER_COMMAND, *words]
    if len(words) > 1 and all(map(os.path.exists, words)):
        files = " ".join(words)
        print_error(
            f"error: several files: type `snapconv ranks {files}`, or `snapconv diff "
            f"OLD NEW` for two"
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
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Options before the command."""


def whole_app() -> typer.Typer:
    """Make the command line with all commands, whose modules are loaded."""
    app = typer.Typer(
        name="snapconv",
        cls=_GroupedHelp,
        help="Show what fills GPU memory and takes time: read PyTorch's memory "
        "snapshots (no GPU, no torch, nothing in the file is run), or record a "
        "training script. `snapconv help COMMAND` shows a command's options.",
        no_args_is_help=True,
        context_settings=_HELP,
        **_PLAIN_OUTPUT,
    )
    app.callback()(_options)
    for name in COMMANDS:
        _add(app, name)
    return app


def _app_of(name: str) -> typer.Typer:
    """Make the command line of one command alone: what precedes a command needs no parsing."""
    app = typer.Typer(add_completion=False, **_PLAIN_OUTPUT)
    _add(app, name)
    return app


def _add(app: typer.Typer, name: str) -> None:
    function, command_class = _load(name)
    command = flat(function)
    summary = (command.__doc__ or "").partition("\n")[0]
    settings: dict[str, Any] = dict(_HELP)
    if name in _PROGRAM_COMMANDS:
        settings["allow_interspersed_args"] = (
            False  # what follows the entry is the program's
        )
    else:
        command = stage(command)
    add = app.command(
        name, short_help=summary, cls=command_class, context_settings=settings
    )
    add(command)


def _load(name: str) -> tuple[Callable[..., None], type[Command]]:
    """Return the function of a command and its class; loads the modules of the last ones."""
    command = QUESTION_COMMANDS.get(name) or _OUTPUTS.get(name)
    if command is not None:
        return command, Command
    module = import_module(f"snapconv.cli.{name}_command")
    return getattr(module, name), getattr(module, "RecordCommand", Command)
