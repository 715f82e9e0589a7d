"""Everything of torch's insides that the recorder touches, and its comparison with the torch that is there.

What is replaced, what is private, and what has a signature that we rely on stands in SURFACE and nowhere
else. A feature whose part of torch has changed is left out, with a note that names what; the rest is
recorded. Imports no torch.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from snapconv.errors import RecorderError
from snapconv.notes import Note

Tensor: TypeAlias = Any
Module: TypeAlias = Any

# Older ones crash where they are simulated: docs/reference/torch-versions.md.
OLDEST = (2, 6)


class Feature(Enum):
    """A feature of a recording: a phrase in the plural, for the note that it is left out."""

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
    SIMULATED_ATTENTION = "attention and dropout as on a GPU"
    SIMULATED_GRAPHS = "CUDA graphs"
    SIMULATED_GROUPING = "foreach kernels"
    SIMULATED_GROUPS = "process groups"
    SIMULATED_FILES = "checkpoints without values"
    SIMULATED_WRAPPERS = "tensors that wrap others"
    SIMULATED_TYPES = "types such as torch.cuda.FloatTensor"
    SIMULATED_COMPILATION = "compiled functions"

    @property
    def is_essential(self) -> bool:
        """Whether nothing can be recorded without it."""
        return self in (Feature.MEMORY, Feature.SIMULATION)

    @property
    def is_of_simulation(self) -> bool:
        """Whether only a simulation has it."""
        return self.name.startswith("SIMULAT")


# A line names attributes of a place, with a question mark those that may be missing: we do without them then.
# With parentheses it is a function in Python: the parameters that come first, in this order, and behind an
# asterisk those that are there by name. A parameter that is in neither must have a default.
_STEP_HOOKS = """
    torch.optim.optimizer.register_optimizer_step_pre_hook(hook)
    torch.optim.optimizer.register_optimizer_step_post_hook(hook)
    torch.utils.hooks.RemovableHandle.remove(self)
"""
_ANNOTATIONS = """
    torch.autograd.profiler.record_function.__init__(self name)
    torch.autograd.profiler.record_function.__enter__(self)
    torch.autograd.profiler.record_function.__exit__(self exc_type exc_value traceback)
"""
_TRACEBACKS = """
    torch._C._profiler: gather_traceback symbolize_tracebacks
"""
_MODULE_CALL = """
    torch.nn.Module._call_impl(self)
