"""An unmodified CUDA script on a computer without a GPU: torch's CUDA interface, simulated.

Beneath torch's Python interface: ``torch.cuda`` and ``torch._C`` answer as a CUDA build does, memory comes
from the model of the caching allocator, and the tensors are computed on the CPU, or not at all. Nothing
else of the recorder need know. Importing this imports no torch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from snapconv.notes import Note
from snapconv.recorder.guard import fault_note
from snapconv.simulation.not_modelled import BLAS
from snapconv.simulation.simulation_options import SimulationOptions

if TYPE_CHECKING:
    from snapconv.simulation.devices.machine import Machine
    from snapconv.simulation.devices.workspace import Workspace
    from snapconv.simulation.operations.tracker import Tracker

__all__ = ["Simulation", "SimulationOptions", "simulated"]


class Simulation:
    """A simulation that is running."""

    def __init__(self, machine: "Machine", tracker: "Tracker") -> None:
        self._machine = machine
        self._tracker = tracker

    @property
    def workspaces(self) -> "tuple[Workspace, ...]":
        """The workspaces that the simulation has allocated by itself up to now."""
        return self._tracker.workspaces

    def notes(self) -> tuple[Note, ...]:
        """What the user should know of this run, beyond what every simulation leaves out."""
        return (
            *self._machine.changes,
            *self.faults(),
            *self._machine.notes.values(),
            *self._tracker.values_read.notes(),
        )

    def faults(self) -> tuple[Note, ...]:
        """What a fault of ours has left to the CPU."""
        return tuple(fault_note(guard) for guard in self._machine.guards if guard.failure is not None)

    def _not_modelled(self) -> list[str]:
        has_workspace = self._machine.options.cublas_workspace
        return [what for what in self._machine.met if not (has_workspace and what == BLAS)]

    def values(self) -> dict[str, Any]:
        """Return what was simulated up to now, in plain types, for the metadata of a capture."""
        options = self._machine.options
        return {
            "compute": options.compute,
            "capacity_bytes": options.capacity_bytes,
            "total_bytes": options.total_bytes,
            "cublas_workspace": options.cublas_workspace,
            "n_devices": options.n_devices,
            "not_modelled": self._not_modelled(),
        }


@contextmanager
def simulated(options: SimulationOptions | None = None) -> Iterator[Simulation]:
    """Let torch believe in CUDA devices that are simulated; everything is as before afterwards."""
    from snapconv.simulation.simulation_session import running

    with running(options or SimulationOptions()) as (machine, tracker):
        yield Simulation(machine, tracker)
