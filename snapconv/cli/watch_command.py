"""``snapconv watch``: run a program as it is, and have a capture where its memory runs out."""

import logging
import shlex
from typing import Annotated, Literal

import typer

from snapconv.cli.app import ProgramEnded
from snapconv.cli.arguments import chosen_ranks
from snapconv.cli.record_command import Args, IsModule, Simulated, lasting_until_exit, simulation_options
from snapconv.cli.terminal import say, show_raised

# Options end at the entry: what follows it is the program's.
COMMAND_SETTINGS = {"context_settings": {"allow_interspersed_args": False}}

_EntryName = Annotated[str, typer.Argument(metavar="ENTRY", help="A training script; with -m, a module.")]
_Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help="The folder for captures. Default: captures, here.",
        show_default=False,
    ),
]
_AllRanks = Annotated[
    bool,
    typer.Option(
        "--all-ranks", help="Where memory runs out in one rank, write captures of all. FOLDER must be shared."
    ),
]
_Stacks = Annotated[
    Literal["python", "all"],
    typer.Option(
        "--stacks",
        metavar="WHICH",
        show_default=False,
        help="Record Python's frames only (python), which costs least, or those of C++ too (all). Default: "
        "python.",
    ),
]
_MaxEntries = Annotated[
    int,
    typer.Option(
        "--max-entries",
        min=1,
        show_default=False,
        help="How many events torch keeps, the newest. Default: 100000.",
    ),
]
_MaxCaptures = Annotated[
    int, typer.Option("--max-captures", min=1, show_default=False, help="Write at most so many. Default: 3.")
]


def watch(
    entry: _EntryName,
    args: Args = None,
    is_module: IsModule = False,
    output: _Output = "captures",
    *,
    simulated: Simulated,
    ranks: str | None = None,
    all_ranks: _AllRanks = False,
    stacks: _Stacks = "python",
    max_entries: _MaxEntries = 100_000,
    max_captures: _MaxCaptures = 3,
) -> None:
    """Run a training script, and write a capture where its memory runs out.

    The script runs as it would with `python ENTRY ARGS`, with its own exit code. For every rank:
    `torchrun --nproc-per-node 8 -m snapconv watch train.py`.
    """
    from snapconv.recorder.options import NO_STEP
    from snapconv.recorder.program.entry import find_file, find_module
    from snapconv.recorder.record import watch as run
    from snapconv.recorder.recording import Recording

    simulation = simulation_options(simulated)
    _print_what_happens()
    found = find_module(entry) if is_module else find_file(entry)
    recording = Recording(
        output,
        steps=NO_STEP,
        stacks=stacks,
        max_entries=max_entries,
        max_captures=max_captures,
        ranks=chosen_ranks(ranks),
        on_other_oom=all_ranks,
    )
    with lasting_until_exit() as until_exit:
        code, raised = run(found, args or [], recording, simulation=simulation, until_exit=until_exit)
    if recording.captures:
        say(f"memory ran out; next: snapconv oom {shlex.quote(str(recording.captures[0]))}")
    if raised is not None:  # last of all, where Python has it and people look
        show_raised(raised)
    raise ProgramEnded(code, until_exit)


def _print_what_happens() -> None:
    """Have every capture and every warning of ours printed when it is there: the job may hang afterwards."""
    log = logging.getLogger("snapconv")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(_Stderr())


class _Stderr(logging.Handler):
    """Prints a record, also where stderr was closed or replaced since."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print it, with everything escaped that a name could do to a terminal."""
        say(record.getMessage().removeprefix("snapconv: "))
