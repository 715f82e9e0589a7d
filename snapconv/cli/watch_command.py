"""``snapconv watch``: run a program as it is, and have a capture where its memory runs out."""

import logging
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from snapconv.cli.arguments import (
    ProgramOptions,
    RanksOption,
    chosen_ranks,
    output_option,
)
from snapconv.cli.program_end import ProgramEnded, lasting_until_exit
from snapconv.cli.record_command import Simulated, launched, simulation_options
from snapconv.cli.terminal import print_lines, say, show_raised


def watch(
    entry: Annotated[
        str | None,
        typer.Argument(metavar="ENTRY", help="A training script; with -m, a module."),
    ] = None,
    *,
    program: ProgramOptions,
    pid: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Run nothing: have process N, which was started with `snapconv watch` or has "
            "a MemoryCallback, write a capture now.",
            min=1,
        ),
    ] = None,
    output: Annotated[
        str,
        output_option(
            "The folder for captures, or the URL of one in a store, to which a "
            "thread copies them. Default: captures, here.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = "captures",
    simulated: Simulated,
    ranks: RanksOption = None,
    all_ranks: Annotated[
        bool,
        typer.Option(
            "--all-ranks",
            help="When memory runs out in one rank, write captures of all: needs a "
            "shared FOLDER, or torch.distributed.",
        ),
    ] = False,
    stacks: Annotated[
        Literal["python", "all"],
        typer.Option(
            metavar="WHICH",
            help="Record Python's frames only (python), which costs least, or those of "
            "C++ too (all). Default: python.",
            show_default=False,
        ),
    ] = "python",
    max_entries: Annotated[
        int,
        typer.Option(
            help="How many events torch keeps, the newest. Default: 100000.",
            min=1,
            show_default=False,
        ),
    ] = 100_000,
    max_captures: Annotated[
        int,
        typer.Option(
            help="Write at most N captures. Default: 3.", min=1, show_default=False
        ),
    ] = 3,
) -> None:
    """Run a training script, and write a capture when its memory runs out.

    The script runs as it would with `python ENTRY ARGS`, with its own exit code. For every rank:
    `torchrun --nproc-per-node 8 -m snapconv watch train.py`. A capture of this moment, from
    another terminal: `snapconv watch --pid N`.
    """
    if pid is not None:
        _request(pid, entry)
        return
    if entry is None:
        raise typer.BadParameter("give a script, or --pid", param_hint="ENTRY")
    from snapconv.recorder.options import NO_STEP
    from snapconv.recorder.record import watch as run
    from snapconv.recorder.recording import Recording
    from snapconv.simulation import set_variables

    chosen = chosen_ranks(ranks)
    launch = launched(entry, program, simulated, ranks=chosen)
    simulation = simulation_options(launch.simulated, ranks=chosen)
    # Every capture and every warning of ours is printed when it is there: the job may hang
    # afterwards.
    log = logging.getLogger("snapconv")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(_Stderr())
    user_program = launch.program.find(launch.entry)
    recording = Recording(
        output,
        steps=NO_STEP,
        stacks=stacks,
        max_entries=max_entries,
        max_captures=max_captures,
        ranks=chosen,
        on_other_oom=all_ranks,
        on_request=True,
    )
    with lasting_until_exit() as lifetime:
        lifetime.enter_context(set_variables(launch.environment))
        code, error = run(
            user_program,
            launch.program.args or [],
            recording,
            simulation=simulation,
            simulation_parts=lifetime,
        )
    _say_what_is_next(recording.captures, output, is_job=all_ranks or "://" in output)
    if error is not None:  # last of all, where Python has it and people look
        show_raised(error)
    raise ProgramEnded(code, lifetime)


def _say_what_is_next(captures: list[Path], output: str, *, is_job: bool) -> None:
    """Name the next command where memory ran out in this rank; another rank names its own."""
    ran_out = [
        path for path in captures if "oom-" in path.name and "other-oom" not in path.name
    ]
    if ran_out:
        question, folder = ("ranks", output) if is_job else ("oom", str(ran_out[0]))
        say(f"memory ran out; next: snapconv {question} {shlex.quote(folder)}")


def _request(pid: int, entry: str | None) -> None:
    """Have a process write a capture, and print its path."""
    from snapconv.recorder.requests import request_capture

    if entry is not None:
        raise typer.BadParameter("a process that runs takes no script", param_hint="--pid")
    for path in request_capture(pid):
        print_lines([f"written: {path}"], sys.stdout)


class _Stderr(logging.Handler):
    """Prints a record, also where stderr was closed or replaced since."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print it, with everything escaped that a name could do to a terminal."""
        say(record.getMessage().removeprefix("snapconv: "))
