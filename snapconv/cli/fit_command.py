"""``snapconv fit``: a script and the values to try -> the fewest cards that it fits on."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapconv.cli.arguments import (
    ForceOption,
    JsonOption,
    ProgramOptions,
    QuietOption,
    chosen_ranks,
    parsed,
)
from snapconv.cli.record_command import check_nproc_per_node, refuse_within_job
from snapconv.cli.terminal import (
    print_error,
    print_json,
    print_lines,
    progress_bar,
)
from snapconv.errors import BudgetExceeded, RecorderError
from snapconv.files import checked_output
from snapconv.units import counted

if TYPE_CHECKING:
    from snapconv.answers.fit import FitReport
    from snapconv.fitting.fit import FitOptions

_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class FittedProgram(ProgramOptions):
    """The program to fit: options of its own stand behind ``--``, since others may follow it."""

    args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGS", help="The script's own arguments; behind `--` its options too."
        ),
    ] = None


def fit(
    entry: Annotated[
        str,
        typer.Argument(metavar="ENTRY", help="A training script; with -m, a module."),
    ],
    *,
    program: FittedProgram,
    card: Annotated[
        str | None,
        typer.Option(
            metavar="CARD",
            help="A card's name, such as H100 or A100-40GB, or its whole memory, such as 80GiB; "
            "minus 1 GiB outside PyTorch, and 1 GiB for NCCL in a job of several ranks.",
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Exactly what PyTorch may have, such as 76GiB."),
    ] = None,
    world_size: Annotated[
        str | None,
        typer.Option(
            metavar="N,…",
            help="The numbers of ranks, one card each; each job is recorded as one rank of it. "
            "Default: one card, and no job.",
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V,…",
            help="Values of an argument: each replaces {NAME} in ARGS, or else is added as "
            "--NAME V. May be repeated: every combination is recorded.",
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Record these ranks of each job, such as 0,7; the one that needs most decides. "
            "Default: 0.",
        ),
    ] = None,
    nproc_per_node: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --world-size: the ranks of each node. Default: 8, or all of a smaller job.",
            min=1,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Recordings side by side. Default: as many as processors, if memory suffices.",
            min=1,
        ),
    ] = None,
    csv: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the table as CSV too."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep the captures, in a new or empty folder.",
            readable=False,
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find the fewest cards and the largest arguments with which a script fits, without a GPU.

    Every combination is recorded as `snapconv record --simulate --no-compute --capacity` does, in a
    process of its own, up to its second step. It fits if memory never ran out. Exit code 7 if none
    fits, 6 if one failed. Example: snapconv fit train.py --card H100 --arg micro-batch=1,2,4 --
    --layers 2
    """
    from snapconv.fitting.fit import FitOptions, FitStopped
    from snapconv.fitting.fit import fit as find_fit

    if (card is None) == (capacity is None):
        raise typer.BadParameter("give one of --card and --capacity", param_hint="--card")
    options = FitOptions(
        card=card,
        capacity=capacity,
        world_sizes=()
        if world_size is None
        else parsed(world_size, _numbers, "--world-size"),
        values=parsed(arg or [], _values, "--arg"),
        args=program.args or (),
        is_module=program.is_module,
        ranks=sorted(chosen_ranks(ranks)) or (0,),
        nproc_per_node=nproc_per_node,
        keep=keep,
        workers=workers,
    )
    _check(options, entry, program)
    table = None if csv is None else checked_output([], csv, "", force=force)

    def show(report: "FitReport") -> None:
        from snapconv.writers.fit_table import write_fit_table
        from snapconv.writers.text.fit import fit_lines

        if table is not None:
            write_fit_table(table, report, force=force)
        if as_json:
            print_json(report.to_json())
        elif not quiet:
            print_lines(fit_lines(report), sys.stdout)

    try:
        with progress_bar(shown=not quiet) as progress:
            report = find_fit(entry, options, progress=progress)
    except FitStopped as stopped:
        show(stopped.report)
        n_left = counted(len(stopped.report.not_run), "combination")
        print_error(f"stopped: {n_left} did not run")
        raise
    show(report)
    _end(report)


def _check(options: "FitOptions", entry: str, program: ProgramOptions) -> None:
    """Refuse a wrong card, a job that cannot be and a wrong script once, before anything runs."""
    from snapconv.recorder.program.launch_line import is_launch
    from snapconv.simulation import RankOfJob

    # Each wrong value is a usage error that names its option.
    option = "--capacity" if options.card is None else "--card"
    parsed(options.card or options.capacity, lambda _text: options.memory(), option)
    parsed("", lambda _text: options.combinations(), "--arg")
    check_nproc_per_node(options.nproc_per_node, has_job=bool(options.world_sizes))
    if options.world_sizes:
        refuse_within_job()
    elif is_launch(entry, options.args, is_module=options.is_module):
        raise typer.BadParameter(
            "give the sizes to try, such as 8,16: the line of a launcher has one alone",
            param_hint="--world-size",
        )
    for world_size in options.world_sizes:
        parsed(
            world_size,
            lambda n: RankOfJob.create(0, n, options.nproc_per_node),
            "--world-size",
        )
    missing_ranks = [
        rank for rank in options.ranks if rank >= max(options.world_sizes or (1,))
    ]
    if missing_ranks:
        message = f"no job of --world-size has rank {missing_ranks[0]}"
        raise typer.BadParameter(message, param_hint="--ranks")
    program.find(entry)


def _end(report: "FitReport") -> None:
    """End with an error where a combination failed, or none fits; the answer is printed already."""
    if report.failed:
        n_failed = counted(len(report.failed), "combination")
        print_error(f"error: {n_failed} failed; the table has the reasons")
        raise typer.Exit(RecorderError.exit_code)
    if not report.fitting:
        raise BudgetExceeded(report.answer)


def _numbers(text: str) -> tuple[int, ...]:
    """Read numbers of ranks such as ``8,16,32``; raises ValueError for others."""
    numbers = []
    for word in text.split(","):
        if not word.strip().isdecimal() or not 0 < int(word) <= _MOST_RANKS:
            raise ValueError(f"expected numbers of ranks such as 8,16,32, got {text!r}")
        numbers.append(int(word))
    return tuple(dict.fromkeys(numbers))


def _values(texts: list[str]) -> dict[str, tuple[str, ...]]:
    """Read ``micro-batch=1,2,4`` for each argument; raises ValueError for others."""
    values = {}
    for text in texts:
        name, sign, listed = text.partition("=")
        words = tuple(dict.fromkeys(listed.split(",")))
        if not name or not sign or "" in words:
            raise ValueError(f"expected NAME=V,V such as micro-batch=1,2,4, got {text!r}")
        if name in values:
            raise ValueError(f"{name} is given twice: give all its values in one --arg")
        values[name] = words
    return values
