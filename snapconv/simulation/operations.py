"""Facts of an operation: its effect on memory, by its schema, and the shapes of its results.

Shapes are evaluated on torch's meta device. Data-dependent shapes are exact when the values are
known, otherwise upper bounds. ``FakeStorages`` makes tensors of any shape without memory.
"""

import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from typing import Any

import torch

# Before a program replaces it, as DeepSpeed's zero.Init does with what makes tensors.
from torch import empty

from snapconv.errors import RecorderError
from snapconv.simulation.machine import BLAS
from snapconv.simulation.synchronized_norms import shapes_of_norms

# What a GPU needs for an operation beyond the simulation, by the name that a capture has for it.
_NOT_MODELLED = {
    "workspaces of cuDNN": "convolution convolution_backward",
    "cuDNN's reserves for recurrent layers and batch norm": (
        "native_batch_norm _native_batch_norm_legit "
        "_native_batch_norm_legit_functional native_batch_norm_backward lstm gru "
        "rnn_tanh rnn_relu mkldnn_rnn_layer _thnn_fused_lstm_cell"
    ),
    "scratch memory inside kernels": (
        "sort topk cumsum cumprod nonzero _unique2 index_put index_put_ _index_put_impl_ "
        "embedding_dense_backward sum mean max min argmax argmin logsumexp norm linalg_vector_norm"
    ),
    BLAS: "mm addmm bmm baddbmm addmv mv dot _grouped_mm",
    "scratch memory of fused attention": (
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward"
    ),
}
_NOT_MODELLED_BY_OPERATION = {
    name: feature for feature, names in _NOT_MODELLED.items() for name in names.split()
}


class Kind(Enum):
    """Where an operation's results lie."""

    VIEW = auto()  # in the memory of an argument
    IN_PLACE = auto()  # the results are arguments that it writes, or it has no results
    VALUE = auto()  # nowhere: the results are numbers or truth values
    FRESH = auto()  # in new memory


@dataclass(frozen=True, slots=True)
class Operation:
    """One overload, as far as memory is concerned.

    ``written`` names the arguments that an in-place operation changes, in order. ``may_resize`` is
    whether a written argument may come out with more memory; ``is_out``, whether that is ``out=``.
    ``cpu_results`` are the positions of results that are on the CPU whatever the arguments are.
    ``not_modelled`` names the memory that a GPU takes besides and the simulation leaves out.
    ``is_for_gpus_alone`` is whether torch has no kernel of the CPU for it, of any kind of tensor.
    ``is_random``: it draws from the default generator where no other is given.
    """

    name: str
    kind: Kind
    written: tuple[str, ...] = ()
    n_returns: int = 0
    argument_names: tuple[str, ...] = ()
    may_resize: bool = False
    is_out: bool = False
    cpu_results: tuple[int, ...] = ()
    not_modelled: str | None = None
    is_for_gpus_alone: bool = False
    is_random: bool = False


# Views by behaviour whose schema does not show it (aten/src/ATen/native/native_functions.yaml).
_SILENT_VIEWS = {
    "_unsafe_view",
    "lift",
    "lift_fresh",
    "_reshape_alias",
    # The gates of recurrent layers, which come of one product.
    "unsafe_split",
    "unsafe_split_with_sizes",
}
# They take the shape alone of their first argument.
FILLING = {"new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"}
# They give their first argument values whatever it had.
OVERWRITING = {"copy_", "fill_", "zero_"}
# They change the memory of their argument, and none of its values.
RESIZING = {"resize_", "resize_as_", "set_", "resize_output_"}
_CPU_RESULTS = {
    # Lengths stay on the CPU, where cuDNN wants them (aten/src/ATen/native/PackedSequence.cpp).
    "_pack_padded_sequence": (1,),
    # The generator's seed and offset (Note [Seed and Offset] in
    # native/transformers/cuda/attention.cu).
    "_scaled_dot_product_efficient_attention": (2, 3),
    # The workspace of the CPU's own kernel for an LSTM; what cuDNN has in its place is not
    # modelled.
    "mkldnn_rnn_layer": (3,),
}


