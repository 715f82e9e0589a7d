"""Everything of torch's insides that the recorder touches, compared with the installed torch.

What is replaced and what is private stands in SURFACE and nowhere else, but for what the simulation
adds where a build without CUDA lacks it (``torch._C._cuda_*``), and for members of torch.cuda that
it refuses (simulation/not_modelled.py). A feature of which something is
missing is left out, with a note that names it; one that is ESSENTIAL ends the recording. Imports no
torch.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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
    FULLY_SHARDED = "gathered weights and unreduced gradients of fully_shard"
    FLAT_SHARDED = "gathered weights and unreduced gradients of FullyShardedDataParallel"
    ZERO_SHARDED = "gathered weights and unreduced gradients of DeepSpeed's ZeRO"
    FLAT_PLACES = "places in the mesh of weights of FullyShardedDataParallel"
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
    SIMULATED_JOBS = "jobs of several ranks"
    SIMULATED_FILES = "checkpoints without values"
    SIMULATED_WRAPPERS = "tensors that wrap others"
    SIMULATED_TYPES = "types such as torch.cuda.FloatTensor"
    SIMULATED_COMPILATION = "compiled functions"
    SIMULATED_FLEX_ATTENTION = "backward passes of FlexAttention"

    @property
    def is_of_simulation(self) -> bool:
        """Whether only a simulation has it."""
        return self.name.startswith("SIMULAT")


# Nothing can be recorded without them.
ESSENTIAL = (Feature.MEMORY, Feature.SIMULATION)


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of one module or class of torch that a feature uses.

    Without one that is ``required`` the feature is left out. A supported torch may lack those that
    are ``optional``.
    """

    owner: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