"""
SURFACE: dict[Feature, str] = {
    Feature.MEMORY: f"""
    torch.cuda.memory._record_memory_history(enabled * context stacks max_entries)
    torch.cuda.memory._snapshot()
    torch.cuda._lazy_call(callable)
    torch.cuda.is_initialized()
    torch._C: _cuda_isHistoryEnabled?
    {_ANNOTATIONS}{_TRACEBACKS}""",
    Feature.OUT_OF_MEMORY: "torch._C: _cuda_attach_out_of_memory_observer",
    Feature.OPTIMIZER_STEPS: f"""
    torch.compiler: is_compiling
    torch._C: _is_tracing
    {_STEP_HOOKS}""",
    Feature.BUILT_OPTIMIZERS: "torch.optim.Optimizer.__init__(self params defaults)",
    Feature.SCALER_STEPS: "torch.amp.GradScaler.step(self optimizer)",
    Feature.BACKWARD_PASSES: """
    torch.autograd.backward(tensors)
    torch.autograd.grad(outputs inputs)
    torch.Tensor.backward(self)
    torch.Tensor: grad_fn""",
    Feature.MODULES: """
    torch.nn.modules.module.register_module_parameter_registration_hook(hook)
    torch.nn.modules.module.register_module_buffer_registration_hook(hook)
    torch.nn.modules.module.register_module_module_registration_hook(hook)
    torch.utils.weak: WeakIdKeyDictionary
    torch.nn.parameter.is_lazy(param)
    torch.Tensor: _indices _values _version""",
    Feature.MODEL_CALLS: f"""
    torch.nn.modules.module.register_module_forward_pre_hook(hook)
    torch.nn.modules.module.register_module_forward_hook(hook * always_call)
    {_MODULE_CALL}""",
    Feature.SAVED_TENSORS: """
    torch._C._autograd: _saved_tensors_hooks_disable _saved_tensors_hooks_is_enabled
    torch._C._autograd: _push_saved_tensors_default_hooks _pop_saved_tensors_default_hooks
    torch._C._autograd: _top_saved_tensors_default_hooks
    torch.autograd.function.FunctionCtx.save_for_backward(self)
    torch.autograd.function.FunctionCtx.save_for_forward(self)
    torch._C: _FunctionBase
    torch._C._FunctionBase: saved_for_forward _raw_saved_tensors
    torch.Tensor: _version
    torch.compiler: disable""",
    Feature.COPIES: """
    torch.Tensor.__deepcopy__(self memo)
    torch.nn.Parameter.__deepcopy__(self memo)
    torch.nn.Module.__setstate__(self state)""",
    Feature.TIMES: f"""
    torch.overrides: TorchFunctionMode
    torch._C: _len_torch_function_stack _get_function_stack_at
    torch._C: _pop_torch_function_stack _push_on_torch_function_stack
    torch._C._autograd: _get_sequence_nr
    torch: _GLOBAL_DEVICE_CONTEXT?
    {_MODULE_CALL}{_TRACEBACKS}""",
    Feature.CUSTOM_FUNCTION_TIMES: "torch.autograd.Function: apply",
    Feature.COMPILED_FUNCTION_TIMES: "torch.compile(model)",
    Feature.OPAQUE_MODULE_TIMES: "torch.jit.ScriptModule: __call__",
    # Every node has _sequence_nr, but the class that describes them did not name it up to torch 2.10.
    Feature.BACKWARD_TIMES: """
    torch.autograd.graph.Node.register_prehook(self fn)
    torch.autograd.graph.Node: next_functions name _sequence_nr?""",
    Feature.SIMULATION: f"""
    torch.utils._python_dispatch: TorchDispatchMode _disable_current_modes
    torch.overrides: TorchFunctionMode handle_torch_function has_torch_function_unary
    torch.overrides: _get_current_function_mode_stack
    torch.utils._device: DeviceContext _device_constructors?
    torch.Tensor: to cuda cpu type type_as tolist numpy get_device data_ptr record_stream is_pinned
    torch.Tensor: pin_memory new_tensor __torch_dispatch__ device is_cuda is_cpu
    torch.UntypedStorage: data_ptr clone resize_ device is_cuda _cdata
    torch.nn.parameter.UninitializedTensorMixin: _allowed_methods
    torch._tensor_str._str(self)
    torch: tensor as_tensor asarray Generator Stream? Event?
    torch.serialization.default_restore_location(storage location)
    torch.cuda: _initialized _queued_calls default_generators _cudart _is_in_bad_fork device_count
    torch.cuda: _exchange_device? _maybe_exchange_device? _get_device_properties?
    torch.cuda.nvtx: _nvtx?
    torch.cuda.graphs: _cuda_isCurrentStreamCapturing?
    torch.accelerator: is_available? device_count?
    torch.backends.cuda: is_built
    torch.backends.cudnn: is_acceptable
    torch.cuda.streams: Stream Event ExternalStream
    torch._C: _has_cuda? _scatter? _get_accelerator? _functorch
    torch._C: _current_graph_task_id _dispatch_has_kernel_for_dispatch_key
    torch._C: _current_autograd_node _storage_id _get_dispatch_mode
    torch._C: DispatchKey DispatchKeySet DisableTorchFunction
    torch._C._nn: _parse_to
    torch._C._TorchDispatchModeKey: FAKE
    torch._ops.OpOverload: _can_decompose?
    torch.library: Library
    torch.library.Library: impl _destroy
    {_TRACEBACKS}""",
    Feature.SIMULATED_ANNOTATIONS: _ANNOTATIONS,
    Feature.SIMULATED_AUTOCAST: """
    torch: set_autocast_enabled set_autocast_dtype?
    torch._C: _ExcludeDispatchKeyGuard""",
    Feature.SIMULATED_ATTENTION: "torch._ops.OpOverload: _op_dk?",
    Feature.SIMULATED_GRAPHS: """
    torch.cuda.graphs: CUDAGraph graph make_graphed_callables _graph_pool_handle?
    torch._C: _host_emptyCache?""",
    Feature.SIMULATED_GROUPING: "torch._C: _group_tensors_by_device_and_dtype?",
    Feature.SIMULATED_GROUPS: """
    torch.distributed.distributed_c10d.init_process_group(* world_size init_method)
    torch.distributed: Reducer
    torch.distributed.distributed_c10d: _NCCL_AVAILABLE default_pg_nccl_timeout
    torch._C._distributed_c10d: FakeProcessGroup? _create_work_from_future
    torch._C._distributed_c10d.FakeProcessGroup: _create_internal?
    torch.cuda.nccl: version""",
    Feature.SIMULATED_FILES: """
    torch._C.PyTorchFileReader: get_storage_from_record
    torch.serialization: save load _get_restore_location
    torch: save load""",
    Feature.SIMULATED_WRAPPERS: "torch.Tensor: _make_wrapper_subclass",
    Feature.SIMULATED_TYPES: "torch: set_default_tensor_type",
    Feature.SIMULATED_COMPILATION: """
    torch._dynamo.eval_frame: _TorchDynamoContext
    torch._dynamo.eval_frame._TorchDynamoContext: __call__
    torch.compiler: set_stance
    torch.jit: trace trace_module""",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One attribute of torch; ``parameters`` is None for one that only has to be there."""

    name: str
    parameters: tuple[str, ...] | None = None
    keywords: tuple[str, ...] = ()
    is_optional: bool = False