def describe(func: Any) -> Operation:
    """Read an OpOverload's schema; an operation without one counts as making new memory."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Operation(str(func), Kind.FRESH)
    name = schema.name.partition("::")[2]
    is_out = "out" in schema.overload_name
    return Operation(
        name=name,
        kind=_kind(name, schema.returns),
        written=tuple(
            argument.name for argument in schema.arguments if _is_written(argument)
        ),
        n_returns=len(schema.returns),
        argument_names=tuple(argument.name for argument in schema.arguments),
        may_resize=name in RESIZING or is_out,
        is_out=is_out,
        cpu_results=_CPU_RESULTS.get(name, ()),
        not_modelled=_NOT_MODELLED_BY_OPERATION.get(name),
        is_for_gpus_alone=schema.name.startswith("aten::") and not _has_cpu_kernel(func),
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
    )


# Keys of the dispatcher for tensors on the CPU. A kernel made of other operations counts for each.
_CPU_KEYS = (
    "CPU",
    "SparseCPU",
    "SparseCsrCPU",
    "QuantizedCPU",
    "MkldnnCPU",
    "NestedTensorCPU",
)


def _has_cpu_kernel(func: Any) -> bool:
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return any(has_kernel(func.name(), key) for key in _CPU_KEYS)


def _is_written(argument: Any) -> bool:
    alias = argument.alias_info
    return alias is not None and bool(alias.is_write)


def _kind(name: str, returns: Any) -> Kind:
    if name in _SILENT_VIEWS:
        return Kind.VIEW
    if all(map(_is_written, returns)):
        return Kind.IN_PLACE
    if any(item.alias_info is not None for item in returns):
        return Kind.VIEW
    return Kind.FRESH if any("Tensor" in str(item.type) for item in returns) else Kind.VALUE


def written_arguments(operation: Operation, arguments: dict[str, Any]) -> Any:
    """Return the results of an in-place operation: the arguments that it writes."""
    values = [arguments.get(name) for name in operation.written[: operation.n_returns]]
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


# Meta functions, most of them in Python, would take most of the time where nothing is computed:
# what they gave for equal arguments is kept, up to so many times.
_MAX_KNOWN = 1 << 13
_known_shapes: dict[Any, Any] = {}
_NUMBERS = (bool, int, float, complex)
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format, torch.device)
_CUDA = torch.device("cuda")
_CONSTANTS = frozenset((*_NUMBERS, *_OF_TORCH, str, type(None)))


def result_shapes(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return an operation's results as meta tensors, which nobody changes.

    Raises NotImplementedError if values decide the shapes.
    """
    try:
        key = func, _described(args), _described(kwargs), torch.get_default_dtype()
    except TypeError:
        return _evaluated_shapes(func, args, kwargs)
    shapes = _known_shapes.get(key)
    if shapes is not None:
        return shapes
    result = _evaluated_shapes(func, args, kwargs)
    # A library may still register another function for an operation of its own.
    if func.namespace == "aten" and _are_meta(result):
        if len(_known_shapes) >= _MAX_KNOWN:
            _known_shapes.clear()
        _known_shapes[key] = result
    return result


def _described(value: Any) -> Any:
    """Return all of an argument that a meta function can see; TypeError for other types."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.size(), value.stride()
    kind = type(value)
    if kind in _CONSTANTS:  # 1, 1.0 and True are equal
        return kind, value
    if kind is list or kind is tuple:
        return kind, *map(_described, value)
    if kind is dict:
        return kind, *value, *map(_described, value.values())
    raise TypeError(kind)


def _are_meta(value: Any) -> bool:
    """Say whether there are results, all of them on the meta device, or None."""
    if isinstance(value, list | tuple):
        return all(item is None or _are_meta(item) for item in value)
    return isinstance(value, torch.Tensor) and value.is_meta


def _evaluated_shapes(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a meta function, corrected."""

    def as_meta(tensor: Any) -> Any:
        shape, stride = tensor.size(), tensor.stride()
        meta = torch.empty_strided(shape, stride, dtype=tensor.dtype, device="meta")
        # Meta functions that differ by device ask what a FakeTensor has (meta__weight_int4pack_mm
        # in torch/_meta_registrations.py, torch 2.13 and 2.15).
        meta.fake_device = _CUDA
        return meta

    kwargs = {key: map_tensors(value, as_meta) for key, value in kwargs.items()}
    if kwargs.get("device") is not None:
        kwargs["device"] = "meta"
    if "generator" in kwargs:
        kwargs["generator"] = None
    metas = map_tensors(args, as_meta)
    return _corrected(func, args, _call_meta_function(func, metas, kwargs))


# Kernels know more types than the meta function (torch 2.13: torch/_meta_registrations.py).
_KNOW_BFLOAT16_ONLY = {"aten::_grouped_mm"}


