"""Everything of torch's insides that the recorder touches: its name, what it must be, and what it is for.

What is replaced, what is private, and what has a signature that we rely on stands here and nowhere else;
``torch_features`` compares this table with the torch that is there. Imports no torch.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

Version = tuple[int, int]

# Older ones cannot be simulated, or crash: docs/reference/torch-versions.md.
OLDEST: Version = (2, 5)


class Kind(Enum):
    """The kind of attribute that our use of torch requires."""

    FUNCTION = "a function in Python"
    CLASS_METHOD = "a class method"
    CALLABLE = "something to call"
    CLASS = "a class"
    VALUE = "a value"


class Feature(Enum):
    """A feature of a recording: a phrase in the plural, for the note that it is left out."""

    MEMORY = "allocations"
    OUT_OF_MEMORY = "states at out-of-memory errors"
    OPTIMIZER_STEPS = "steps of optimizers"
    BUILT_OPTIMIZERS = "optimizers that never step"
    SCALER_STEPS = "steps that a GradScaler leaves out"
    PROFILER_STEPS = "steps of torch.profiler"
    MARKED_STEPS = "iterations that snapconv.step() ends"
    BACKWARD_PASSES = "iterations without an optimizer"
    NOTES = "notes on what memory is for"
    PHASES = "phases of an iteration"
    MODULES = "names of weights"
    MODEL_CALLS = "calls of models"
    SAVED_TENSORS = "tensors saved for backward"
    COPIES = "copies of tensors and models"
    LOOSE_TENSORS = "weights outside of modules"
    TIMES = "times of operations"
    CUSTOM_FUNCTION_TIMES = "times of custom functions"
    COMPILED_FUNCTION_TIMES = "times of compiled functions"
    OPAQUE_MODULE_TIMES = "times of compiled and scripted modules"
    BACKWARD_TIMES = "times of backward passes"
    OPTIMIZER_TIMES = "times of optimizer steps"
    CPP_NAMES = "names of C++ functions"
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


@dataclass(frozen=True, slots=True)
class Row:
    """One attribute of torch.

    ``parameters`` are those that must come first, in this order; ``keywords`` must be there by name. A
    parameter that is in neither must have a default. ``since`` and ``before`` bound the versions of torch
    that are meant to have it. ``is_optional``: it may be missing, and then its use is left out.
    """

    name: str
    kind: Kind
    parameters: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    since: Version = (0, 0)
    before: Version = (999, 0)
    is_optional: bool = False


def _function(
    name: str,
    parameters: str = "",
    keywords: str = "",
    *,
    since: Version = (0, 0),
    before: Version = (999, 0),
) -> Row:
    return Row(name, Kind.FUNCTION, tuple(parameters.split()), tuple(keywords.split()), since, before)


def _callables(place: str, names: str, *, since: Version = (0, 0), is_optional: bool = False) -> list[Row]:
    return [
        Row(f"{place}.{name}", Kind.CALLABLE, since=since, is_optional=is_optional) for name in names.split()
    ]


def _classes(place: str, names: str, *, is_optional: bool = False) -> list[Row]:
    return [Row(f"{place}.{name}", Kind.CLASS, is_optional=is_optional) for name in names.split()]


def _values(place: str, names: str, *, is_optional: bool = False) -> list[Row]:
    return [Row(f"{place}.{name}", Kind.VALUE, is_optional=is_optional) for name in names.split()]


_STEP_HOOKS = [
    _function("torch.optim.optimizer.register_optimizer_step_pre_hook", "hook"),
    _function("torch.optim.optimizer.register_optimizer_step_post_hook", "hook"),
    _function("torch.utils.hooks.RemovableHandle.remove", "self"),
]
_ANNOTATIONS = [
    _function("torch.autograd.profiler.record_function.__init__", "self name"),
    _function("torch.autograd.profiler.record_function.__enter__", "self"),
    _function("torch.autograd.profiler.record_function.__exit__", "self exc_type exc_value traceback"),
]
_TRACEBACKS = _callables("torch._C._profiler", "gather_traceback symbolize_tracebacks")
_FUNCTION_MODES = [
    *_classes("torch.overrides", "TorchFunctionMode"),
    *_callables("torch._C", "_len_torch_function_stack _get_function_stack_at"),
    *_callables("torch._C", "_pop_torch_function_stack _push_on_torch_function_stack"),
]
_MODULE_CALL = _function("torch.nn.Module._call_impl", "self")
_IS_READ = [Row("torch.compiler.is_compiling", Kind.CALLABLE), *_callables("torch._C", "_is_tracing")]

SURFACE: dict[Feature, list[Row]] = {
    Feature.MEMORY: [
        _function("torch.cuda.memory._record_memory_history", "enabled", "context stacks max_entries"),
        _function("torch.cuda.memory._snapshot"),
        _function("torch.cuda._lazy_call", "callable"),
        _function("torch.cuda.is_initialized"),
        *_callables("torch._C", "_cuda_isHistoryEnabled", is_optional=True),
        *_ANNOTATIONS,
    ],
    Feature.OUT_OF_MEMORY: _callables("torch._C", "_cuda_attach_out_of_memory_observer"),
    Feature.OPTIMIZER_STEPS: [*_STEP_HOOKS, *_IS_READ],
    Feature.BUILT_OPTIMIZERS: [_function("torch.optim.Optimizer.__init__", "self params defaults")],
    Feature.SCALER_STEPS: [_function("torch.amp.GradScaler.step", "self optimizer")],
    Feature.PROFILER_STEPS: [
        _function("torch.profiler.profile.start", "self"),
        _function("torch.profiler.profile.step", "self"),
    ],
    Feature.BACKWARD_PASSES: [
        _function("torch.autograd.backward", "tensors"),
        _function("torch.Tensor.backward", "self"),
    ],
    Feature.PHASES: [
        _function("torch.autograd.backward", "tensors"),
        _function("torch.autograd.grad", "outputs inputs"),
        *_STEP_HOOKS,
    ],
    Feature.MODULES: [
        _function("torch.nn.modules.module.register_module_parameter_registration_hook", "hook"),
        _function("torch.nn.modules.module.register_module_buffer_registration_hook", "hook"),
        _function("torch.nn.modules.module.register_module_module_registration_hook", "hook"),
        *_classes("torch.utils.weak", "WeakIdKeyDictionary"),
        _function("torch.nn.parameter.is_lazy", "param"),
        *_callables("torch.Tensor", "_indices _values"),
    ],
    Feature.MODEL_CALLS: [
        _function("torch.nn.modules.module.register_module_forward_pre_hook", "hook"),
        _function("torch.nn.modules.module.register_module_forward_hook", "hook", "always_call"),
        _MODULE_CALL,
    ],
    Feature.SAVED_TENSORS: [
        *_callables("torch._C._autograd", "_saved_tensors_hooks_disable _saved_tensors_hooks_is_enabled"),
        *_callables("torch._C._autograd", "_push_saved_tensors_default_hooks"),
        *_callables("torch._C._autograd", "_pop_saved_tensors_default_hooks"),
        *_callables("torch._C._autograd", "_top_saved_tensors_default_hooks"),
        _function("torch.autograd.function.FunctionCtx.save_for_backward", "self"),
        _function("torch.autograd.function.FunctionCtx.save_for_forward", "self"),
        *_classes("torch._C", "_FunctionBase"),
        *_values("torch._C._FunctionBase", "saved_for_forward _raw_saved_tensors"),
        *_values("torch.Tensor", "_version"),
        *_callables("torch.compiler", "disable"),
    ],
    Feature.COPIES: [
        _function("torch.Tensor.__deepcopy__", "self memo"),
        _function("torch.nn.Parameter.__deepcopy__", "self memo"),
        _function("torch.nn.Module.__setstate__", "self state"),
    ],
    Feature.LOOSE_TENSORS: [*_values("torch.Tensor", "_version grad_fn")],
    Feature.TIMES: [
        *_FUNCTION_MODES,
        *_TRACEBACKS,
        *_callables("torch._C._autograd", "_get_sequence_nr"),
        *_values("torch", "_GLOBAL_DEVICE_CONTEXT", is_optional=True),
        _MODULE_CALL,
    ],
    Feature.CUSTOM_FUNCTION_TIMES: [Row("torch.autograd.Function.apply", Kind.CLASS_METHOD)],
    Feature.COMPILED_FUNCTION_TIMES: [_function("torch.compile", "model")],
    Feature.OPAQUE_MODULE_TIMES: _callables("torch.jit.ScriptModule", "__call__"),
    Feature.BACKWARD_TIMES: [
        _function("torch.autograd._engine_run_backward", "t_outputs"),
        _function("torch.autograd.graph.Node.register_prehook", "self fn"),
        _function("torch.autograd.graph.Node.register_hook", "self fn"),
        *_values("torch.autograd.graph.Node", "next_functions"),
        *_callables("torch.autograd.graph.Node", "name"),
        # Every node has it, but the class that describes them did not name it up to torch 2.10.
        *_callables("torch.autograd.graph.Node", "_sequence_nr", is_optional=True),
    ],
    Feature.OPTIMIZER_TIMES: _STEP_HOOKS,
    Feature.CPP_NAMES: _TRACEBACKS,
    Feature.SIMULATION: [
        *_classes("torch.utils._python_dispatch", "TorchDispatchMode"),
        *_callables("torch.utils._python_dispatch", "_disable_current_modes"),
        *_classes("torch.overrides", "TorchFunctionMode"),
        *_callables("torch.overrides", "handle_torch_function has_torch_function_unary"),
        *_callables("torch.overrides", "_get_current_function_mode_stack"),
        *_classes("torch.utils._device", "DeviceContext"),
        *_callables("torch.utils._device", "_device_constructors", is_optional=True),
        *_callables("torch.Tensor", "to cuda cpu type type_as tolist numpy get_device data_ptr"),
        *_callables("torch.Tensor", "record_stream is_pinned pin_memory new_tensor __torch_dispatch__"),
        *_values("torch.Tensor", "device is_cuda is_cpu"),
        *_callables("torch.UntypedStorage", "data_ptr clone resize_"),
        *_values("torch.UntypedStorage", "device is_cuda _cdata"),
        *_values("torch.nn.parameter.UninitializedTensorMixin", "_allowed_methods"),
        _function("torch._tensor_str._str", "self"),
        *_callables("torch", "tensor as_tensor asarray"),
        *_classes("torch", "Generator"),
        _function("torch.serialization.default_restore_location", "storage location"),
        *_values("torch.cuda", "_initialized _queued_calls default_generators _cudart"),
        *_callables("torch.cuda", "_is_in_bad_fork device_count"),
        *_callables("torch.cuda", "_exchange_device _maybe_exchange_device", is_optional=True),
        *_callables("torch.cuda", "_get_device_properties", is_optional=True),
        *_values("torch.cuda", "nvtx", is_optional=True),
        *_callables("torch.cuda.graphs", "_cuda_isCurrentStreamCapturing", is_optional=True),
        *_callables("torch.accelerator", "is_available device_count", is_optional=True),
        *_callables("torch.backends.cuda", "is_built"),
        *_callables("torch.backends.cudnn", "is_acceptable"),
        *_classes("torch", "Stream Event", is_optional=True),
        *_classes("torch.cuda.streams", "Stream Event ExternalStream"),
        *_values("torch._C", "_has_cuda", is_optional=True),
        *_callables("torch._C", "_scatter", is_optional=True),
        *_callables("torch._C._nn", "_parse_to"),
        *_callables("torch._C", "_current_graph_task_id _dispatch_has_kernel_for_dispatch_key"),
        *_callables("torch._C", "_current_autograd_node _storage_id _get_dispatch_mode"),
        *_values("torch._C._TorchDispatchModeKey", "FAKE"),
        *_callables("torch._C", "_get_accelerator", is_optional=True),
        *_values("torch._C", "_functorch"),
        *_classes("torch._C", "DispatchKey DispatchKeySet DisableTorchFunction"),
        *_callables("torch._ops.OpOverload", "_can_decompose", is_optional=True),
        *_classes("torch.library", "Library"),
        *_callables("torch.library.Library", "impl _destroy"),
        *_TRACEBACKS,
    ],
    Feature.SIMULATED_ANNOTATIONS: _ANNOTATIONS,
    Feature.SIMULATED_AUTOCAST: [
        *_callables("torch", "set_autocast_enabled"),
        *_callables("torch", "set_autocast_dtype", is_optional=True),
        *_callables("torch._C", "_ExcludeDispatchKeyGuard"),
    ],
    Feature.SIMULATED_ATTENTION: [*_callables("torch._ops.OpOverload", "_op_dk", is_optional=True)],
    Feature.SIMULATED_GRAPHS: [
        *_classes("torch.cuda.graphs", "CUDAGraph graph"),
        *_callables("torch.cuda.graphs", "make_graphed_callables"),
        *_callables("torch.cuda.graphs", "_graph_pool_handle", is_optional=True),
        *_callables("torch._C", "_host_emptyCache", is_optional=True),
    ],
    Feature.SIMULATED_GROUPING: [
        *_callables("torch._C", "_group_tensors_by_device_and_dtype", is_optional=True)
    ],
    Feature.SIMULATED_GROUPS: [
        _function("torch.distributed.distributed_c10d.init_process_group", "", "world_size init_method"),
        *_classes("torch.distributed", "Reducer"),
        *_values("torch.distributed.distributed_c10d", "_NCCL_AVAILABLE default_pg_nccl_timeout"),
        *_classes("torch._C._distributed_c10d", "FakeProcessGroup", is_optional=True),
        *_callables("torch._C._distributed_c10d.FakeProcessGroup", "_create_internal", is_optional=True),
        *_callables("torch._C._distributed_c10d", "_create_work_from_future"),
        *_callables("torch.cuda.nccl", "version"),
    ],
    Feature.SIMULATED_FILES: [
        *_callables("torch._C.PyTorchFileReader", "get_storage_from_record"),
        *_callables("torch.serialization", "save load _get_restore_location"),
        *_callables("torch", "save load"),
    ],
    Feature.SIMULATED_WRAPPERS: _callables("torch.Tensor", "_make_wrapper_subclass"),
    Feature.SIMULATED_TYPES: _callables("torch", "set_default_tensor_type"),
    Feature.SIMULATED_COMPILATION: [
        *_classes("torch._dynamo.eval_frame", "_TorchDynamoContext"),
        *_callables("torch._dynamo.eval_frame._TorchDynamoContext", "__call__"),
        *_callables("torch.compiler", "set_stance", since=(2, 6)),
        *_callables("torch.jit", "trace trace_module"),
    ],
}


Tensor: TypeAlias = Any
Module: TypeAlias = Any
