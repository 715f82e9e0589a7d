"""An operation as facts: what its schema says about memory, and how its results look.

Shapes are evaluated on torch's meta device. Where they depend on values, they are the right ones if those are
known, else the largest: a program goes on with them, and their memory is a valid bound. A tensor of any shape
can be had without memory. Knows no devices and no allocator.
"""

import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from typing import Any

from snapconv.errors import RecorderError

BLAS = "workspaces of cuBLAS"
# What a GPU needs for an operation beyond the simulation, by the name that a capture has for it.
_NOT_MODELLED = {
    "workspaces of cuDNN": "convolution convolution_backward",
    "cuDNN's reserves for recurrent layers and batch norm": (
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
        "native_batch_norm_backward lstm gru rnn_tanh rnn_relu mkldnn_rnn_layer _thnn_fused_lstm_cell"
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
_NOT_MODELLED_BY_OPERATION = {name: what for what, names in _NOT_MODELLED.items() for name in names.split()}


class Kind(Enum):
    """Where an operation's results lie."""

    VIEW = auto()  # in the memory of an argument
    IN_PLACE = auto()  # they are arguments, or there are none
    VALUE = auto()  # they are no tensors
    FRESH = auto()  # in new memory


@dataclass(frozen=True, slots=True)
class Operation:
    """One overload, as far as memory is concerned.

    ``written`` names the arguments that an in-place operation changes, in order. ``may_resize`` is
    whether a written argument may come out with more memory; ``is_out``, whether that is ``out=``.
    ``is_uninitialised``: its results' contents are undefined. ``cpu_results`` are the positions of
    results that are on the CPU whatever the arguments are. ``not_modelled`` is what a GPU takes for it
    besides, and the simulation leaves out. One that ``reads_values`` reads them on the CPU; one that
    ``gives_values`` returns numbers that depend on them. One that is ``is_memory_only`` changes what memory
    its argument has, and no values; one that is ``is_view_in_place`` its argument's shape, and neither.
    """

    name: str
    kind: Kind
    written: tuple[str, ...]
    n_returns: int
    argument_names: tuple[str, ...]
    may_resize: bool
    is_out: bool
    is_uninitialised: bool
    cpu_results: frozenset[int] = frozenset()
    not_modelled: str | None = None
    reads_values: bool = False
    gives_values: bool = False
    is_memory_only: bool = False
    is_view_in_place: bool = False


# Views by behaviour whose schema does not show it (aten/src/ATen/native/native_functions.yaml).
_SILENT_VIEWS = {
    *("_unsafe_view", "lift", "lift_fresh", "_reshape_alias"),
    *("unsafe_split", "unsafe_split_with_sizes"),  # the gates of recurrent layers, of one product
}
_RESIZING = {"resize_", "resize_as_", "set_", "resize_output_"}
# Those with the tag inplace_view that give their argument another shape (native_functions.yaml, torch 2.15).
_VIEWS_IN_PLACE = {"as_strided_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
_CPU_RESULTS = {
    # Lengths stay on the CPU, where cuDNN wants them (aten/src/ATen/native/PackedSequence.cpp).
    "_pack_padded_sequence": {1},
    # The generator's seed and offset (Note [Seed and Offset] in native/transformers/cuda/attention.cu).
    "_scaled_dot_product_efficient_attention": {2, 3},
    # The workspace of the CPU's own kernel for an LSTM; what cuDNN has in its place is not modelled.
    "mkldnn_rnn_layer": {3},
}
_READS_VALUES = {"_pack_padded_sequence"}
_GIVES_VALUES = {"_local_scalar_dense", "equal", "is_nonzero", "allclose"}
_UNINITIALISED = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}


def describe(func: Any) -> Operation:
    """Read an OpOverload's schema; what has none counts as making new memory."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Operation(
            str(func), Kind.FRESH, (), 0, (), may_resize=False, is_out=False, is_uninitialised=False
        )
    name = schema.name.partition("::")[2]
    written = tuple(
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    is_out = "out" in schema.overload_name
    return Operation(
        name=name,
        kind=_kind(name, schema.returns),
        written=written,
        n_returns=len(schema.returns),
        argument_names=tuple(argument.name for argument in schema.arguments),
        may_resize=name in _RESIZING or is_out,
        is_out=is_out,
        is_uninitialised=name in _UNINITIALISED,
        cpu_results=frozenset(_CPU_RESULTS.get(name, ())),
        not_modelled=_NOT_MODELLED_BY_OPERATION.get(name),
        reads_values=name in _READS_VALUES,
        gives_values=name in _GIVES_VALUES,
        is_memory_only=name in _RESIZING,
        is_view_in_place=name in _VIEWS_IN_PLACE,
    )


def _kind(name: str, returns: Any) -> Kind:
    if name in _SILENT_VIEWS:
        return Kind.VIEW
    if all(item.alias_info is not None and item.alias_info.is_write for item in returns):
        return Kind.IN_PLACE
    if any(item.alias_info is not None for item in returns):
        return Kind.VIEW
    return Kind.FRESH if any("Tensor" in str(item.type) for item in returns) else Kind.VALUE


def written_arguments(operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what an in-place operation returns: the arguments that it writes."""
    given = dict(zip(operation.argument_names, args, strict=False)) | kwargs
    values = [given.get(name) for name in operation.written[: operation.n_returns]]
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def result_shapes(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return an operation's results as meta tensors.

    Raises NotImplementedError where the shapes depend on values.
    """
    import torch

    def as_meta(tensor: Any) -> Any:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")

    kwargs = {key: map_tensors(value, as_meta, torch.Tensor) for key, value in kwargs.items()}
    if kwargs.get("device") is not None:
        kwargs["device"] = "meta"
    if "generator" in kwargs:
        kwargs["generator"] = None
    metas = map_tensors(args, as_meta, torch.Tensor)
    return _corrected(func, args, _with_any_type(func, metas, kwargs))


# Kernels know more types than the meta function (torch 2.13: torch/_meta_registrations.py).
_KNOW_BFLOAT16_ONLY = {"aten::_grouped_mm"}


def _with_any_type(func: Any, metas: Any, kwargs: dict[str, Any]) -> Any:
    """Call a meta function with the one type that it supports, if it supports only one."""
    import torch

    if func._schema.name not in _KNOW_BFLOAT16_ONLY or metas[0].dtype == torch.bfloat16:
        return func(*metas, **kwargs)
    low, dtype = torch.bfloat16, metas[0].dtype

    def as_low(tensor: Any) -> Any:
        return tensor.to(low) if tensor.dtype == dtype else tensor

    kwargs = {key: map_tensors(value, as_low, torch.Tensor) for key, value in kwargs.items()}
    return func(*map_tensors(metas, as_low, torch.Tensor), **kwargs).to(dtype)


# cuDNN's results have the layout of what goes in (aten/src/ATen/native/ConvUtils.h,
# cudnn_conv_suggest_memory_format); torch's meta functions leave that out.
_CONVOLUTIONS = {"aten::convolution", "aten::convolution_backward"}
# Their single number keeps the memory of all the losses (TORCH_META_FUNC in aten/src/ATen/native/Loss.cpp
# allocates the result unreduced, then resizes it).
_KEEP_UNREDUCED = {"aten::mse_loss", "aten::smooth_l1_loss"}
_MASKS = ("output_mask", "grad_input_mask")


def _corrected(func: Any, args: Any, result: Any) -> Any:
    """Undo where torch's meta functions differ from its kernels in what they allocate."""
    import torch

    schema = func._schema
    if schema.name in _KEEP_UNREDUCED and (len(args) < 3 or args[2] != 0):
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return torch.empty(shape, dtype=result.dtype, device="meta").resize_(())
    result = laid_out(func, args, result)
    for argument, value in zip(schema.arguments, args, strict=False):
        if argument.name in _MASKS and len(value) == len(result):
            # What was not requested is not made.
            return tuple(item if is_wanted else None for item, is_wanted in zip(result, value, strict=True))
    return result


def laid_out(func: Any, args: Any, result: Any) -> Any:
    """Give results that the CPU computed the layout that they have on a GPU."""
    import torch

    schema = getattr(func, "_schema", None)  # None: operations on functions
    if schema is None or schema.name not in _CONVOLUTIONS:
        return result
    if any(_is_channels_last(tensor, torch) for tensor in args[:3]):
        return map_tensors(result, lambda tensor: _channels_last(tensor, torch), torch.Tensor)
    return result


def _is_channels_last(value: Any, torch: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 4
        and not value.is_contiguous()
        and bool(value.is_contiguous(memory_format=torch.channels_last))
    )


def _channels_last(tensor: Any, torch: Any) -> Any:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def map_tensors(value: Any, function: Callable[[Any], Any], tensor_type: type) -> Any:
    """Replace every tensor in nested lists and tuples."""
    if isinstance(value, tensor_type):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, function, tensor_type) for item in value)
    return value


@dataclass(frozen=True, slots=True)
class Selection:
    """How many elements an operation selects: those that a mask has, or where it was not computed, all.

    ``assumed`` is called with the name of an operation whose largest result is assumed.
    """

    has_values: Callable[[Any], bool]
    assumed: Callable[[str], None]

    def count(self, operation: str, mask: Any) -> int:
        """Return how many elements a mask selects."""
        if self.has_values(mask):
            return int(mask.count_nonzero())
        self.assumed(operation)
        return int(mask.numel())


def dynamic_shapes(name: str, func: Any, args: Any, kwargs: dict[str, Any], selection: Selection) -> Any:
    """Return an operation's results as meta tensors, also where ``result_shapes`` cannot."""
    if name in ("index", "_unsafe_index"):
        indices = [_without_mask(index, selection) for index in args[1]]
        flat = [item for part in indices for item in part]
        return result_shapes(func, (args[0], flat, *args[2:]), kwargs)
    largest = _LARGEST.get(name)
    return result_shapes(func, args, kwargs) if largest is None else largest(args, kwargs, selection)


def _without_mask(index: Any, selection: Selection) -> list[Any]:
    """Replace a mask by the indices that it selects: one for each of its dimensions."""
    import torch

    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    n_selected = selection.count("index", index)
    return [_meta((n_selected,), torch.int64) for _ in range(index.dim())]


def _nonzero(args: Any, _kwargs: Any, selection: Selection) -> Any:
    import torch

    return _meta((selection.count("nonzero", args[0]), args[0].dim()), torch.int64)


def _masked_select(args: Any, _kwargs: Any, selection: Selection) -> Any:
    import torch

    tensor, mask = args
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    n_selected = selection.count("masked_select", mask)
    return _meta((n_selected * (prod(shape) // max(mask.numel(), 1)),), tensor.dtype)


def _unique(args: Any, kwargs: Any, selection: Selection) -> Any:
    """Shape _unique2 and unique_consecutive, without ``dim``: every value may differ from all others."""
    import torch

    selection.assumed("unique")
    tensor, n_values = args[0], args[0].numel()
    counts = kwargs.get("return_counts", any(args[2:4]))
    return (
        _meta((n_values,), tensor.dtype),
        _meta(tensor.shape, torch.int64),
        _meta((n_values if counts else 0,), torch.int64),
    )


def _unique_dim(args: Any, _kwargs: Any, selection: Selection) -> Any:
    import torch

    selection.assumed("unique")
    tensor, dim = args[:2]
    n_values = (tensor.size(dim),)
    return _meta(tensor.shape, tensor.dtype), _meta(n_values, torch.int64), _meta(n_values, torch.int64)


def _ctc_loss_backward(args: Any, _kwargs: Any, _selection: Selection) -> Any:
    return _meta(args[1].shape, args[1].dtype)


_LARGEST = {
    "_ctc_loss_backward": _ctc_loss_backward,  # torch has no meta function for it (2.15)
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "_unique2": _unique,
    "unique_consecutive": _unique,
    "unique_dim": _unique_dim,
}


def _meta(shape: Any, dtype: Any) -> Any:
    import torch

    return torch.empty(shape, dtype=dtype, device="meta")


# Addresses are free where they can be reserved; elsewhere the mapping is as large as the largest tensor yet.
_RESERVED_BYTES = 1 << 36
_COMMITTED_BYTES = 1 << 26
# Linux's value; Python's mmap module has had the name since 3.13 only.
_NO_RESERVE = 0x4000


class FakeStorages:
    """Makes tensors without memory."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        # Kept as it is here: a simulation replaces it.
        self._addr_of = torch.UntypedStorage.data_ptr
        self._zeros: mmap.mmap | None = None
        self._ranges: list[range] = []

    def storage(self, n_bytes: int) -> Any:
        """Make a storage of that many zeros that takes no memory."""
        torch = self._torch
        if n_bytes == 0:
            return torch.UntypedStorage(0)
        if self._zeros is None or len(self._zeros) < n_bytes:
            self._zeros = _map(n_bytes)
            first = self._addr_of(torch.frombuffer(self._zeros, dtype=torch.uint8).untyped_storage())
            self._ranges.append(range(first, first + len(self._zeros)))
        return torch.frombuffer(self._zeros, dtype=torch.uint8, count=n_bytes).untyped_storage()

    def has(self, storage: Any) -> bool:
        """Say whether a storage lies in the mapping, which all such storages share."""
        addr = self._addr_of(storage)
        return any(addr in found for found in self._ranges)

    def like(self, meta: Any) -> Any:
        """Make the tensor without memory that a meta tensor describes."""
        storage = self.storage(meta.untyped_storage().nbytes())
        tensor = self._torch.empty(0, dtype=meta.dtype)
        return tensor.set_(storage, meta.storage_offset(), meta.size(), meta.stride())

    def resize(self, tensor: Any, size: Any) -> Any:
        """Do ``resize_``: new storage where the present one is too small."""
        meta = self._torch.empty(size, dtype=tensor.dtype, device="meta")
        n_bytes = meta.untyped_storage().nbytes()
        storage = tensor.untyped_storage()
        if storage.nbytes() < n_bytes:
            storage = self.storage(n_bytes)
        return tensor.set_(storage, 0, meta.size(), meta.stride())


def _map(n_bytes: int) -> mmap.mmap:
    """Map zeros of at least that many bytes, which take no memory before they are written."""
    needed = 1 << (n_bytes - 1).bit_length()
    if sys.platform == "linux":
        try:
            return mmap.mmap(
                -1,
                max(_RESERVED_BYTES, needed),
                flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE,
            )
        except OSError:  # the process's address space is limited (ulimit -v)
            pass
    try:
        # Counted as memory in use by Windows, and touched nowhere.
        return mmap.mmap(-1, max(_COMMITTED_BYTES, needed))
    except (OSError, OverflowError) as error:
        raise RecorderError(
            f"cannot reserve {needed} bytes of addresses for tensors without values: {error}; "
            "is the process's address space limited (ulimit -v), or the page file small?"
        ) from error
