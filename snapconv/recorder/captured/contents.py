"""The recorded state of this moment -> the snapshot of a capture, metadata included."""

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapconv.errors import NothingAllocatedError
from snapconv.recorder import environment
from snapconv.recorder.captured import memory_history
from snapconv.recorder.captured.clock import IterationLog
from snapconv.recorder.options import USUAL_PROJECT, ProjectOptions
from snapconv.recorder.program import own_frames
from snapconv.recorder.program.script import exit_argument, text_of

if TYPE_CHECKING:
    from snapconv.notes import Note
    from snapconv.recorder.observe.observer import Observer
    from snapconv.simulation import Simulation

# A message of an exception may hold a whole tensor.
_MAX_DETAIL = 2000

# What the command line ends a program with when one of these comes, as shells count: 128 and the number.
_STOPPED_BY = {128 + number: number.name for number in signal.Signals if number.name in ("SIGTERM", "SIGHUP")}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a capture comes from: what stays the same throughout a recording."""

    command: Sequence[str]
    entry: str
    kind: str
    project_root: Path
    device: int
    max_entries: int
    simulation: "Simulation | None" = None
    project: ProjectOptions = USUAL_PROJECT

    def values(self) -> dict[str, Any]:
        """Return the origin's part of the metadata."""
        return {
            **environment.process_values(self.command),
            "project_root": str(self.project_root),
            **self.project.values(),
            "entry": {"path": self.entry, "kind": self.kind},
            "simulated": self.simulation.values() if self.simulation else None,
            "max_entries": self.max_entries,
        }

    def notes(self) -> "tuple[Note, ...]":
        """What is to be known of this run up to now."""
        return self.simulation.notes() if self.simulation else ()


@dataclass(frozen=True, slots=True)
class Ended:
    """How the recorded program ended, as far as is known."""

    how: str
    detail: str = ""

    def values(self) -> dict[str, Any]:
        """Return the metadata's ``ended``."""
        return {"how": self.how, "detail": self.detail[:_MAX_DETAIL]}


def ended_by(raised: BaseException | None) -> Ended:
    """Tell how a program ended by what it raised."""
    if raised is None:
        return Ended("finished")
    text = f"{type(raised).__name__}: {text_of(raised)}"
    # Also where the program reported it and called sys.exit.
    torch = sys.modules.get("torch")  # which the program may not have come to
    if torch and any(isinstance(error, torch.cuda.OutOfMemoryError) for error in own_frames.chain(raised)):
        return Ended("oom", text)
    if isinstance(raised, KeyboardInterrupt):
        return Ended("interrupted")
    if isinstance(raised, SystemExit):
        code = exit_argument(raised)
        if isinstance(code, int) and code in _STOPPED_BY:
            return Ended("interrupted", _STOPPED_BY[code])
        return Ended("exit", "" if code is None else text_of(code)[:_MAX_DETAIL])
    return Ended("exception", text)


def nothing_allocated(entry: str) -> NothingAllocatedError:
    """Return the error for a program that used no CUDA device."""
    return NothingAllocatedError(
        f"nothing was allocated on a CUDA device while {entry} ran, so there is no capture: "
        "does it move its model and data to the GPU?"
    )


def contents_now(origin: Origin, observer: "Observer", iterations: IterationLog) -> dict[str, Any]:
    """Return a snapshot of now with its metadata, all but how the program ended.

    Raises NothingAllocatedError where torch has nothing to report: nothing was allocated, or it has no driver
    and does not mention it.
    """
    snapshot = memory_history.take_snapshot()
    if memory_history.is_empty(snapshot):
        raise nothing_allocated(origin.entry)
    metadata = {
        **origin.values(),
        "overflowed": memory_history.has_overflowed(snapshot, origin.max_entries),
        "devices": environment.device_values(origin.device),
        **observer.facts(snapshot),
        "iterations": iterations.facts(snapshot),
        "notes": [
            {"slug": note.slug, "message": note.message} for note in (*origin.notes(), *observer.notes())
        ],
    }
    own_frames.clean_snapshot(snapshot)
    return {**snapshot, "snapconv": metadata}
