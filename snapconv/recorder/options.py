"""The options of a recording: one frozen value that travels from the command line to every part."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from snapconv.simulation import SimulationOptions


Stacks = Literal["all", "python"]
Context = Literal["all", "state", "alloc"]

# One step of a large model is some ten thousand events, building it and warming up as many again. torch
# mentions several KB of host memory for each, so that this bound is a few GB at the very worst.
MAX_ENTRIES = 1_000_000


@dataclass(frozen=True, slots=True)
class ProjectOptions:
    """Libraries that count as the project; whether its folder was named, so that nothing else does."""

    includes: tuple[str, ...] = ()
    is_root_given: bool = False

    def values(self) -> dict[str, Any]:
        """Return their part of the metadata."""
        return {"project_root_given": self.is_root_given, "include": list(self.includes)}


USUAL_PROJECT = ProjectOptions()


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """See ``snapconv record --help`` for the meaning of each.

    ``output`` is the capture's folder; ``simulation`` is None where a real GPU is recorded;
    ``batch_size`` is for providers, None for the one that they have by default; ``device`` is None where
    the program and LOCAL_RANK decide. ``project`` is the code that counts as the user's.
    """

    output: Path
    project_root: Path
    project: ProjectOptions = USUAL_PROJECT
    stacks: Stacks = "all"
    context: Context = "all"
    max_entries: int = MAX_ENTRIES
    pinned: bool = False
    warm_up: int = 1
    iterations: int = 1
    device: int | None = None
    force: bool = False
    stop: bool = False
    batch_size: int | None = None
    simulation: "SimulationOptions | None" = None
