"""Everything of torch's insides that the recorder touches, compared with the installed torch.

What is replaced and what is private stands in SURFACE and nowhere else, but for what the simulation
adds where a build without CUDA lacks it (``torch._C._cuda_*``). A feature of which something is
missing is left out, with a note that names it; one that is ESSENTIAL ends the recording. Imports no
torch.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeAlias

from snapconv.errors import RecorderError
from snapconv.notes import Note

Tensor: TypeAlias = Any
Module: TypeAlias = Any
# (device, requested bytes, device's total bytes, device's free bytes)
OutOfMemoryObserver: TypeAlias = Callable[[int, int, int, int], object]

# Older ones crash where they are simulated: docs/reference/torch-versions.md.
OLDEST = (2, 6)


class Feature(Enum):
    """Features of a recording; the values are plural phrases, for the note that one is left out."""

    MEMORY = "allocations"
    OUT_OF_MEMORY = "states at out-of-memory errors"
    OPTIMIZER_STEPS = "steps of optimizers"
    BUILT_OPTIMIZERS = "optimizers that never step"
    SCALER_STEPS = "steps that a GradScaler leaves out"
    MARKED_STEPS = "iterations that snapconv.step() ends"
    BACKWARD_PASSES = "backward passes"
    NOTES = "notes on what memory is for"
    MODULES = "names of weights"
    MODEL_CALLS = "calls of models"
    SAVED_TENSORS = "tensors saved for backward"
    COPIES = "copies of tensors and models"
    TIMES = "times of operations"
    CUSTOM_FUNCTION_TIMES = "times of custom functions"
    COMPILED_FUNCTION_TIMES = "times of compiled functions"
    OPAQUE_MODULE_TIMES = "times of compiled and scripted modules"
    BACKWARD_TIMES = "times of backward passes"
    SIMULATION = "CUDA devices"
    SIMULATED_ANNOTATIONS = "annotations"
    SIMULATED_AUTOCAST = "casts of CUDA's autocast"
    SIMULATED_GRAPHS = "CUDA graphs"
    SIMULATED_GROUPS = "process groups"
    SIMULATED_FILES = "checkpoints without values"
    SIMULATED_WRAPPERS = "tensors that wrap others"
    SIMULATED_TYPES = "types such as torch.cuda.FloatTensor"
    SIMULATED_COMPILATION = "compiled functions"

    @property
    def is_of_simulation(self) -> bool:
        """Whether only a simulation has it."""
        return self.name.startswith("SIMULAT")


# Nothing can be recorded without them.
ESSENTIAL = (Feature.MEMORY, Feature.SIMULATION)
# A line names a module or class and its attributes, with a question mark those that a supported
# torch may lack: the recorder does without them then. Without the mark, all of the feature goes.
SURFACE: dict[Feature, str] = {
    Feature.MEMORY: """
    torch.cuda.memory: _record_memory_history _snapshot
    torch.cuda: _lazy_call is_initialized
    torch._C: _cuda_isHistoryEnabled? _cuda_resetPeakMemoryStats? _accelerator_resetPeakStats?
    torch.autograd.profiler.record_function: __init__ __enter__ __exit__
    torch._C._profiler: gather_traceback symbolize_tracebacks""",
    Feature.OUT_OF_MEMORY: "torch._C: _cuda_attach_out_of_memory_observer",
    Feature.OPTIMIZER_STEPS: """
    torch.compiler: is_compiling
    torch._C: _is_tracing
    torch.optim.optimizer: register_optimizer_step_pre_hook register_optimizer_step_post_hook
    torch.utils.hooks.RemovableHandle: remove""",
    Feature.BUILT_OPTIMIZERS: "torch.optim.Optimizer: __init__",
    Feature.SCALER_STEPS: "torch.amp.GradScaler: step",
    Feature.BACKWARD_PASSES: """
    torch.autograd: backward grad
    torch.Tensor: backward grad_fn""",
    Feature.MODULES: """
    torch.nn.modules.module: register_module_parameter_registration_hook
    torch.nn.modules.module: register_module_buffer_registration_hook
    torch.nn.modules.module: register_module_module_registration_hook
    torch.utils.weak: WeakIdKeyDictionary
    torch.nn.parameter: is_lazy
    torch.Tensor: _indices _values _version""",
    Feature.MODEL_CALLS: """
    torch.nn.modules.module: register_module_forward_pre_hook register_module_forward_hook
    torch.nn.Module: _call_impl""",
    Feature.SAVED_TENSORS: """
    torch._C._autograd: _saved_tensors_hooks_disable _saved_tensors_hooks_is_enabled
    torch._C._autograd: _push_saved_tensors_default_hooks _pop_saved_tensors_default_hooks
    torch._C._autograd: _top_saved_tensors_default_hooks
    torch.autograd.function.FunctionCtx: save_for_backward save_for_forward
    torch._C: _FunctionBase
    torch._C._FunctionBase: saved_for_forward _raw_saved_tensors
    torch.Tensor: _version
    torch.compiler: disable""",
    Feature.COPIES: """
    torch.Tensor: __deepcopy__
    torch.nn.Parameter: __deepcopy__
    torch.nn.Module: __setstate__""",
    Feature.TIMES: """
    torch.overrides: TorchFunctionMode
    torch._C: _len_torch_function_stack _get_function_stack_at _pop_torch_function_stack
    torch._C: _push_on_torch_function_stack
    torch._C._autograd: _get_sequence_nr
    torch: _GLOBAL_DEVICE_CONTEXT?
    torch.nn.Module: _call_impl
    torch._C._profiler: gather_traceback symbolize_tracebacks""",
    Feature.CUSTOM_FUNCTION_TIMES: "torch.autograd.Function: apply",
    Feature.COMPILED_FUNCTION_TIMES: "torch: compile",
    Feature.OPAQUE_MODULE_TIMES: "torch.jit.ScriptModule: __call__",
    # Every node has _sequence_nr, but the class that describes them did not name it up to torch
    # 2.10.
    Feature.BACKWARD_TIMES: (
        "torch.autograd.graph.Node: register_prehook next_functions name _sequence_nr?"
    ),
    Feature.SIMULATION: """
    torch.utils._python_dispatch: TorchDispatchMode _disable_current_modes
    torch.utils._python_dispatch: _get_current_dispatch_mode
    torch.overrides: TorchFunctionMode handle_torch_function has_torch_function_unary
    torch.overrides: _get_current_function_mode_stack
    torch.utils._device: DeviceContext _device_constructors?
    torch.Tensor: to cuda cpu type type_as tolist numpy get_device data_ptr record_stream is_pinned
    torch.Tensor: pin_memory new_tensor new __torch_dispatch__ device is_cuda is_cpu
    torch._C.ScriptFunction: __call__
    torch._C.ScriptMethod: __call__
    torch.UntypedStorage: data_ptr clone resize_ device is_cuda _cdata
    torch.nn.parameter.UninitializedTensorMixin: _allowed_methods
    torch._tensor_str: _str
    torch: tensor as_tensor asarray Generator Stream? Event?
    torch.serialization: default_restore_location
    torch.cuda: _initialized _queued_calls default_generators _cudart _is_in_bad_fork device_count
    torch.cuda: _exchange_device? _maybe_exchange_device? _get_device_properties?
    torch.cuda.nvtx: _nvtx?
    torch.cuda.graphs: _cuda_isCurrentStreamCapturing?
    torch.accelerator: is_available? device_count?
    torch.backends.cuda: is_built
    torch.backends.cudnn: is_acceptable
    torch.cuda.streams: Stream Event ExternalStream
    torch._C: _has_cuda? _scatter? _get_accelerator? _functorch _current_graph_task_id
    torch._C: _dispatch_has_kernel_for_dispatch_key _current_autograd_node
    torch._C: _storage_id _get_dispatch_mode
    torch._C: _dispatch_has_computed_kernel_for_dispatch_key
    torch._C: DispatchKey DispatchKeySet DisableTorchFunction _from_dlpack
    torch._C._nn: _parse_to
    torch._C._TorchDispatchModeKey: FAKE
    torch._C: _group_tensors_by_device_and_dtype?
    torch._ops.OpOverload: _can_decompose? _op_dk?
    torch.library: Library
    torch.library.Library: impl _destroy
    torch._C._profiler: gather_traceback symbolize_tracebacks""",
    Feature.SIMULATED_ANNOTATIONS: (
        "torch.autograd.profiler.record_function: __init__ __enter__ __exit__"
    ),
    Feature.SIMULATED_AUTOCAST: """
    torch: set_autocast_enabled set_autocast_dtype?
    torch._C: _ExcludeDispatchKeyGuard""",
    Feature.SIMULATED_GRAPHS: """
    torch.cuda.graphs: CUDAGraph graph make_graphed_callables _graph_pool_handle?
    torch._C: _host_emptyCache?""",
    Feature.SIMULATED_GROUPS: """
    torch.distributed.distributed_c10d: init_process_group _NCCL_AVAILABLE default_pg_nccl_timeout
    torch.distributed: Reducer split_group?
    torch._C._distributed_c10d: FakeProcessGroup _create_work_from_future
    torch._C._distributed_c10d.FakeProcessGroup: _create_internal?
    torch.cuda.nccl: version""",
    Feature.SIMULATED_FILES: """
    torch._C.PyTorchFileReader: get_storage_from_record
    torch.serialization: save load _get_restore_location
    torch: save load from_file""",
    Feature.SIMULATED_WRAPPERS: "torch.Tensor: _make_wrapper_subclass",
    Feature.SIMULATED_TYPES: "torch: set_default_tensor_type",
    Feature.SIMULATED_COMPILATION: """
    torch._dynamo.eval_frame: _TorchDynamoContext
    torch._dynamo.eval_frame._TorchDynamoContext: __call__
    torch.compiler: set_stance
    torch.jit: trace trace_module""",
}


def names(table: str) -> Iterator[str]:
    """Read the lines of a feature."""
    for line in table.splitlines():
        owner, _, attributes = line.strip().partition(": ")
        for attribute in attributes.split():
            yield f"{owner}.{attribute}"


# The features that are left out, each with what is missing.
Changed = dict[Feature, str]


def changed_notes(changed: Changed) -> tuple[Note, ...]:
    """Name what is left out."""
    return tuple(
        Note("torch-changed", _sentence(feature, name)) for feature, name in changed.items()
    )


def probe(*, is_for_simulation: bool) -> Changed:
    """Compare torch with the table.

    Raise RecorderError where it is too old, or lacks what is essential.
    """
    version = str(sys.modules["torch"].__version__)
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RecorderError(
            f"torch {version} is too old to record with: use torch {oldest} or newer"
        )
    changed: Changed = {}
    for feature, table in SURFACE.items():
        if feature.is_of_simulation != is_for_simulation:
            continue
        name = next(missing(table), None)
        if name is None:
            continue
        if feature in ESSENTIAL:
            raise RecorderError(
                f"{_sentence(feature, name)}; use an older torch, or a newer snapconv"
            )
        changed[feature] = name
    return changed


def missing(table: str) -> Iterator[str]:
    """Return the names that this torch does not have."""
    return (name for name in names(table) if not name.endswith("?") and not _exists(name))


def _sentence(feature: Feature, name: str) -> str:
    version = sys.modules["torch"].__version__
    verb = "simulated" if feature.is_of_simulation else "recorded"
    return f"torch {version}: {feature.value} are not {verb}: {name} is not there"


def _exists(name: str) -> bool:
    """Return whether torch has a dotted name, or a module of that name, imported or not."""
    parts = name.split(".")
    n_modules = max(n for n in range(1, len(parts)) if ".".join(parts[:n]) in sys.modules)
    module_name = ".".join(parts[:n_modules])
    module = sys.modules[module_name]
    value: Any = module
    for part in parts[n_modules:]:
        owner = value
        # torch.backends.cudnn is an object that stands for its module.
        is_plain = not isinstance(owner, ModuleType) or type(owner) is ModuleType
        look_up = inspect.getattr_static if is_plain else getattr
        value = look_up(owner, part, _ABSENT)
        if value is _ABSENT:
            is_package = owner is module and hasattr(owner, "__path__")
            return is_package and find_spec(f"{module_name}.{part}") is not None
    return True


_ABSENT = object()
