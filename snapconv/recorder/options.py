"""The options of a recording: one frozen value that travels from the command line to every part."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from snapconv.units import shortened

if TYPE_CHECKING:
    from snapconv.simulation import SimulationOptions


Stacks = Literal["all", "python"]
Context = Literal["all", "state", "alloc"]

# One step of a large model is some ten thousand events, building it and warming up as many again. torch
# mentions several KB of host memory for each, so that this bound is a few GB at the very worst.
MAX_ENTRIES = 1_000_000

_TOO_MANY_BYTES = 1 << 60
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])I?B?|B)", re.IGNORECASE)


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


def parse_capacity(text: str) -> int:
    """Read a number of bytes: ``24GiB``, ``512 MiB``, ``1.5g``; GB is GiB, as a GPU's memory is meant.

    Raises ValueError for anything else, and for a bare number: ``24`` is never meant as 24 bytes.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"expected a size with its unit, such as 24GiB or 512MiB, got {text!r}")
    size = float(found[1]) * 1024 ** _POWERS[(found[2] or "").upper()]
    if size < 1:
        raise ValueError(f"expected more than 0 bytes, got {text!r}")
    if size >= _TOO_MANY_BYTES:
        raise ValueError(f"expected less than 2^60 bytes, got {shortened(text, 40)!r}")
    return int(size)