def rows(table: str) -> Iterator[Row]:
    """Read the lines of a feature."""
    for line in filter(None, map(str.strip, table.splitlines())):
        place, colon, names = line.partition(": ")
        if colon:
            for name in names.split():
                yield Row(f"{place}.{name.removesuffix('?')}", is_optional=name.endswith("?"))
        else:
            place, _, given = line.removesuffix(")").partition("(")
            first, _, keywords = given.partition("*")
            yield Row(place, tuple(first.split()), tuple(keywords.split()))


@dataclass(frozen=True, slots=True)
class ChangedFeatures:
    """The features that are left out, each with what differs; all others are there."""

    changed: dict[Feature, str] = field(default_factory=dict)

    def __contains__(self, feature: Feature) -> bool:
        return feature not in self.changed

    def notes(self) -> tuple[Note, ...]:
        """Name what is left out."""
        return tuple(
            Note("torch-changed", _sentence(feature, what)) for feature, what in self.changed.items()
        )


def probe(*, is_for_simulation: bool) -> ChangedFeatures:
    """Compare torch with the table, of a recording or of a simulation; nothing is imported and nothing run.

    Raises RecorderError where torch is too old, or a feature differs without which there is no recording.
    """
    version = str(sys.modules["torch"].__version__)
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RecorderError(f"torch {version} is too old to record with: use torch {oldest} or newer")
    changed = {}
    for feature, table in SURFACE.items():
        what = next(differences(table), None) if feature.is_of_simulation == is_for_simulation else None
        if what is not None:
            if feature.is_essential:
                raise RecorderError(f"{_sentence(feature, what)}; use an older torch, or a newer snapconv")
            changed[feature] = what
    return ChangedFeatures(changed)


def differences(table: str) -> Iterator[str]:
    """Say of every row that this torch does not meet how it differs."""
    for row in rows(table):
        found, what = _found(row.name), None
        if found is _ABSENT:
            what = None if row.is_optional else "is not there"
        elif row.parameters is not None and found is not _NOT_IMPORTED:
            what = f"is of type {type(found).__name__}, and was a function in Python"
            if isinstance(found, FunctionType):
                what = _other_signature(row.parameters, row.keywords, found)
        if what is not None:
            yield f"{row.name} {what}"


def _sentence(feature: Feature, what: str) -> str:
    verb = "simulated" if feature.is_of_simulation else "recorded"
    return f"torch {sys.modules['torch'].__version__}: {feature.value} are not {verb}: {what}"


_ABSENT, _NOT_IMPORTED = object(), object()


def _found(name: str) -> Any:
    """Return what torch has by a dotted name: of a class as it stands there, and not bound."""
    parts = name.split(".")
    n_modules = max(n for n in range(1, len(parts)) if ".".join(parts[:n]) in sys.modules)
    module = ".".join(parts[:n_modules])
    found: Any = sys.modules[module]
    for part in parts[n_modules:]:
        # torch.backends.cudnn is an object that stands for its module.
        is_plain = not isinstance(found, ModuleType) or type(found) is ModuleType
        owner, found = found, (inspect.getattr_static if is_plain else getattr)(found, part, _ABSENT)
        if found is _ABSENT:
            is_module = owner is sys.modules[module] and hasattr(owner, "__path__")
            return _NOT_IMPORTED if is_module and find_spec(f"{module}.{part}") else _ABSENT
    return found


def _other_signature(
    first: tuple[str, ...], keywords: tuple[str, ...], function: Callable[..., Any]
) -> str | None:
    kinds, parameters = inspect.Parameter, inspect.signature(function).parameters
    given = [name for name, one in parameters.items() if one.kind <= kinds.POSITIONAL_OR_KEYWORD]
    if tuple(given[: len(first)]) != first:
        return f"has the parameters ({', '.join(parameters)}), and had ({', '.join(first)}) first"
    missing = [name for name in keywords if name not in parameters]
    if missing and all(one.kind is not kinds.VAR_KEYWORD for one in parameters.values()):
        return f"has no parameter {missing[0]}"
    for name, one in parameters.items():
        is_required = one.default is kinds.empty and one.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        if is_required and name not in first + keywords:
            return f"has a new parameter {name}, which must be given"
    return None