SURFACE: dict[Feature, tuple[Attributes, ...]] = {
    Feature.MEMORY: (
        Attributes("torch.cuda.memory", ("_record_memory_history", "_snapshot")),
        Attributes("torch.cuda", ("_lazy_call", "is_initialized")),
        Attributes(
            "torch._C",
            optional=(
                "_cuda_isHistoryEnabled",
                "_cuda_resetPeakMemoryStats",
                "_accelerator_resetPeakStats",
            ),
        ),
        Attributes(
            "torch.autograd.profiler.record_function", ("__init__", "__enter__", "__exit__")
        ),
        Attributes("torch._C._profiler", ("gather_traceback", "symbolize_tracebacks")),
    ),
    Feature.OUT_OF_MEMORY: (
        Attributes("torch._C", ("_cuda_attach_out_of_memory_observer",)),
    ),
    Feature.OPTIMIZER_STEPS: (
        Attributes("torch.compiler", ("is_compiling",)),
        Attributes("torch._C", ("_is_tracing",)),
        Attributes(
            "torch.optim.optimizer",
            ("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"),
        ),
        Attributes("torch.utils.hooks.RemovableHandle", ("remove",)),
    ),
    Feature.BUILT_OPTIMIZERS: (Attributes("torch.optim.Optimizer", ("__init__",)),),
    Feature.SCALER_STEPS: (Attributes("torch.amp.GradScaler", ("step",)),),
    Feature.BACKWARD_PASSES: (
        Attributes("torch.autograd", ("backward", "grad")),
        Attributes("torch.Tensor", ("backward", "grad_fn")),
    ),
    Feature.MODULES: (
        Attributes(
            "torch.nn.modules.module",
            (
                "register_module_parameter_registration_hook",
                "register_module_buffer_registration_hook",
                "register_module_module_registration_hook",
            ),
        ),
        Attributes("torch.utils.weak", ("WeakIdKeyDictionary",)),
        Attributes("torch.nn.parameter", ("is_lazy",)),
        Attributes("torch.Tensor", ("_indices", "_values", "_version")),
    ),
    Feature.MODEL_CALLS: (
        Attributes(
            "torch.nn.modules.module",
            ("register_module_forward_pre_hook", "register_module_forward_hook"),
        ),
        Attributes("torch.nn.Module", ("_call_impl",)),
    ),
    Feature.SAVED_TENSORS: (
        Attributes(
            "torch._C._autograd",
            (
                "_saved_tensors_hooks_disable",
                "_saved_tensors_hooks_is_enabled",
                "_push_saved_tensors_default_hooks",
                "_pop_saved_tensors_default_hooks",
                "_top_saved_tensors_default_hooks",
            ),
        ),
        Attributes(
            "torch.autograd.function.FunctionCtx", ("save_for_backward", "save_for_forward")
        ),
        Attributes("torch.utils.checkpoint", optional=("_make_saved_tensor",)),
        Attributes("torch._C", ("_FunctionBase",)),
        Attributes("torch._C._FunctionBase", ("saved_for_forward", "_raw_saved_tensors")),
        Attributes("torch.Tensor", ("_version",)),
        Attributes("torch.compiler", ("disable",)),
    ),
    Feature.COPIES: (
        Attributes("torch.Tensor", ("__deepcopy__",)),
        Attributes("torch.nn.Parameter", ("__deepcopy__",)),
        Attributes("torch.nn.Module", ("__setstate__",)),
    ),
    # A program may import them later than anything is compared: then they are compared once more.
    Feature.FULLY_SHARDED: (
        Attributes(
            "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam",
            ("to_unsharded",),
            # Instances have it.
            optional=("_unsharded_param",),
        ),
        Attributes(
            "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup",
            ("post_backward",),
        ),
    ),
    Feature.FLAT_SHARDED: (
        Attributes(
            "torch.distributed.fsdp._flat_param.FlatParamHandle",
            ("unshard", "uses_sharded_strategy", "_get_padded_unsharded_flat_param"),
        ),
        Attributes(
            "torch.distributed.fsdp._flat_param.FlatParameter", optional=("_mp_shard",)
        ),
        Attributes(
            "torch.distributed.fsdp._runtime_utils",
            ("_post_backward_hook", "_get_reduce_scatter_tensors"),
        ),
    ),
    # Nothing is compared of a library that the program has not imported.
    Feature.ZERO_SHARDED: (
        Attributes(
            "deepspeed.runtime.zero.partition_parameters.Init", ("_partition_param",)
        ),
        Attributes(
            "deepspeed.runtime.zero.partition_parameters.AllGatherCoalescedHandle",
            ("wait",),
            # Instances have it.
            optional=("partitions",),
        ),
        *(
            Attributes(
                f"deepspeed.runtime.zero.{optimizer}",
                (
                    "reduce_ready_partitions_and_remove_grads",
                    "independent_gradient_partition_epilogue",
                ),
                # Instances have them.
                optional=("ipg_buckets", "averaged_gradients"),
            )
            for optimizer in (
                "stage3.DeepSpeedZeroOptimizer_Stage3",
                "stage_1_and_2.DeepSpeedZeroOptimizer",
            )
        ),
        # What DeepSpeed adds to a parameter.
        Attributes(
            "torch.nn.Parameter",
            optional=("ds_tensor", "ds_shape", "ds_process_group", "grad_accum"),
        ),
    ),
    Feature.FLAT_PLACES: (
        Attributes(
            "torch.distributed.fsdp.FullyShardedDataParallel",
            # Instances have them.
            optional=("_handle", "_device_mesh", "_inter_node_pg", "process_group"),
        ),
        Attributes(
            "torch.distributed.fsdp._flat_param.FlatParamHandle",
            ("uses_sharded_strategy", "is_sharded"),
            optional=("flat_param",),
        ),
        Attributes(
            "torch.distributed.fsdp._flat_param.FlatParameter",
            optional=("_params", "_shapes", "_unpadded_unsharded_size"),
        ),
    ),
    Feature.TIMES: (
        Attributes("torch.overrides", ("TorchFunctionMode",)),
        Attributes(
            "torch._C",
            (
                "_len_torch_function_stack",
                "_get_function_stack_at",
                "_pop_torch_function_stack",
                "_push_on_torch_function_stack",
            ),
        ),
        Attributes("torch._C._autograd", ("_get_sequence_nr",)),
        Attributes("torch", optional=("_GLOBAL_DEVICE_CONTEXT",)),
        Attributes("torch.nn.Module", ("_call_impl",)),
        Attributes("torch._C._profiler", ("gather_traceback", "symbolize_tracebacks")),
    ),
    Feature.CUSTOM_FUNCTION_TIMES: (Attributes("torch.autograd.Function", ("apply",)),),
    Feature.COMPILED_FUNCTION_TIMES: (Attributes("torch", ("compile",)),),
    Feature.OPAQUE_MODULE_TIMES: (Attributes("torch.jit.ScriptModule", ("__call__",)),),
    # Every node has _sequence_nr, but the class that describes them did not name it up to torch
    # 2.10.
    Feature.BACKWARD_TIMES: (
        Attributes(
            "torch.autograd.graph.Node",
            ("register_prehook", "next_functions", "name"),
            optional=("_sequence_nr",),
        ),
    ),
    Feature.SIMULATION: (
        Attributes(
            "torch.utils._python_dispatch",
            ("TorchDispatchMode", "_disable_current_modes", "_get_current_dispatch_mode"),
        ),
        Attributes(
            "torch.overrides",
            (
                "TorchFunctionMode",
                "handle_torch_function",
                "has_torch_function_unary",
                "_get_current_function_mode_stack",
            ),
        ),
        Attributes(
            "torch.utils._device", ("DeviceContext",), optional=("_device_constructors",)
        ),
        Attributes(
            "torch.Tensor",
            (
                "to",
                "cuda",
                "cpu",
                "type",
                "type_as",
                "tolist",
                "numpy",
                "get_device",
                "data_ptr",
                "record_stream",
                "is_pinned",
                "pin_memory",
                "new_tensor",
                "new",
                "__torch_dispatch__",
                "device",
                "is_cuda",
                "is_cpu",
            ),
        ),
        Attributes("torch._C.ScriptFunction", ("__call__",)),
        Attributes("torch._C.ScriptMethod", ("__call__",)),
        Attributes(
            "torch.UntypedStorage",
            ("data_ptr", "clone", "resize_", "device", "is_cuda", "_cdata"),
        ),
        Attributes("torch.nn.parameter.UninitializedTensorMixin", ("_allowed_methods",)),
        Attributes("torch.multiprocessing", ("start_processes",)),
        Attributes("torch.multiprocessing.spawn", ("start_processes",)),
        Attributes("torch._tensor_str", ("_str",)),
        Attributes(
            "torch",
            ("tensor", "as_tensor", "asarray", "Generator"),
            optional=("Stream", "Event"),
        ),
        Attributes("torch.serialization", ("default_restore_location",)),
        Attributes("torch.jit._builtins", ("_find_builtin", "_get_builtin_table")),
        Attributes(
            "torch.cuda",
            (
                "_initialized",
                "_queued_calls",
                "default_generators",
                "_cudart",
                "_is_in_bad_fork",
                "device_count",
            ),
            optional=(
                "_exchange_device",
                "_maybe_exchange_device",
                "_get_device_properties",
                "device_memory_used",
                "list_gpu_processes",
                "_cached_device_count",
            ),
        ),
        Attributes("torch.cuda.nvtx", optional=("_nvtx",)),
        Attributes("torch.cuda.nccl", optional=("is_available",)),
        Attributes("torch.cuda.gds", optional=("is_available",)),
        Attributes("torch.cuda.graphs", optional=("_cuda_isCurrentStreamCapturing",)),
        Attributes("torch.accelerator", optional=("is_available", "device_count")),
        Attributes("torch.backends.cuda", ("is_built",)),
        Attributes("torch.backends.cudnn", ("is_acceptable",)),
        Attributes("torch.cuda.streams", ("Stream", "Event", "ExternalStream")),
        Attributes(
            "torch._C",
            (
                "_functorch",
                "_current_graph_task_id",
                "_dispatch_has_kernel_for_dispatch_key",
                "_current_autograd_node",
                "_storage_id",
                "_get_dispatch_mode",
                "_dispatch_has_computed_kernel_for_dispatch_key",
                "DispatchKey",
                "DispatchKeySet",
                "DisableTorchFunction",
                "_from_dlpack",
            ),
            optional=(
                "_has_cuda",
                "_scatter",
                "_broadcast",
                "_broadcast_coalesced",
                "_gather",
                "_get_accelerator",
                "_group_tensors_by_device_and_dtype",
            ),
        ),
        Attributes("torch._C._nn", ("_parse_to",)),
        Attributes("torch._C._TorchDispatchModeKey", ("FAKE",)),
        Attributes("torch._ops.OpOverload", optional=("_can_decompose", "_op_dk")),
        Attributes("torch._ops.HigherOrderOperator", optional=("py_impl",)),
        Attributes("torch.library", ("Library", "_impls")),
        Attributes("torch.library.Library", ("impl", "_destroy")),
        Attributes("torch._C._profiler", ("gather_traceback", "symbolize_tracebacks")),
    ),
    Feature.SIMULATED_FLEX_ATTENTION: (
        Attributes("torch._higher_order_ops.flex_attention", ("create_fw_bw_graph",)),
    ),
    Feature.SIMULATED_ANNOTATIONS: (
        Attributes(
            "torch.autograd.profiler.record_function", ("__init__", "__enter__", "__exit__")
        ),
    ),
    Feature.SIMULATED_AUTOCAST: (
        Attributes("torch", ("set_autocast_enabled",), optional=("set_autocast_dtype",)),
        Attributes("torch._C", ("_ExcludeDispatchKeyGuard",)),
    ),
    Feature.SIMULATED_GRAPHS: (
        Attributes(
            "torch.cuda.graphs",
            ("CUDAGraph", "graph", "make_graphed_callables"),
            optional=("_graph_pool_handle",),
        ),
        Attributes("torch.accelerator", optional=("Graph",)),
        Attributes("torch._C", optional=("_host_emptyCache",)),
    ),
    Feature.SIMULATED_GROUPS: (
        Attributes(
            "torch.distributed.distributed_c10d",
            ("init_process_group", "_NCCL_AVAILABLE", "default_pg_nccl_timeout"),
        ),
        Attributes("torch.distributed", ("Reducer",), optional=("split_group",)),
        Attributes(
            "torch._C._distributed_c10d", ("FakeProcessGroup", "_create_work_from_future")
        ),
        Attributes(
            "torch._C._distributed_c10d.FakeProcessGroup", optional=("_create_internal",)
        ),
        Attributes("torch.cuda.nccl", ("version",)),
    ),
    Feature.SIMULATED_JOBS: (
        Attributes(
            "torch.distributed", ("Store",), optional=("ProcessGroupGloo", "TCPStore")
        ),
        Attributes("torch.distributed.ProcessGroup", ("unbox",)),
        Attributes(
            "torch.distributed.distributed_c10d",
            ("_resolve_process_group", "_get_default_group"),
        ),
        Attributes(
            "torch.distributed.tensor._random.OffsetBasedRNGTracker",
            optional=("_distribute_region",),
        ),
        Attributes(
            "torch.distributed.tensor.debug", optional=("_clear_sharding_prop_cache",)
        ),
        Attributes("torch.distributed.pipelining.stage", optional=("_PipelineStageBase",)),
        Attributes(
            "torch.distributed.optim.zero_redundancy_optimizer",
            optional=("_broadcast_object",),
        ),
        Attributes(
            "torch.distributed.optim.ZeroRedundancyOptimizer",
            optional=("consolidate_state_dict", "_partition_parameters"),
        ),
        Attributes(
            "torch.distributed.checkpoint.utils._DistWrapper", optional=("__init__",)
        ),
    ),
    Feature.SIMULATED_FILES: (
        Attributes("torch._C.PyTorchFileReader", ("get_storage_from_record", "has_record")),
        Attributes("torch._C.PyTorchFileWriter", ("write_record",)),
        Attributes("torch.serialization", ("save", "load", "_legacy_save")),
        Attributes("torch", ("save", "load", "from_file")),
    ),
    Feature.SIMULATED_WRAPPERS: (Attributes("torch.Tensor", ("_make_wrapper_subclass",)),),
    Feature.SIMULATED_TYPES: (
        Attributes("torch", ("set_default_tensor_type",)),
        Attributes("torch.cuda.FloatStorage", ("_dtype",)),
    ),
    Feature.SIMULATED_COMPILATION: (
        Attributes("torch._dynamo.eval_frame", ("_TorchDynamoContext",)),
        Attributes("torch._dynamo.eval_frame._TorchDynamoContext", ("__call__",)),
        Attributes("torch.compiler", ("set_stance",)),
        Attributes("torch.jit", ("trace", "trace_module")),
    ),
}


