"""The options of a recording, frozen: they travel from the command line to the metadata."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from snapconv.simulation import SimulationOptions

Stacks = Literal["all", "python"]

# One step of a large model is some ten thousand events, building it and warming up as many again.
# torch mentions several KB of host memory for each, so that this bound is a few GB at the very
# worst.
MAX_ENTRIES = 1_000_000
# In a job in production: some hundred MB of the host at the worst.
MAX_ENTRIES_OF_JOB = 100_000
# A job that runs out of memory again and again must not fill the disk.
MAX_CAPTURES = 10
# Steps that never come: nothing but an OOM or a signal is captured.
NO_STEP = (-1,)


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """The recorded program as metadata names it; ``kind`` is an entry's, or ``production``."""

    path: str
    kind: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """The options of one recording; docs/reference/cli.md and docs/guide/production.md have each.

    ``output`` is the capture's folder, or the folder for several. ``includes`` are libraries that
    count as the project; ``is_root_given``: its folder was named, so that nothing else does.
    ``keeps_source``: keep the project's files that occur in stacks.
    ``device`` is None where the program and LOCAL_RANK decide. What follows ``simulation`` is for a
    recording of chosen moments.
    """

    output: Path = Path()
    project_root: Path = Path()
    includes: tuple[str, ...] = ()
    is_root_given: bool = False
    keeps_source: bool = False
    program: RecordedProgram = RecordedProgram("", "script")
    stacks: Stacks = "all"
    max_entries: int = MAX_ENTRIES
    warm_up: int = 1
    iterations: int = 1
    device: int | None = None
    force: bool = False
    stop: bool = False
    batch_size: int | None = None
    simulation: "SimulationOptions | None" = None
    steps: frozenset[int] = frozenset()
    on_oom: bool = True
    on_signal: int | None = None
    max_captures: int = MAX_CAPTURES
    model: Any = None
    optimizer: Any = None
    on_other_oom: bool = False
    on_request: bool = False

    @property
    def computes(self) -> bool:
        """Whether the program's operations are computed, so that they can be timed."""
        return self.simulation is None or self.simulation.compute
