"""``snapconv record``: parse, call the recorder, print what is being done and the next command.

Everything is printed on stderr: the standard output belongs to the program that is recorded. This
module is loaded with the command line and so imports the recorder only when a recording begins.
"""

import os
import shlex
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from snapconv.cli.arguments import (
    Command,
    ForceOption,
    IncludeOption,
    ProgramOptions,
    QuietOption,
    RanksOption,
    chosen_ranks,
    output_option,
    size_of,
)
from snapconv.cli.program_end import ProgramEnded, lasting_until_exit
from snapconv.cli.terminal import say, show_raised
from snapconv.errors import RecorderError, SnapconvError
from snapconv.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snapconv.recorder.capture_folder import Upload
    from snapconv.recorder.options import RecordingOptions
    from snapconv.recorder.program.entry import Entry
    from snapconv.recorder.record import RecordOutcome
    from snapconv.simulation import RankOfJob, SimulationOptions


# Options that hardly any script has. Behind the script they are meant for snapconv, and a script
# that reads no arguments would run without them.
_ONLY_OURS = (
    "--simulate --no-compute --cublas-workspace --stop --stacks --max-entries --project-root"
).split()


class RecordCommand(Command):
    """The command line of ``record``, which refuses snapconv's options behind the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse it; ``python`` before the script is left out.

        Refuse snapconv's own options behind the script, but not if ``--`` stands before it: then
        all that follows is the script's. Refuse a launcher whose line cannot be simulated.
        """
        from snapconv.recorder.program.entry import refuse_launcher, strip_interpreter
        from snapconv.recorder.program.launch_line import is_launch

        words = list(args)
        remaining = super().parse_args(ctx, args)
        params = ctx.params
        entry = params["entry"]
        arguments = params["args"] or []
        before = words[: len(words) - len(arguments) - 1]  # one word is the script
        command = [
            "snapconv",
            "record",
            *(option for option in before if option not in ("--", "-m")),
        ]
        if not params["is_module"]:
            entry, arguments, params["is_module"] = strip_interpreter(
                entry, arguments, command
            )
            params["entry"], params["args"] = entry, arguments
        if before[-1:] != ["--"]:
            _refuse_ours(entry, arguments)
        is_module = params["is_module"]
        if not (params["simulate"] and is_launch(entry, arguments, is_module=is_module)):
            refuse_launcher(entry, arguments, is_module=is_module, command=command)
        return remaining


def _refuse_ours(entry: str, behind: "Sequence[str]") -> None:
    for argument in takewhile(lambda argument: argument != "--", behind):
        name = argument.partition("=")[0]
        if name in _ONLY_OURS:
            raise typer.BadParameter(
                f"options of snapconv stand before the script: `snapconv record {name} {entry}`. "
                f"If it is the script's own, write `snapconv record -- {entry} {name}`",
                param_hint=name,
            )


@dataclass(frozen=True, slots=True)
class Simulated:
    """Options of a recording without a GPU."""

    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate", help="Record without a GPU: the unchanged script runs on the CPU."
        ),
    ] = False
    no_compute: Annotated[
        bool,
        typer.Option(
            "--no-compute",
            help="With --simulate: follow shapes only. Fast with a model of any size; "
            "no values, no times. Files with values not computed are not kept. Ends "
            "the script when all is recorded.",
        ),
    ] = False
    routing: Annotated[
        Literal["balanced", "worst"],
        typer.Option(
            metavar="HOW",
            help="With --no-compute: spread tokens evenly over experts (balanced), or "
            "send most to the same ones (worst). Default: balanced.",
            show_default=False,
        ),
    ] = "balanced"
    capacity: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="With --simulate: the GPU's memory, such as 24GiB; it runs out as a GPU's would.",
        ),
    ] = None
    cublas_workspace: Annotated[
        bool,
        typer.Option(
            "--cublas-workspace",
            help="With --simulate: add the workspace that cuBLAS keeps by default.",
        ),
    ] = False
    world_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --simulate: run as one rank of a job of N, which --ranks names "
            "(default: 0), with the variables that torchrun sets.",
            min=1,
        ),
    ] = None
    nproc_per_node: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --world-size: the ranks of each node. Default: 8, or all of a "
            "smaller job.",
            min=1,
            show_default=False,
        ),
    ] = None