def _call_meta_function(func: Any, metas: Any, kwargs: dict[str, Any]) -> Any:
    """Call a meta function; with the one type that it supports, if it supports only one."""
    if func._schema.name not in _KNOW_BFLOAT16_ONLY:
        return func(*metas, **kwargs)
    dtype = metas[0].dtype

    def as_known(tensor: Any) -> Any:
        return tensor.to(torch.bfloat16) if tensor.dtype == dtype else tensor

    kwargs = {key: map_tensors(value, as_known) for key, value in kwargs.items()}
    return func(*map_tensors(metas, as_known), **kwargs).to(dtype)


# cuDNN's results have the layout of what goes in (aten/src/ATen/native/ConvUtils.h,
# cudnn_conv_suggest_memory_format); torch's meta functions leave that out.
_CONVOLUTIONS = {"aten::convolution", "aten::convolution_backward"}
# Their single number keeps the memory of all the losses (TORCH_META_FUNC in
# aten/src/ATen/native/Loss.cpp allocates the result unreduced, then resizes it).
_KEEP_UNREDUCED = {"aten::mse_loss", "aten::smooth_l1_loss"}
_MASKS = ("output_mask", "grad_input_mask")


def _corrected(func: Any, args: Any, result: Any) -> Any:
    """Undo where torch's meta functions differ from its kernels in what they allocate."""
    schema = func._schema
    # The third argument is the reduction: by default the mean; 0 is none.
    if schema.name in _KEEP_UNREDUCED and (len(args) < 3 or args[2] != 0):
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return empty(shape, dtype=result.dtype, device="meta").resize_(())
    result = laid_out(func, args, result)
    for argument, value in zip(schema.arguments, args, strict=False):
        if argument.name in _MASKS and len(value) == len(result):
            # The mask says which gradients are requested; the others are None on a GPU.
            rows = zip(result, value, strict=True)
            return tuple(tensor if is_requested else None for tensor, is_requested in rows)
    return result