# The features that are left out, each with what is missing.
Changed = dict[Feature, str]


def changed_notes(changed: Changed) -> tuple[Note, ...]:
    """Name what is left out."""
    return tuple(
        Note("torch-changed", _sentence(feature, name)) for feature, name in changed.items()
    )


def require(feature: Feature, changed: Changed) -> None:
    """Raise RecorderError where a feature is left out that was requested."""
    if feature in changed:
        raise RecorderError(
            f"{_sentence(feature, changed[feature])}; use an older torch, or a newer snapconv"
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
    for feature, rows in SURFACE.items():
        if feature.is_of_simulation != is_for_simulation:
            continue
        name = next(missing(rows), None)
        if name is None:
            continue
        changed[feature] = name
        if feature in ESSENTIAL:
            require(feature, changed)
    return changed


def missing(rows: Iterable[Attributes]) -> Iterator[str]:
    """Yield the dotted names that are required and that this torch does not have."""
    for row in rows:
        for attribute in row.required:
            name = f"{row.owner}.{attribute}"
            if not _exists(name):
                yield name


def _sentence(feature: Feature, name: str) -> str:
    package = name.partition(".")[0]
    # A program may put a module without a version in the place of a library.
    version = getattr(sys.modules.get(package), "__version__", "of unknown version")
    verb = "simulated" if feature.is_of_simulation else "recorded"
    return f"{package} {version}: {feature.value} are not {verb}: {name} is not there"


def _exists(name: str) -> bool:
    """Return whether a package has a dotted name, or a module of that name, imported or not.

    Every name of a package that is not imported counts as there.
    """
    parts = name.split(".")
    if sys.modules.get(parts[0]) is None:  # None forbids the import
        return True
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
