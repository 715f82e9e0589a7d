"""``snapconv watch``: run a program as it is, and have a capture where its memory runs out."""

import logging
import shlex
from typing import Literal

from snapconv.cli.app import ProgramEnded
from snapconv.cli.arguments import chosen_ranks
from snapconv.cli.record_command import Simulated, lasting_until_exit, simulation_options
from snapconv.cli.terminal import say, show_raised

# Options end at the entry: what follows it is the program's.
COMMAND_SETTINGS = {"context_settings": {"allow_interspersed_args": False}}


def watch(
    entry: str,
    args: list[str] | None = None,
    is_module: bool = False,
    output: str = "captures",
    *,
    simulated: Simulated,
    ranks: str | None = None,
    all_ranks: bool = False,
    stacks: Literal["python", "all"] = "python",
    max_entries: int = 100_000,
    max_captures: int = 3,
) -> None:
    """Run a training script, and write a capture when its memory runs out.

    The script runs as it would with `python ENTRY ARGS`, with its own exit code. For every rank:
    `torchrun --nproc-per-node 8 -m snapconv watch train.py`.
    """
    from snapconv.recorder.options import NO_STEP
    from snapconv.recorder.program.entry import find_file, find_module
    from snapconv.recorder.record import watch as run
    from snapconv.recorder.recording import Recording

    simulation = simulation_options(simulated)
    # Every capture and every warning of ours is printed when it is there: the job may hang
    # afterwards.
    log = logging.getLogger("snapconv")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(_Stderr())
    program = find_module(entry) if is_module else find_file(entry)
    recording = Recording(
        output,
        steps=NO_STEP,
        stacks=stacks,
        max_entries=max_entries,
        max_captures=max_captures,
        ranks=chosen_ranks(ranks),
        on_other_oom=all_ranks,
    )
    with lasting_until_exit() as lifetime:
        code, error = run(
            program, args or [], recording, simulation=simulation, simulation_parts=lifetime
        )
    ran_out = [path for path in recording.captures if "other-oom" not in path.name]
    if ran_out:  # in this rank: that of another has its own say
        is_job = all_ranks or "://" in output
        question, captures = ("ranks", output) if is_job else ("oom", str(ran_out[0]))
        say(f"memory ran out; next: snapconv {question} {shlex.quote(captures)}")
    if error is not None:  # last of all, where Python has it and people look
        show_raised(error)
    raise ProgramEnded(code, lifetime)


class _Stderr(logging.Handler):
    """Prints a record, also where stderr was closed or replaced since."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print it, with everything escaped that a name could do to a terminal."""
        say(record.getMessage().removeprefix("snapconv: "))
