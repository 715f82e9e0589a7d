"""torch's schema of an operation -> whether its results are views, its arguments, or new memory."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from snapconv.simulation.not_modelled import OF_OPERATION


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
        not_modelled=OF_OPERATION.get(name),
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
