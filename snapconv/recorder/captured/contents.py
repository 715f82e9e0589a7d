"""The recorded state of this moment -> the snapshot of a capture, metadata included."""

import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapconv.errors import NothingAllocatedError
from snapconv.recorder import environment
from snapconv.recorder.captured import memory_history
from snapconv.recorder.captured.clock import IterationLog
from snapconv.recorder.options import RecordingOptions
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
class Ended:
    """The end of the recorded program, as far as is known."""

    how: str
    detail: str = ""

    def values(self) -> dict[str, Any]:
        """Return the metadata's ``ended``."""
        return {"how": self.how, "detail": self.detail[:_MAX_DETAIL]}


def ended_by(raised: BaseException | None) -> Ended:
    """Infer from what a program raised how it ended."""
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


def contents_now(
    options: RecordingOptions,
    observer: "Observer",
    *,
    iterations: IterationLog,
    device: int,
    simulation: "Simulation | None" = None,
) -> dict[str, Any]:
    """Return a snapshot of now with its metadata, all but how the program ended.

    Raises NothingAllocatedError where torch has nothing to report: nothing was allocated, or it has no driver
    and does not mention it.
    """
    snapshot = memory_history.take_snapshot()
    if memory_history.is_empty(snapshot):
        raise nothing_allocated(options.program.path)
    metadata = {
        **environment.process_values(options.program.command),
        **options.metadata(),
        "simulated": simulation.values() if simulation else None,
        "max_entries": options.max_entries,
        "overflowed": memory_history.has_overflowed(snapshot, options.max_entries),
        "devices": environment.device_values(device),
        **observer.facts(snapshot),
        "iterations": iterations.facts(snapshot),
        "notes": note_rows((*(simulation.notes() if simulation else ()), *observer.notes())),
    }
    own_frames.clean_snapshot(snapshot)
    return {**snapshot, "snapconv": metadata}


def note_rows(notes: "Iterable[Note]") -> list[dict[str, str]]:
    """Return notes as metadata has them."""
    return [{"slug": note.slug, "message": note.message} for note in notes]