def laid_out(func: Any, args: Any, result: Any) -> Any:
    """Give results that the CPU computed the layout that they have on a GPU."""
    schema = getattr(func, "_schema", None)  # None: operations on functions
    if schema is None or schema.name not in _CONVOLUTIONS:
        return result
    layout = torch.channels_last

    def has_layout(value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.dim() != 4 or value.is_contiguous():
            return False
        return bool(value.is_contiguous(memory_format=layout))

    def lay_out(tensor: Any) -> Any:
        return tensor.contiguous(memory_format=layout) if tensor.dim() == 4 else tensor

    return map_tensors(result, lay_out) if any(map(has_layout, args[:3])) else result


def map_tensors(value: Any, function: Callable[[Any], Any]) -> Any:
    """Replace every tensor in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, function) for item in value)
    return value


# (operation, mask or None, upper bound) -> how many elements the operation selects
CountSelected = Callable[[str, Any, int], int]


def dynamic_shapes(
    name: str, func: Any, args: Any, kwargs: dict[str, Any], count: CountSelected
) -> Any:
    """Return an operation's results as meta tensors, also if shapes depend on values.

    ``count`` counts, or assumes, how many elements such an operation selects.
    """
    if name in ("index", "_unsafe_index"):
        indices: list[Any] = []
        for index in args[1]:
            indices += _mask_indices(index, count) if is_mask(index) else [index]
        return result_shapes(func, (args[0], indices, *args[2:]), kwargs)
    largest = _LARGEST.get(name)
    return (
        result_shapes(func, args, kwargs)
        if largest is None
        else largest(args, kwargs, count)
    )


def is_mask(index: Any) -> bool:
    """Say whether an index selects by truth values."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _mask_indices(mask: Any, count: CountSelected) -> list[Any]:
    """Return the indices that a mask selects: a tensor for each of its dimensions."""
    n_selected = count("index", mask, mask.numel())
    return [_meta((n_selected,)) for _ in range(mask.dim())]


def _masked_select(args: Any, _kwargs: Any, count: CountSelected) -> Any:
    tensor, mask = args
    n_selected = count("masked_select", mask, mask.numel())
    # The mask is repeated where it is smaller than the tensor, and so is what it selects.
    n_times = prod(torch.broadcast_shapes(tensor.shape, mask.shape)) // max(mask.numel(), 1)
    return _meta((n_selected * n_times,), tensor.dtype)


def _unique(args: Any, kwargs: Any, count: CountSelected) -> Any:
    """Shape _unique2 and unique_consecutive, without ``dim``: all values may differ."""
    tensor = args[0]
    n_values = count("unique", None, tensor.numel())
    has_counts = kwargs.get("return_counts", any(args[2:4]))
    return (
        _meta((n_values,), tensor.dtype),
        _meta(tensor.shape),
        _meta((n_values if has_counts else 0,)),
    )


def _unique_dim(args: Any, _kwargs: Any, count: CountSelected) -> Any:
    tensor, dim = args[:2]
    n_values = (count("unique", None, tensor.size(dim)),)
    return _meta(tensor.shape, tensor.dtype), _meta(n_values), _meta(n_values)


def _ctc_loss_backward(args: Any, _kwargs: Any, _count: CountSelected) -> Any:
    return _meta(args[1].shape, args[1].dtype)


def _nms(args: Any, _kwargs: Any, count: CountSelected) -> Any:
    n_boxes = count("nms", None, args[0].size(0))
    return _meta((n_boxes,))


def _nonzero(args: Any, _kwargs: Any, count: CountSelected) -> Any:
    tensor = args[0]
    n_selected = count("nonzero", tensor, tensor.numel())
    return _meta((n_selected, tensor.dim()))


_LARGEST: dict[str, Callable[[Any, Any, CountSelected], Any]] = {
    **shapes_of_norms(),
    # torch has no meta function for it (2.15)
    "_ctc_loss_backward": _ctc_loss_backward,
    # torchvision's: every box may stay
    "nms": _nms,
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "_unique2": _unique,
    "unique_consecutive": _unique,
    "unique_dim": _unique_dim,
}


def _meta(shape: Any, dtype: Any = None) -> Any:
    """Make a meta tensor; of indices where no type is given."""
    return empty(shape, dtype=dtype or torch.int64, device="meta")


_LEAST_MAPPED_BYTES = 1 << 26
# Linux's value; Python's mmap module has had the name since 3.13 only.
_NO_RESERVE = 0x4000


class FakeStorages:
    """Makes tensors without memory, which all share one mapping of zeros.

    A larger tensor gets a larger mapping; the former lives on in its tensors, and in ``_ranges``.
    """

    def __init__(self) -> None:
        # Kept as it is here: a simulation replaces it.
        self._addr_of = torch.UntypedStorage.data_ptr
        self._zeros: mmap.mmap | None = None
        self._ranges: list[range] = []

    def storage(self, n_bytes: int) -> Any:
        """Make a storage of that many zeros that takes no memory."""
        if n_bytes == 0:
            return torch.UntypedStorage(0)
        if self._zeros is None or len(self._zeros) < n_bytes:
            self._zeros = _map(n_bytes)
            first = self._addr_of(
                torch.frombuffer(self._zeros, dtype=torch.uint8).untyped_storage()
            )
            self._ranges.append(range(first, first + len(self._zeros)))
        return torch.frombuffer(
            self._zeros, dtype=torch.uint8, count=n_bytes
        ).untyped_storage()

    def has(self, storage: Any) -> bool:
        """Say whether a storage is one of these, by its address."""
        addr = self._addr_of(storage)
        return any(addr in addrs for addrs in self._ranges)

    def like(self, meta: Any) -> Any:
        """Make the tensor without memory that a meta tensor describes."""
        storage = self.storage(meta.untyped_storage().nbytes())
        tensor = empty(0, dtype=meta.dtype, device="cpu")
        return tensor.set_(storage, meta.storage_offset(), meta.size(), meta.stride())

    def resize(self, tensor: Any, size: Any) -> Any:
        """Do ``resize_``: new storage where the present one is too small."""
        meta = empty(size, dtype=tensor.dtype, device="meta")
        n_bytes = meta.untyped_storage().nbytes()
        storage = tensor.untyped_storage()
        if storage.nbytes() < n_bytes:
            storage = self.storage(n_bytes)
        return tensor.set_(storage, 0, meta.size(), meta.stride())


def _map(n_bytes: int) -> mmap.mmap:
    """Map zeros of at least that many bytes, which take no memory before they are written."""
    n_mapped = max(_LEAST_MAPPED_BYTES, 1 << (n_bytes - 1).bit_length())
    # Windows counts a mapping as memory in use; no system gives it pages before it is touched.
    flags: dict[str, Any] = {}
    if sys.platform == "linux":
        flags["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        return mmap.mmap(-1, n_mapped, **flags)
    except (OSError, OverflowError) as error:
        raise RecorderError(
            f"cannot reserve {n_mapped} bytes of addresses for tensors without values: {error}; "
            "is the process's address space limited (ulimit -v), or the page file small?"
        ) from error
