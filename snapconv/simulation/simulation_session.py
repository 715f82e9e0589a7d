"""A simulation from its first patch to its last restored attribute."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module

from snapconv.errors import RecorderError
from snapconv.recorder.observe.tensors import use_locations
from snapconv.recorder.torch_features import Features, differences, of_simulation, probe
from snapconv.recorder.torch_surface import OF_COMPILING, Feature
from snapconv.simulation.devices.accelerator import patch_accelerator
from snapconv.simulation.devices.annotations import patch_annotations
from snapconv.simulation.devices.binding import bind
from snapconv.simulation.devices.cuda_graphs import patch_graphs
from snapconv.simulation.devices.legacy_types import patch_legacy_types
from snapconv.simulation.devices.machine import Machine
from snapconv.simulation.devices.process_groups import patch_process_groups, with_collectives
from snapconv.simulation.kernels import Kernels
from snapconv.simulation.modes import Handler, dispatch_mode
from snapconv.simulation.operations.attention import add_gpu_choices
from snapconv.simulation.operations.autocast import patch_autocast
from snapconv.simulation.operations.compilation import can_compile, compiled
from snapconv.simulation.operations.compiled_as_eager import eager
from snapconv.simulation.operations.grouping import patch_grouping
from snapconv.simulation.operations.tracker import Tracker
from snapconv.simulation.patches import Patches
from snapconv.simulation.simulation_options import SimulationOptions
from snapconv.simulation.tensors.checkpoints import patch_checkpoints
from snapconv.simulation.tensors.dlpack import patch_dlpack
from snapconv.simulation.tensors.doubts import patch_scripts
from snapconv.simulation.tensors.factories import patch_factories
from snapconv.simulation.tensors.random_weights import random_weights
from snapconv.simulation.tensors.storages import patch_storages
from snapconv.simulation.tensors.tensor_attributes import TensorPatches
from snapconv.simulation.tensors.wrappers import patch_wrappers
from snapconv.simulation.threads import patch_threads

_is_running = [False]


@contextmanager
def _only_one() -> Iterator[None]:
    if _is_running[0]:
        raise RecorderError("a simulation is running already: a process can have one at a time")
    _is_running[0] = True
    try:
        yield
    finally:
        _is_running[0] = False


@contextmanager
def running(options: SimulationOptions) -> Iterator[tuple[Machine, Tracker]]:
    """Make this process's torch believe in the simulated devices, for as long as the context lasts."""
    with _only_one():
        _import_torch(("torch.optim", "torch._dynamo"))
        is_compiling = not options.compute and can_compile()
        if is_compiling:
            _import_torch(("torch._inductor.cudagraph_trees",))
            is_compiling = not any(differences(OF_COMPILING))
        with _patched(options, is_compiling=is_compiling) as (machine, tracker):
            yield machine, tracker


@contextmanager
def _patched(options: SimulationOptions, *, is_compiling: bool) -> Iterator[tuple[Machine, Tracker]]:
    features = probe(of_simulation)
    machine = Machine(options)
    for note in features.notes():
        machine.changes.append(note)
    tracker = Tracker(machine)
    machine.guards.append(tracker.guard)
    with ExitStack() as stack:
        patches = stack.enter_context(Patches(tracker.guard))
        bind(machine, patches)
        patch_accelerator(machine, patches)
        tensors = TensorPatches(tracker)
        tensors.apply(patches)
        patch_storages(tracker, tensors, patches)
        patch_factories(tracker, tensors, patches)
        _patch_features(features, tracker, tensors, patches, stack.enter_context(Kernels()))
        if options.random_weights:
            stack.enter_context(random_weights(machine, patches))
        handle: Handler = tracker.handle
        if Feature.SIMULATED_GROUPS in features:
            handle = with_collectives(handle)
        stack.callback(tracker.close)
        stack.enter_context(use_locations(tracker.locate))

        def enter_modes() -> ExitStack:
            modes = ExitStack()
            modes.enter_context(tracker.calls.mode())
            modes.enter_context(dispatch_mode(handle))
            return modes

        if Feature.SIMULATED_COMPILATION in features:
            stack.enter_context(compiled(tensors, enter_modes) if is_compiling else eager(machine, tensors))
        patch_threads(enter_modes, patches)
        stack.enter_context(enter_modes())
        yield machine, tracker


def _patch_features(
    features: Features, tracker: Tracker, tensors: TensorPatches, patches: Patches, kernels: Kernels
) -> None:
    """Replace what a simulation can do without, as far as this torch has it."""
    machine = tracker.machine
    parts: dict[Feature, Callable[[], object]] = {
        Feature.SIMULATED_GRAPHS: lambda: patch_graphs(machine, patches),
        Feature.SIMULATED_DLPACK: lambda: patch_dlpack(patches),
        Feature.SIMULATED_SCRIPTS: lambda: patch_scripts(tracker.doubts, patches),
        Feature.SIMULATED_WRAPPERS: lambda: patch_wrappers(tracker, tensors, patches),
        Feature.SIMULATED_TYPES: lambda: patch_legacy_types(patches),
        Feature.SIMULATED_GROUPING: lambda: patch_grouping(patches),
        Feature.SIMULATED_AUTOCAST: lambda: patch_autocast(patches, kernels),
        Feature.SIMULATED_ATTENTION: lambda: add_gpu_choices(kernels, tensors.takes_gpu_way),
        Feature.SIMULATED_ANNOTATIONS: lambda: patch_annotations(machine, patches),
        Feature.SIMULATED_GROUPS: lambda: patch_process_groups(tracker, patches),
        Feature.SIMULATED_FILES: lambda: patch_checkpoints(tracker, patches),
    }
    for feature, patch in parts.items():
        if feature in features:
            patch()


def _import_torch(names: tuple[str, ...]) -> None:
    """Import what looks at torch.cuda while it is imported, before that is changed.

    torch.optim imports torch._dynamo at its first step, which lists torch.cuda's functions (2.13); what is
    compiled, and torch._dynamo.reset(), import CUDA graphs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            import_module(name)
