"""An unmodified CUDA script on a computer without a GPU: torch's CUDA interface, simulated.

Beneath torch's Python interface: ``torch.cuda`` and ``torch._C`` answer as a CUDA build does,
memory comes from the model of the caching allocator, and the tensors are computed on the CPU, or
not at all. Nothing else of the recorder need know. Importing this imports no torch.

``Simulation.patched`` replaces what every simulation needs, ``_patch_features`` what it can do
without; both name the module that does it: ``cuda`` torch.cuda and torch._C, ``not_modelled`` what
they have no answer for, ``tensors`` methods and places of tensors, ``legacy_types`` types such as
torch.cuda.FloatTensor, ``generators`` random numbers, ``kernels`` what only a GPU computes,
``same_device`` the errors of tensors on two devices, ``process_groups`` and ``collectives``
torch.distributed, ``worker_processes`` torch.multiprocessing, ``compilation`` torch.compile,
``unwritten_files`` what saves.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from snapconv.errors import RecorderError
from snapconv.guest import locations
from snapconv.guest.guard import fault_note
from snapconv.guest.torch_surface import Changed, Feature, changed_notes, probe, require
from snapconv.notes import Note
from snapconv.simulation.machine import BLAS, Machine, SimulationOptions
from snapconv.simulation.simulated_job import RankOfJob, set_variables

if TYPE_CHECKING:
    from snapconv.simulation.patches import Handler, Patches

__all__ = ["RankOfJob", "Simulation", "SimulationOptions", "set_variables", "simulated"]


class Simulation:
    """A simulation that is running."""

    def __init__(self, options: SimulationOptions, changed: Changed) -> None:
        from snapconv.simulation.tracker import Tracker
        from snapconv.simulation.unwritten_files import UnwrittenFiles
        from snapconv.simulation.worker_processes import WorkerProcesses

        self.machine = Machine(options)
        self.tracker = Tracker(self.machine)
        self._workers = WorkerProcesses(self.machine)
        self._changed = changed
        self._files = None if options.compute else UnwrittenFiles(self.tracker)

    def notes(self) -> tuple[Note, ...]:
        """Return what the user should know of this run, beyond what every simulation leaves out."""
        from snapconv.simulation.process_groups import object_notes

        unwritten = self._files.notes() if self._files else ()
        return (
            *changed_notes(self._changed),
            *self.late_notes(),
            *self.machine.notes.values(),
            *object_notes(self.machine),
            *self.tracker.values_read.notes(),
            *self.tracker.routing.notes(),
            *unwritten,
        )

    def late_notes(self) -> tuple[Note, ...]:
        """Return notes that the program may cause until its end, also after its recording."""
        return (*self.faults(), *self._workers.notes())

    def faults(self) -> tuple[Note, ...]:
        """Return notes on what a fault of ours has left to the CPU."""
        guard = self.tracker.guard
        return () if guard.failure is None else (fault_note(guard),)

    def values(self) -> dict[str, Any]:
        """Return what was simulated up to now, in plain types, for the metadata of a capture."""
        options = self.machine.options
        sizes = self._files.unwritten() if self._files else {}
        files = [{"path": path, "n_bytes": n_bytes} for path, n_bytes in sizes.items()]
        not_modelled = list(self.machine.not_modelled)
        if options.cublas_workspace and BLAS in not_modelled:
            not_modelled.remove(BLAS)
        return {
            "compute": options.compute,
            "capacity_bytes": options.capacity_bytes,
            "total_bytes": options.total_bytes,
            "cublas_workspace": options.cublas_workspace,
            "n_devices": options.n_devices,
            "files_not_written": files,
            "not_modelled": not_modelled,
        }

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Replace torch's functions about devices, until the last attribute is restored."""
        from snapconv.simulation import (
            cuda,
            generators,
            kernels,
            not_modelled,
            same_device,
            tensors,
            unwritten_files,
        )
        from snapconv.simulation.patches import Patches, dispatch_mode, patch_threads

        machine = self.machine
        tracker = self.tracker
        with Patches(tracker.guard) as patches:
            if machine.options.job is not None:
                patches.enter_context(machine.options.job.environment())
            not_modelled.patch_not_modelled(patches)
            cuda.patch_cuda(machine, patches)
            tensors.TensorPatches(tracker).apply(patches)
            tensors.patch_storages(tracker, patches)
            tensors.patch_factories(tracker, patches)
            generators.patch_generators(machine, tracker.generators, patches)
            same_device.patch_doubts(tracker.mark_doubtful, patches)
            self._workers.patch(patches)
            self._patch_features(patches)
            if self._files is not None:
                unwritten_files.patch_files(self._files, patches)
            kernels.patch_triton(
                tracker.evaluation.forget if self._files else None, patches
            )
            handle = self._handler()
            patches.callback(tracker.placements.close)
            patches.set(locations, "locate", tracker.locate)

            def enter_modes() -> ExitStack:
                modes = ExitStack()
                modes.enter_context(tracker.calls.mode())
                modes.enter_context(dispatch_mode(handle, tracker.is_on_device))
                return modes

            patch_threads(enter_modes, patches)
            patches.enter_context(enter_modes())
            yield

    def _handler(self) -> "Handler":
        """Return what does all operations of the program."""
        from snapconv.simulation.collectives import Collectives
        from snapconv.simulation.process_groups import has_other_processes

        handle = self.tracker.handle
        if Feature.SIMULATED_GROUPS in self._changed:
            return handle
        is_real = partial(has_other_processes, self.tracker)
        return Collectives(handle, is_real, self.tracker.mark_of_others).handle

    def _patch_features(self, patches: "Patches") -> None:
        """Replace what a simulation can do without, as far as this torch has it."""
        from snapconv.simulation import (
            compilation,
            cuda,
            flex_attention,
            kernels,
            legacy_types,
            process_groups,
            tensors,
            unwritten_files,
        )

        machine = self.machine
        tracker = self.tracker
        added = kernels.Kernels(patches)
        kernels.add_gpu_choices(added, tracker.placements)
        parts: list[tuple[Feature, Callable[[Any, Patches], None], Any]] = [
            (Feature.SIMULATED_GRAPHS, cuda.patch_graphs, machine),
            (Feature.SIMULATED_WRAPPERS, tensors.patch_wrappers, tracker),
            (Feature.SIMULATED_AUTOCAST, kernels.patch_autocast, added),
            (Feature.SIMULATED_ANNOTATIONS, cuda.patch_annotations, machine),
            (Feature.SIMULATED_GROUPS, process_groups.patch_process_groups, tracker),
            (Feature.SIMULATED_COMPILATION, compilation.patch_compilation, machine),
            (
                Feature.SIMULATED_FLEX_ATTENTION,
                flex_attention.patch_flex_attention,
                tracker.placements,
            ),
            (Feature.SIMULATED_TYPES, legacy_types.patch_legacy_types, tracker),
        ]
        if self._files is not None:
            parts.append(
                (Feature.SIMULATED_FILES, unwritten_files.patch_checkpoints, self._files)
            )
        for feature, patch, subject in parts:
            if feature not in self._changed:
                patch(subject, patches)


_is_running = [False]


@contextmanager
def simulated(options: SimulationOptions | None = None) -> Iterator[Simulation]:
    """Let torch believe in CUDA devices that are simulated; everything is as before afterwards."""
    if _is_running[0]:
        raise RecorderError(
            "a simulation is running already: a process can have one at a time"
        )
    _is_running[0] = True
    try:
        # Import what looks at torch.cuda while it is imported, before that is changed: torch.optim
        # imports torch._dynamo at its first step, which lists torch.cuda's functions (2.13).
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in ("torch.optim", "torch._dynamo"):
                import_module(name)
        options = options or SimulationOptions()
        changed = probe(is_for_simulation=True)
        if options.job is not None:
            for feature in (Feature.SIMULATED_GROUPS, Feature.SIMULATED_JOBS):
                require(feature, changed)
        changed.pop(Feature.SIMULATED_JOBS, None)
        simulation = Simulation(options, changed)
        with simulation.patched():
            yield simulation
    finally:
        _is_running[0] = False
