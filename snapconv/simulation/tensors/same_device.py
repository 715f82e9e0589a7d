"""Tensors of two devices in one operation: torch's own errors, which a CPU build does not know.

CUDA's operations check their arguments in three ways (torch 2.13): generated code
(aten/src/ATen/core/adaption.cpp), element-wise kernels (aten/src/ATen/TensorIterator.cpp), and a few by
themselves. A number without dimensions may come from the CPU. To refuse a correct program would be worse than
to miss an error: so a tensor is refused only if the program itself handed it over in this call, and it is
certain to be on the CPU (see ``doubts``).
"""

from typing import Any

from snapconv.recorder.program.own_frames import for_program
from snapconv.simulation.modes import Calls
from snapconv.simulation.operations.operation_schemas import Kind, Operation
from snapconv.simulation.tensors.doubts import Doubts
from snapconv.simulation.tensors.placements import Placements, tensors_in

# They take tensors of several devices, or check what they take in ways of their own.
_ANY_DEVICE = {
    "copy_",
    "_to_copy",
    "_copy_from",
    "set_",
    "resize_as_",
    "record_stream",
    "is_same_size",
    "is_set_to",
    "_pack_padded_sequence",
    "_pad_packed_sequence",
    "_ctc_loss",
    "_use_cudnn_ctc_loss",
    "_cudnn_ctc_loss",
    "normal",
    "bernoulli",
    "bernoulli_",
    "repeat_interleave",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "_cudnn_rnn",
    # They copy into a clone.
    "slice_scatter",
    "select_scatter",
    "diagonal_scatter",
    "as_strided_scatter",
}
_ANY_DEVICE_PREFIXES = (
    "_foreach_",
    "_fused_",
    "_amp_",
    "_nested_",
    "_sparse_",
    "sparse_",
    "_scaled_dot_product_",
    "_flash_attention_",
    "_efficient_attention_",
    "fake_quantize_",
    "_fake_quantize_",
)
_INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
# Element-wise without torch's tag for it, among the operations without a generated check
# (native_functions.yaml, device_check: NoCheck # TensorIterator).
_ELEMENT_WISE = set(
    """
    binary_cross_entropy binary_cross_entropy_with_logits mse_loss smooth_l1_loss huber_loss dist
    masked_select floor_divide floor_divide_ true_divide_ copysign_ heaviside_ rsub eq_ ne_ ge_ le_ gt_ lt_
    binomial
    """.split()
)
_CONVOLUTIONS = {"convolution", "convolution_overrideable"}
# The first version whose generated checks name the argument first.
_NAMES_THE_ARGUMENT = (2, 8)


class SameDevice:
    """Raises what CUDA would where an operation's tensors are on two devices."""

    def __init__(self, placements: Placements, calls: Calls, doubts: Doubts) -> None:
        import torch

        self._torch = torch
        self._tensor = torch.Tensor
        self._placements = placements
        self._calls = calls
        self._doubts = doubts
        self._graph_task = torch._C._current_graph_task_id
        self._pointwise = getattr(torch.Tag, "pointwise", None)

    def check(self, operation: Operation, func: Any, args: Any, tensors: list[Any]) -> None:
        """Raise torch's error for an operation that CUDA would refuse; one of its tensors is on a device."""
        if operation.kind is Kind.VIEW or self._graph_task() != -1 or not func.name().startswith("aten::"):
            return
        if self._doubts.is_transforming:
            return
        if operation.name in _ANY_DEVICE or operation.name.startswith(_ANY_DEVICE_PREFIXES):
            return
        if operation.name in _INDEXING:
            tensors = self._check_indices(args, tensors)
        devices = [tensor.device for tensor in tensors]
        on_device = next((device for device in devices if device.type == "cuda"), None)
        if on_device is None:
            return
        strange = [
            tensor
            for tensor, device in zip(tensors, devices, strict=True)
            if self._is_strange(tensor, device, on_device)
        ]
        if strange and self._is_handed_over(strange):
            raise for_program(RuntimeError(self._message(operation, func, args, tensors, on_device)))

    def _is_strange(self, tensor: Any, device: Any, other: Any) -> bool:
        """Say whether a tensor cannot be where it is; what has no elements or no storage always can."""
        if device == other or tensor.numel() == 0 or tensor.layout is not self._torch.strided:
            return False
        if device.type == "cpu":
            return bool(tensor.dim() > 0 and not self._doubts.has(tensor))
        return bool(device.type == "cuda")

    def _is_handed_over(self, strange: list[Any]) -> bool:
        """Say whether one of these is an argument of the program's own call, or a view of one.

        What torch made inside the call may be on the CPU here alone.
        """
        call = self._calls.current
        if call is None:
            return False
        key = self._placements.key
        given = {key(tensor) for tensor in tensors_in((*call[1], *call[2].values()), self._tensor)} - {None}
        return any(key(tensor) in given for tensor in strange)

    def _check_indices(self, args: Any, tensors: list[Any]) -> list[Any]:
        """Check that indices are on the CPU or with what they index; return what is left to be checked."""
        indexed, indices = args[0], [index for index in args[1] if index is not None]
        if not self._doubts.has(indexed) and any(
            index.device not in (indexed.device, self._torch.device("cpu")) for index in indices
        ):
            error = RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({indexed.device})"
            )
            raise for_program(error)
        return [tensor for tensor in tensors if all(tensor is not index for index in indices)]

    def _message(self, operation: Operation, func: Any, args: Any, tensors: list[Any], on_device: Any) -> str:
        if operation.name in _CONVOLUTIONS:
            return _of_convolution(*tensors[:3])
        start = "Expected all tensors to be on the same device, but "
        other = next(tensor for tensor in tensors if self._is_strange(tensor, tensor.device, on_device))
        if self._pointwise in func.tags or operation.name in _ELEMENT_WISE | _INDEXING:
            return f"{start}found at least two devices, {on_device} and {other.device}!"
        # Generated checks compare with the first argument.
        first = tensors[0].device
        other = next((tensor for tensor in tensors if tensor.device != first), other)
        name, method = _argument_name(operation, args, other), f"wrapper_CUDA_{operation.name}"
        if self._version() >= _NAMES_THE_ARGUMENT:
            return (
                f"{start}got {name} is on {other.device}, different from other tensors on {first} "
                f"(when checking argument in method {method})"
            )
        return (
            f"{start}found at least two devices, {first} and {other.device}! "
            f"(when checking argument for argument {name} in method {method})"
        )

    def _version(self) -> tuple[int, int]:
        major, minor = self._torch.__version__.split(".")[:2]
        return int(major), int(minor)


def _argument_name(operation: Operation, args: Any, tensor: Any) -> str:
    for name, value in zip(operation.argument_names, args, strict=False):
        if any(found is tensor for found in tensors_in((value,), type(tensor))):
            return name
    return "tensors"


def _of_convolution(tensor: Any, weight: Any, bias: Any = None) -> str:
    """Write the message of a convolution (check_input_same_type_as_parameters in native/Convolution.cpp)."""
    if tensor.device == weight.device and bias is not None:
        return f"Input type ({tensor.type()}) and bias type ({bias.type()}) should be the same"
    text = f"Input type ({tensor.type()}) and weight type ({weight.type()}) should be the same"
    if tensor.device.type == "cpu":
        text += " or input should be a MKLDNN tensor and weight is a dense tensor"
    return text
