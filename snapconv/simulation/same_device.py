"""Operations on tensors of two devices: torch's error where CUDA refuses what the CPU takes.

CUDA's kernels check where their arguments are, in two ways. torch's list of its operations says
which (``native_functions.yaml``, in every wheel of torch): generated code before the kernel, or the
iterator of element-wise kernels. A number of the CPU may meet tensors of a device.

To refuse a correct program would be worse than to miss an error. So a tensor counts only if the
program itself handed it over in this call and put it where it is: what C++ code made on the CPU is
in doubt.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from snapconv.guest.own_frames import for_program
from snapconv.simulation.evaluation import Invocation
from snapconv.simulation.patches import Calls, Patches
from snapconv.simulation.placements import Placements, tensors_in

_LIST = (
    Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
)
# Lines of an operation's row: it has a kernel of its own for CUDA; nothing checks it, or its
# iterator does.
_HAS_KERNEL = re.compile(r"^    [\w, ]*\bCUDA\b[\w, ]*:|^  structured", re.MULTILINE)
_IS_UNCHECKED = "device_check: NoCheck"
_IS_ITERATED = re.compile(rf"{_IS_UNCHECKED}.*TensorIterator")
_INDEXING = (
    "index",
    "_unsafe_index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index_put",
)
# Whether operations are checked of which the list says something else.
_EXCEPTIONS = {
    # They or what they call checks their arguments (native/TensorAdvancedIndexing.cpp,
    # Embedding.cpp, TensorShape.cpp, Blas.cpp, Convolution.cpp, RNN.cpp).
    **dict.fromkeys(_INDEXING, True),
    **dict.fromkeys(("embedding", "stack", "mv", "convolution", "mkldnn_rnn_layer"), True),
    # They copy a number (native/Fill.cpp) and chances (cuda/DistributionTemplates.h) to the device.
    "fill_": False,
    "bernoulli_": False,
    # Called while a mode is active, as here, in place of one that takes the CPU's targets
    # (LossCTC.cpp).
    "_ctc_loss": False,
}
# The sentence of aten/src/ATen/TensorIterator.cpp and, up to 2.7, core/adaption.cpp; the end is
# ours.
_ERROR = (
    "Expected all tensors to be on the same device, but found at least two devices, {} "
    "and {}! (argument {} of {})"
)


@lru_cache
def _rows() -> dict[str, str]:
    """Read torch's list of its operations, by name and overload; empty if torch came without it."""
    text = _LIST.read_text("utf-8") if _LIST.is_file() else ""
    return {row.partition("(")[0]: row for row in text.split("\n- func: ")}


@lru_cache
def _is_checked(func: Any) -> bool:
    """Say whether CUDA refuses tensors of several devices for an operation."""
    full_name = func.name().removeprefix("aten::")
    name = full_name.partition(".")[0]
    row = _rows().get(full_name, "")
    if name in _EXCEPTIONS:
        return _EXCEPTIONS[name]
    if _IS_UNCHECKED in row:
        return _IS_ITERATED.search(row) is not None
    return _HAS_KERNEL.search(row) is not None


class SameDevice:
    """Raises the error where an operation's tensors are on two devices, and CUDA's would."""

    def __init__(self, placements: Placements, calls: Calls) -> None:
        self._of = placements.of
        self._calls = calls

    def check(self, call: Invocation) -> None:
        """Raise torch's error for a call with tensors on several devices that CUDA would refuse."""
        # The engine and torch.func's transforms call with tensors of their own.
        if torch._C._current_graph_task_id() != -1:
            return
        if torch._C._functorch.peek_interpreter_stack() or not _is_checked(call.func):
            return
        first = None
        for name, tensor in self._operands(call):
            first = first or tensor.device
            if tensor.device != first:
                devices = sorted((str(first), str(tensor.device)), reverse=True)
                raise for_program(
                    RuntimeError(_ERROR.format(*devices, name, call.func.name()))
                )

    def _operands(self, call: Invocation) -> Iterator[tuple[str, Any]]:
        """List the tensors that have to be on one device, by argument."""
        is_indexing = call.operation.name in _INDEXING
        for name, value in call.named_arguments().items():
            for tensor in tensors_in((value,)):
                # A single value is copied to what is indexed (TensorAdvancedIndexing.cpp).
                if is_indexing and name == "values" and tensor.numel() == 1:
                    continue
                is_index = is_indexing and name == "indices"
                if tensor.is_cuda or (not is_index and self._is_certain(tensor)):
                    yield name, tensor

    def _is_certain(self, tensor: Any) -> bool:
        """Say whether the program itself handed over a CPU tensor, or a view of its memory."""
        placement = self._of(tensor)
        current = self._calls.current
        memory = torch._C._storage_id
        if current is None or (placement and placement.is_doubtful):
            return False
        try:
            is_handed_over = memory(tensor) in map(memory, tensors_in(current[1:]))
        except RuntimeError:  # of one without a storage
            return False
        return is_handed_over and tensor.dim() > 0 and tensor.numel() > 0


def patch_doubts(doubt: Callable[[Any], None], patches: Patches) -> None:
    """Doubt results of scripts, where ``y.to(x.device)`` is ``y``, and what shares memory."""
    for owner, name in (
        (torch._C.ScriptFunction, "__call__"),
        (torch._C.ScriptMethod, "__call__"),
        (torch._C, "_from_dlpack"),
        (torch.Tensor, "new"),
    ):
        patches.wrap(owner, name, partial(_doubtful, doubt))


def _doubtful(doubt: Callable[[Any], None], real: Any, *args: Any, **kwargs: Any) -> Any:
    result = real(*args, **kwargs)
    doubt(result)
    return result
