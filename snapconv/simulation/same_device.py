"""Operations on tensors of two devices: torch's own errors, which the CPU's kernels do not raise.

CUDA's kernels check where their arguments are, in two ways. torch's list of its operations says which
(``native_functions.yaml``, in every wheel of torch): generated code before the kernel, or the iterator of
element-wise kernels. A number of the CPU may meet tensors of a device.

To refuse a correct program would be worse than to miss an error. So a tensor counts only if the program
itself handed it over in this call and put it where it is: what C++ code made on the CPU is in doubt.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import torch

from snapconv.recorder.program.own_frames import for_program, stands_in
from snapconv.simulation.evaluation import Invocation
from snapconv.simulation.patches import Calls, Patches
from snapconv.simulation.placements import Placements, tensors_in

_LIST = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
# A line of an operation's row that says that CUDA has a kernel of its own.
_HAS_KERNEL = re.compile(r"^    [\w, ]*\bCUDA\b[\w, ]*:|^  structured", re.MULTILINE)
# The operation that checks another's arguments (native/Embedding.cpp, TensorShape.cpp and Blas.cpp).
_CHECKED_BY = {"embedding": "index_select", "stack": "cat", "mv": "addmv_"}
_INDEXING = "index _unsafe_index index_put index_put_ _index_put_impl_ _unsafe_index_put".split()
# These copy a number (native/Fill.cpp) and chances (cuda/DistributionTemplates.h) to the device. The last is
# called while a mode is active, as here, in place of one that takes the CPU's targets (LossCTC.cpp).
_TAKES_ANY = "fill_ bernoulli_ _ctc_loss".split()
_START = "Expected all tensors to be on the same device, but"
_ITERATED = f"{_START} found at least two devices, {{0.device}} and {{1.device}}!"
# aten/src/ATen/core/adaption.cpp (common_device_check_failure)
_GENERATED = (
    f"{_START} got {{2}} is on {{1.device}}, different from other tensors on {{0.device}} "
    "(when checking argument in method wrapper_CUDA_"
    if torch.__version__ >= (2, 8)
    else f"{_ITERATED} (when checking argument for argument {{2}} in method wrapper_CUDA_"
)
# check_input_same_type_as_parameters in aten/src/ATen/native/Convolution.cpp, check_attributes in RNN.cpp
_OTHERS = {
    "convolution": "Input type ({3}) and {2} type ({4}) should be the same",
    "mkldnn_rnn_layer": (
        "Input and {2} tensors are not at the same device, found input tensor at {0.device} and "
        "{2} tensor at {1.device}"
    ),
}
_OF_CPU = {"convolution": " or input should be a MKLDNN tensor and weight is a dense tensor"}
# What the code that checks calls the arguments of an embedding and of a recurrent layer.
_NAMES = {"indices": "index", "weight0": "parameter", "hx_": "hidden"}
_INDEX = "indices should be either on cpu or on the same device as the indexed tensor ({0.device})"


@lru_cache
def _rows() -> dict[str, str]:
    """Read torch's list of its operations, by name and overload; empty if torch came without it."""
    text = _LIST.read_text("utf-8") if _LIST.is_file() else ""
    return {row.partition("(")[0]: row for row in text.split("\n- func: ")}


@lru_cache
def _error_of(func: Any) -> str:
    """Return the text of an operation's check; empty for one that takes any device, or is not torch's."""
    name, _, overload = func.name().removeprefix("aten::").partition(".")
    if name in _OTHERS:
        return _OTHERS[name]
    base = _CHECKED_BY.get(name, name)
    row = _rows().get(f"{base}.{overload}" if overload else base, "")
    _, is_unchecked, reason = row.partition("\n  device_check: NoCheck")
    if is_unchecked or name in _INDEXING:
        return _ITERATED * (name in _INDEXING or "TensorIterator" in reason.partition("\n")[0])
    if not _HAS_KERNEL.search(row):
        return ""
    # torchgen/dest/register_dispatch_key.py; of a structured kernel the overload stands last.
    method = f"{base}_{overload}".removesuffix("_" * (not overload))
    return f"{_GENERATED}{method if '  structured' in row else f'{overload}_{base}'})"


class SameDevice:
    """Raises the error where an operation's tensors are on two devices, and CUDA's would."""

    def __init__(self, placements: Placements, calls: Calls) -> None:
        self._of, self._calls = placements.of, calls

    def check(self, call: Invocation) -> None:
        """Raise torch's error for a call that CUDA would refuse; its tensors are on several devices."""
        # The engine and torch.func's transforms call with tensors of their own.
        is_inside = torch._C._current_graph_task_id() != -1 or torch._C._functorch.peek_interpreter_stack()
        text = "" if is_inside or call.operation.name in _TAKES_ANY else _error_of(call.func)
        operands = [*_operands(call)] if text else []
        on_device = [tensor for _, tensor in operands if tensor.is_cuda]
        apart = [row for row in operands if on_device and row[1].device != on_device[0].device]
        if not any(self._is_certain(tensor) for _, tensor in apart):
            return
        first, (name, tensor) = operands[0][1], apart[0]
        if call.operation.name in _INDEXING and "indices" in dict(operands):
            text = _INDEX
        elif text == _ITERATED:
            first = on_device[0]
        else:  # the others compare with the first argument
            name, tensor = next(row for row in operands if row[1].device != first.device)
        text += "" if first.is_cuda else _OF_CPU.get(call.operation.name, "")
        error = text.format(first, tensor, _NAMES.get(name, name), first.type(), tensor.type())
        raise for_program(RuntimeError(error))

    def _is_certain(self, tensor: Any) -> bool:
        """Say whether the program handed a tensor over, or a view of its memory, and put it where it is."""
        call, placement = self._calls.current, self._of(tensor)
        if call is None or (placement and placement.is_doubtful) or not tensor.numel():
            return False
        return _memory(tensor) in map(_memory, tensors_in((*call[1], *call[2].values())))


def _operands(call: Invocation) -> Iterator[tuple[str, Any]]:
    """List the tensors that have to be on one device, by argument; first what is written to."""
    given, written = call.given(), call.operation.written
    is_indexing, (indexed, *_) = call.operation.name in _INDEXING, call.tensors
    for name in sorted(given, key=lambda name: name not in written):
        for tensor in tensors_in((given[name],)):
            if is_indexing and name == "indices":
                is_free = not tensor.is_cuda or tensor.device == indexed.device
            else:  # a single value is copied to what is indexed (TensorAdvancedIndexing.cpp)
                is_free = is_indexing and name == "values" and tensor.numel() == 1
            if not is_free and (tensor.is_cuda or tensor.dim()):
                yield name, tensor


def patch_doubts(doubt: Callable[[Any], None], patches: Patches) -> None:
    """Doubt what a script returns, as its ``y.to(x.device)`` is ``y`` itself, and what shares memory."""
    script, method = torch._C.ScriptFunction, torch._C.ScriptMethod
    shared = (torch._C, "_from_dlpack"), (torch.Tensor, "new")
    for owner, name in ((script, "__call__"), (method, "__call__"), *shared):
        patches.set(owner, name, _doubtful(getattr(owner, name), doubt))


def _doubtful(real: Any, doubt: Callable[[Any], None]) -> Any:
    @stands_in
    @wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        doubt(result)
        return result

    return call


def _memory(tensor: Any) -> int:
    """Return what all views of the same memory have in common; -1 for a tensor without a storage."""
    try:
        return int(torch._C._storage_id(tensor))
    except RuntimeError:
        return -1
