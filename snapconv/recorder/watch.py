"""Run a program as it is, and have a capture of it where its memory runs out: what ``snapconv watch`` calls.

Nothing else is written. What goes wrong in here is a warning, and never the program's affair.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from snapconv.recorder.options import Context, Stacks
from snapconv.recorder.production import NO_STEP, Recording
from snapconv.recorder.program import script
from snapconv.recorder.program.entry import Entry
from snapconv.recorder.program.moments import when_imported
from snapconv.recorder.program.script import exit_code_of, outcome
from snapconv.recorder.program.script_signals import deferred_handlers


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """See ``snapconv watch --help`` for the meaning of each."""

    folder: Path
    stacks: Stacks
    max_entries: int
    max_captures: int
    context: Context = "all"


@dataclass(frozen=True, slots=True)
class Watched:
    """What came of a program: its exit code, what it raised, and the captures that were written."""

    exit_code: int
    raised: BaseException | None
    captures: tuple[Path, ...]


def watch(entry: Entry, argv: Sequence[str], options: WatchOptions) -> Watched:
    """Run a script or module as ``python ENTRY ARGV`` would; watch it as soon as it has imported torch."""
    with ExitStack() as parts:
        recording = Recording(
            options.folder,
            steps=NO_STEP,
            stacks=options.stacks,
            context=options.context,
            max_entries=options.max_entries,
            max_captures=options.max_captures,
        )
        parts.enter_context(deferred_handlers())
        with when_imported("torch", lambda: parts.enter_context(recording)):
            raised, _main = outcome(_run, entry, argv)
        return Watched(exit_code_of(raised), raised, tuple(recording.captures))


def _run(entry: Entry, argv: Sequence[str]) -> object:
    if entry.kind == "module":
        return script.run_module(entry.path, argv)
    assert entry.code is not None
    return script.run_file(entry.path, entry.code, argv)
