"""An unmodified CUDA script on a computer without a GPU: torch's CUDA interface, simulated.

Beneath torch's Python interface: ``torch.cuda`` and ``torch._C`` answer as a CUDA build does, memory comes
from the model of the caching allocator, and the tensors are computed on the CPU, or not at all. Nothing
else of the recorder need know. Importing this imports no torch.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from snapconv.errors import RecorderError
from snapconv.notes import Note
from snapconv.recorder.guard import fault_note
from snapconv.recorder.observe.tensors import use_locations
from snapconv.recorder.torch_features import ChangedFeatures, is_for_simulation, probe
from snapconv.recorder.torch_surface import Feature
from snapconv.simulation.cuda_classes import compiled_as_eager, patch_graphs
from snapconv.simulation.cuda_functions import bind, patch_accelerator
from snapconv.simulation.factories import (
    patch_checkpoints,
    patch_factories,
    patch_legacy_types,
    patch_wrappers,
)
from snapconv.simulation.history import patch_annotations
from snapconv.simulation.kernels import Kernels, add_gpu_choices, patch_autocast, patch_grouping
from snapconv.simulation.machine import Machine, SimulationOptions
from snapconv.simulation.operations import BLAS
from snapconv.simulation.patches import Handler, Patches, dispatch_mode, patch_threads
from snapconv.simulation.process_groups import patch_process_groups, with_collectives
from snapconv.simulation.tensors import TensorPatches, patch_storages
from snapconv.simulation.tracker import Tracker, Workspace
from snapconv.simulation.unwritten_files import UnwrittenFiles, unwritten_files

__all__ = ["Simulation", "SimulationOptions", "simulated"]


class Simulation:
    """A simulation that is running."""

    def __init__(self, machine: Machine, tracker: Tracker, files: UnwrittenFiles | None) -> None:
        self._machine = machine
        self._tracker = tracker
        self._files = files

    @property
    def workspaces(self) -> tuple[Workspace, ...]:
        """The workspaces that the simulation has allocated by itself up to now."""
        return self._tracker.workspaces

    def notes(self) -> tuple[Note, ...]:
        """Return what the user should know of this run, beyond what every simulation leaves out."""
        return (
            *self._machine.changes,
            *self.faults(),
            *self._machine.notes.values(),
            *self._tracker.values_read.notes(),
            *(self._tracker.routing.notes() if self._tracker.routing else ()),
            *(self._files.notes() if self._files else ()),
        )

    def faults(self) -> tuple[Note, ...]:
        """Return notes on what a fault of ours has left to the CPU."""
        guard = self._tracker.guard
        return () if guard.failure is None else (fault_note(guard),)

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the lowest and the highest peak that values which were not computed may give, by device."""
        return self._tracker.routing.bounds() if self._tracker.routing else {}

    def forget_values(self, tensor: Any) -> None:
        """Count a tensor as one that was not computed."""
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():  # which would see that its memory is filled with zeros: with values
            self._tracker.evaluation.known.forget(tensor)

    def values(self) -> dict[str, Any]:
        """Return what was simulated up to now, in plain types, for the metadata of a capture."""
        options = self._machine.options
        return {
            "compute": options.compute,
            "capacity_bytes": options.capacity_bytes,
            "total_bytes": options.total_bytes,
            "cublas_workspace": options.cublas_workspace,
            "n_devices": options.n_devices,
            "files_not_written": [
                {"path": path, "n_bytes": n_bytes}
                for path, n_bytes in (self._files.sizes if self._files else {}).items()
            ],
            "not_modelled": [
                what for what in self._machine.met if not (options.cublas_workspace and what == BLAS)
            ],
        }


_is_running = [False]
Parts = tuple[Machine, Tracker, UnwrittenFiles | None]


@contextmanager
def simulated(options: SimulationOptions | None = None) -> Iterator[Simulation]:
    """Let torch believe in CUDA devices that are simulated; everything is as before afterwards."""
    with running(options or SimulationOptions()) as (machine, tracker, files):
        yield Simulation(machine, tracker, files)


@contextmanager
def running(options: SimulationOptions) -> Iterator[Parts]:
    """Simulate devices for as long as the context lasts, for those who look inside."""
    if _is_running[0]:
        raise RecorderError("a simulation is running already: a process can have one at a time")
    _is_running[0] = True
    try:
        _import_torch("torch.optim", "torch._dynamo")
        with _patched(options) as parts:
            yield parts
    finally:
        _is_running[0] = False


@contextmanager
def _patched(options: SimulationOptions) -> Iterator[Parts]:
    """Replace what torch is asked about devices, from the first patch to the last restored attribute."""
    features = probe(is_for_simulation)
    machine = Machine(options)
    machine.changes.extend(features.notes())
    tracker = Tracker(machine)
    with ExitStack() as stack:
        patches = stack.enter_context(Patches(tracker.guard))
        bind(machine, patches)
        patch_accelerator(machine, patches)
        tensors = TensorPatches(tracker)
        tensors.apply(patches)
        patch_storages(tracker, tensors, patches)
        patch_factories(tracker, tensors, patches)
        _patch_features(features, tracker, tensors, patches, stack.enter_context(Kernels()))
        files = None
        if not options.compute:
            files = UnwrittenFiles(tracker)
            stack.enter_context(unwritten_files(files, patches))
        handle: Handler = tracker.handle
        if Feature.SIMULATED_GROUPS in features:
            handle = with_collectives(handle)
        stack.callback(tracker.close)
        stack.enter_context(use_locations(tracker.locate))
        if Feature.SIMULATED_COMPILATION in features:
            stack.enter_context(compiled_as_eager(machine, tensors.is_placed))

        def enter_modes() -> ExitStack:
            modes = ExitStack()
            modes.enter_context(tracker.calls.mode())
            modes.enter_context(dispatch_mode(handle))
            return modes

        patch_threads(enter_modes, patches)
        stack.enter_context(enter_modes())
        yield machine, tracker, files


def _patch_features(
    features: ChangedFeatures, tracker: Tracker, tensors: TensorPatches, patches: Patches, kernels: Kernels
) -> None:
    """Replace what a simulation can do without, as far as this torch has it."""
    machine = tracker.machine
    parts: dict[Feature, Callable[[], object]] = {
        Feature.SIMULATED_GRAPHS: lambda: patch_graphs(machine, patches),
        Feature.SIMULATED_WRAPPERS: lambda: patch_wrappers(tracker, tensors, patches),
        Feature.SIMULATED_TYPES: lambda: patch_legacy_types(patches),
        Feature.SIMULATED_GROUPING: lambda: patch_grouping(patches),
        Feature.SIMULATED_AUTOCAST: lambda: patch_autocast(patches, kernels),
        Feature.SIMULATED_ATTENTION: lambda: add_gpu_choices(kernels, tensors.is_placed),
        Feature.SIMULATED_ANNOTATIONS: lambda: patch_annotations(machine.annotate, patches),
        Feature.SIMULATED_GROUPS: lambda: patch_process_groups(tracker, patches),
        Feature.SIMULATED_FILES: lambda: patch_checkpoints(tracker, patches),
    }
    for feature, patch in parts.items():
        if feature in features:
            patch()


def _import_torch(*names: str) -> None:
    """Import what looks at torch.cuda while it is imported, before that is changed.

    torch.optim imports torch._dynamo at its first step, which lists torch.cuda's functions (2.13).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            import_module(name)