def record(
    entry: Annotated[
        str,
        typer.Argument(
            metavar="ENTRY",
            help="A training script, or a file with Skyline's or DeepView's providers; "
            "with -m, a module.",
        ),
    ],
    *,
    program: ProgramOptions,
    output: Annotated[
        str | None,
        output_option(
            "The capture, a folder; or the URL of a folder in a store, such as "
            "s3://bucket/run, to copy it to in the end. Default: the entry's name and "
            ".capture, here.",
        ),
    ] = None,
    force: ForceOption = False,
    simulated: Simulated,
    ranks: RanksOption = None,
    warm_up: Annotated[
        int,
        typer.Option(
            help="Iterations before those of --iterations. Default: 1.",
            min=0,
            show_default=False,
        ),
    ] = 1,
    iterations: Annotated[
        int,
        typer.Option(
            help="Iterations to record the memory of; after one more, as many are "
            "timed. Default: 1.",
            min=1,
            show_default=False,
        ),
    ] = 1,
    stop: Annotated[
        bool,
        typer.Option(
            "--stop",
            help="End the script when all is recorded, instead of letting it run on.",
        ),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="The batch size for a file with providers. Default: that of its input provider.",
            min=1,
        ),
    ] = None,
    device: Annotated[
        int | None,
        typer.Option(
            help="The CUDA device to make the current one, and to time. Default: time that of "
            "LOCAL_RANK where it is visible, or the one that is current when CUDA starts. With "
            "--simulate: the number of the last GPU; cuda:0 stays the current one.",
            min=0,
        ),
    ] = None,
    project_root: Annotated[
        Path | None,
        typer.Option(
            help="Count only what is below this folder as your own code. Default: all "
            "Python files that are not installed, shown from the current folder.",
            readable=False,
        ),
    ] = None,
    include: IncludeOption = None,
    keeps_source: Annotated[
        bool,
        typer.Option(
            "--with-source",
            help="Keep the project's Python files that occur in stacks, for `snapconv annotate` "
            "and `view`: whoever has the capture can read them. No file outside the "
            "project's folder.",
        ),
    ] = False,
    stacks: Annotated[
        Literal["all", "python"],
        typer.Option(
            metavar="WHICH",
            help="Record C++ frames too (all), the only ones that backward has, or "
            "only Python's (python). Default: all.",
            show_default=False,
        ),
    ] = "all",
    max_entries: Annotated[
        int | None,
        typer.Option(
            help="How many events torch keeps, the newest. Default: 1000000.", min=1
        ),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Run a training script and record its memory and its times.

    The result is a capture. The script runs as with `python ENTRY ARGS`; an iteration is an
    optimizer step.
    """
    from snapconv.recorder.options import MAX_ENTRIES, RecordingOptions

    chosen = chosen_ranks(ranks)
    launch = launched(entry, program, simulated, ranks=chosen)
    user_program = launch.program.find(launch.entry)
    arguments = launch.program.args or []
    _check_for_providers(user_program, arguments, batch_size)
    simulation = simulation_options(launch.simulated, device, ranks=chosen)
    _run_unrecorded_unless(chosen, user_program, arguments)
    upload = _upload(output)
    capture = _capture_path(
        output if output and not upload else None, user_program.stem, simulation
    )
    options = RecordingOptions(
        output=upload.folder / capture if upload else capture,
        project_root=(project_root or _folder(user_program)).absolute(),
        includes=tuple(map(_include, include or ())),
        is_root_given=project_root is not None,
        keeps_source=keeps_source,
        stacks=stacks,
        max_entries=max_entries or MAX_ENTRIES,
        warm_up=warm_up,
        iterations=iterations,
        # A simulation has N + 1 devices, and its program chooses among them.
        device=device if simulation is None else None,
        force=force,
        stop=stop or simulated.no_compute,
        batch_size=batch_size,
        simulation=simulation,
    )
    variables = launch.environment
    raise _record(
        user_program, arguments, options, upload, variables, quiet=quiet, ranks=chosen
    )


def _run_unrecorded_unless(ranks: frozenset[int], entry: "Entry", args: list[str]) -> None:
    """Unless this process is one of the ranks to record, run the program alone, and end with it."""
    from snapconv.recorder.job import is_chosen
    from snapconv.recorder.record import watch

    if not is_chosen(ranks):
        code, raised = watch(entry, args, nullcontext())
        if raised is not None:
            show_raised(raised)
        raise ProgramEnded(code)


def _capture_path(
    output: str | None, stem: str, simulation: "SimulationOptions | None"
) -> Path:
    """Return where the capture goes: a process of several has its rank in the name.

    A simulated job is one process: a name that is given stays as it is.
    """
    from snapconv.recorder.job import process_rank

    path = Path(output or f"{stem}.capture")
    rank = process_rank()
    if simulation is not None and simulation.job is not None and output is None:
        rank = str(simulation.job.rank)
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}") if rank else path


def _upload(output: str | None) -> "Upload | None":
    from snapconv.recorder.capture_folder import Upload, is_store

    return Upload(output, say=say, warn=say) if output and is_store(output) else None


def _folder(entry: "Entry") -> Path:
    """Return the folder that paths are shown from: this one, or else the one with the script."""
    if entry.kind == "module" or entry.is_installed:
        return Path()
    script = Path(entry.path).absolute().parent
    return Path() if script.is_relative_to(Path.cwd()) else script


def _include(text: str) -> str:
    """Return a package as it is, and a path that begins with a dot in full."""
    return os.path.normpath(Path(text).absolute()) if text.startswith(".") else text


def _check_for_providers(entry: "Entry", args: list[str], batch_size: int | None) -> None:
    """Refuse what goes with a script alone, or with providers alone."""
    if batch_size is not None and entry.kind != "providers":
        raise typer.BadParameter(
            f"{entry.path} has no providers", param_hint="--batch-size"
        )
    if args and entry.kind == "providers":
        message = (
            f"{entry.path} has providers, which take no arguments; put snapconv's own "
            f"options before it"
        )
        raise typer.BadParameter(message, param_hint=" ".join(args))


def _record(
    entry: "Entry",
    args: list[str],
    options: "RecordingOptions",
    upload: "Upload | None",
    variables: dict[str, str],
    *,
    quiet: bool,
    ranks: frozenset[int],
) -> ProgramEnded:
    """Record, print the result, and return the end with its exit code.

    The code is the program's; where that is 0, it is the recording's.
    """
    from snapconv.recorder.driver import silent
    from snapconv.recorder.job import process_rank
    from snapconv.recorder.record import record as run
    from snapconv.simulation import set_variables

    # The first of several ranks says for all how far the recording is.
    is_first = process_rank() in ("", str(min(ranks, default=0)))
    tell = say if is_first and not quiet else silent
    if options.simulation is not None and not options.simulation.compute:
        tell(
            "only shapes are computed: values read as 0, and where a branch depends on "
            "one, the side with more calls runs"
        )

    finish = partial(_finish, entry=entry, upload=upload, is_first=is_first, quiet=quiet)
    with lasting_until_exit() as lifetime:
        lifetime.enter_context(set_variables(variables))
        recorded = run(
            entry, args, options, say=tell, simulation_parts=lifetime, report=finish
        )
    finish(recorded)
    exit_code = recorded.exit_code
    if recorded.failure is not None:
        exit_code = exit_code or getattr(
            recorded.failure, "exit_code", SnapconvError.exit_code
        )
    return ProgramEnded(exit_code, lifetime)


def _finish(
    recorded: "RecordOutcome",
    *,
    entry: "Entry",
    upload: "Upload | None",
    is_first: bool,
    quiet: bool,
) -> None:
    """Show how the recording ended, copy its capture to the store, and show the program's error."""
    is_refused = isinstance(recorded.raised, RecorderError)
    if not recorded.is_child:  # else the parent process has the capture, and says so
        # A refusal of ours in the program's own lines says all that there is to say.
        has_result = recorded.path is not None or (is_first and not is_refused)
        if has_result and not quiet:
            _say_result(recorded, entry)
        if recorded.failure is not None:
            _show_failure(recorded.failure, recorded.report)
        if upload is not None:
            if recorded.path is not None:
                upload.add(recorded.path)
            upload.close()
    # The error comes last, where Python has it and people look; a refusal is shown by one rank.
    if recorded.raised is not None and (is_first or not is_refused):
        show_raised(recorded.raised)


def _show_failure(failure: Exception, report: str) -> None:
    """Show why the recording failed: the remedy, or a report of a fault of snapconv."""
    if isinstance(failure, SnapconvError):
        say(f"error: {failure}")
        return
    say(
        "error: a fault of snapconv ended the recording; your program ran on. Please report this:"
    )
    with suppress(OSError, ValueError):
        print(report, end="", file=sys.stderr, flush=True)


def _say_result(recorded: "RecordOutcome", entry: "Entry") -> None:
    for note in recorded.notes:
        say(f"note: {note.message}")
    if recorded.path is not None:
        say(
            f"the capture is {recorded.path.absolute()} ({format_bytes(recorded.n_bytes)}). Next:"
        )
        say(f"    snapconv {shlex.quote(str(recorded.path))}")
    elif recorded.failure is None:
        say(
            f"there is no capture: {entry.path} ended before it allocated anything on a CUDA device"
        )


# --- without a GPU, for ``watch`` too


@dataclass(frozen=True, slots=True)
class Launched:
    """The program that is run, its simulated job, and the variables that a launcher sets for it."""

    entry: str
    program: ProgramOptions
    simulated: Simulated
    environment: dict[str, str] = field(default_factory=dict)


def launched(
    entry: str, program: ProgramOptions, simulated: Simulated, *, ranks: frozenset[int]
) -> Launched:
    """Take the program and the size of the simulated job from a launcher's line.

    The size that the command line has stays. Any other program is returned as it is.
    """
    from snapconv.recorder.program.entry import strip_interpreter
    from snapconv.recorder.program.launch_line import is_launch, read_launch

    args = program.args or []
    if not (simulated.simulate and is_launch(entry, args, is_module=program.is_module)):
        return Launched(entry, program, simulated)
    launch = read_launch(entry, args, is_module=program.is_module)
    n_ranks = simulated.world_size or launch.n_ranks
    per_node = simulated.nproc_per_node
    if per_node is None and n_ranks and n_ranks % (launch.n_ranks_per_node or 1) == 0:
        per_node = launch.n_ranks_per_node
    simulated = replace(simulated, world_size=n_ranks, nproc_per_node=per_node)
    job = _simulated_job(simulated, ranks)
    name, args, is_module = launch.program, launch.args_for(job), launch.is_module
    if not is_module:
        name, args, is_module = strip_interpreter(name, args, ["snapconv", "record"])
    environment = launch.environment_for(job)
    return Launched(name, ProgramOptions(args, is_module), simulated, environment)


def simulation_options(
    options: Simulated, device: int | None = None, *, ranks: frozenset[int] = frozenset()
) -> "SimulationOptions | None":
    """Read the options of a simulation; None for a recording on a GPU, which has none of them."""
    values = {
        "--no-compute": options.no_compute,
        "--routing": options.routing != "balanced",
        "--capacity": options.capacity,
        "--cublas-workspace": options.cublas_workspace,
        "--world-size": options.world_size,
        "--nproc-per-node": options.nproc_per_node,
    }
    if not options.simulate:
        for name, value in values.items():
            if value:
                raise typer.BadParameter("it needs --simulate", param_hint=name)
        return None
    if options.routing != "balanced" and not options.no_compute:
        raise typer.BadParameter("it needs --no-compute", param_hint="--routing")
    from snapconv.simulation import SimulationOptions

    job = _simulated_job(options, ranks)
    if device is None:
        # By custom, the local rank is the number of a process's device.
        rank = os.environ.get("LOCAL_RANK", "")
        device = int(rank) if rank.isdecimal() else 0
    return SimulationOptions(
        compute=not options.no_compute,
        is_routing_worst=options.routing == "worst",
        capacity_bytes=size_of(options.capacity, "--capacity"),
        cublas_workspace=options.cublas_workspace,
        n_devices=max(device + 1, job.n_ranks_per_node if job else 1),
        job=job,
    )


def _simulated_job(options: Simulated, ranks: frozenset[int]) -> "RankOfJob | None":
    """Read the job that is simulated; None where the process is one of the launcher's own."""
    from snapconv.simulation import RankOfJob

    has_job = options.world_size is not None
    check_nproc_per_node(options.nproc_per_node, has_job=has_job)
    if options.world_size is None:
        return None
    refuse_within_job()
    if len(ranks) > 1:
        raise typer.BadParameter(
            "with --world-size one rank runs at a time: name one", param_hint="--ranks"
        )
    try:
        return RankOfJob.create(
            min(ranks, default=0), options.world_size, options.nproc_per_node
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--world-size") from error


def check_nproc_per_node(n_ranks: int | None, *, has_job: bool) -> None:
    """Refuse the ranks of a node where there is no job."""
    if n_ranks is not None and not has_job:
        raise typer.BadParameter("it needs --world-size", param_hint="--nproc-per-node")


def refuse_within_job() -> None:
    """Refuse to simulate a job in the ranks of a real one; rank 0 says it for all."""
    from snapconv.recorder.job import process_rank

    rank = process_rank()
    if rank not in ("", "0"):
        raise ProgramEnded(RecorderError.exit_code)
    if rank:
        raise RecorderError(
            "--world-size: this process is a rank of a job already; start snapconv without the "
            "launcher, or the launcher behind --"
        )
