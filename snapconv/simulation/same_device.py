"""Operations on tensors of two devices: torch's commonest error for all that CUDA refuses, and the CPU takes.

CUDA's kernels check where their arguments are, in two ways. torch's list of its operations says which
(``native_functions.yaml``, in every wheel of torch): generated code before the kernel, or the iterator of
element-wise kernels. A number of the CPU may meet tensors of a device.

To refuse a correct program would be worse than to miss an error. So a tensor counts only if the program
itself handed it over in this call and put it where it is: what C++ code made on the CPU is in doubt.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from snapconv.recorder.program.own_frames import for_program
from snapconv.simulation.evaluation import Invocation
from snapconv.simulation.patches import Calls, Patches
from snapconv.simulation.placements import Placements, tensors_in

_LIST = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
# Lines of an operation's row: it has a kernel of its own for CUDA; nothing checks it, or its iterator does.
_HAS_KERNEL = re.compile(r"^    [\w, ]*\bCUDA\b[\w, ]*:|^  structured", re.MULTILINE)
_IS_UNCHECKED = "device_check: NoCheck"
_IS_ITERATED = re.compile(rf"{_IS_UNCHECKED}.*TensorIterator")
_INDEXING = "index _unsafe_index index_put index_put_ _index_put_impl_ _unsafe_index_put".split()
# They or what they call checks their arguments (native/Embedding.cpp, TensorShape.cpp, Blas.cpp,
# Convolution.cpp, RNN.cpp).
_ALSO_CHECKED = [*_INDEXING, *"embedding stack mv convolution mkldnn_rnn_layer".split()]
# These copy a number (native/Fill.cpp) and chances (cuda/DistributionTemplates.h) to the device. The last is
# called while a mode is active, as here, in place of one that takes the CPU's targets (LossCTC.cpp).
_TAKES_ANY = "fill_ bernoulli_ _ctc_loss".split()
# aten/src/ATen/TensorIterator.cpp, and what the generated check adds (ATen/core/adaption.cpp).
_ERROR = "Expected all tensors to be on the same device, but found at least two devices, {} and {}!"
_ARGUMENT = " (when checking argument for argument {} in method wrapper_CUDA_"


@lru_cache
def _rows() -> dict[str, str]:
    """Read torch's list of its operations, by name and overload; empty if torch came without it."""
    text = _LIST.read_text("utf-8") if _LIST.is_file() else ""
    return {row.partition("(")[0]: row for row in text.split("\n- func: ")}


@lru_cache
def _check_of(func: Any) -> str | None:
    """Return what an operation's check adds to the error; None for one that takes tensors of any device."""
    full_name = func.name().removeprefix("aten::")
    name, _, overload = full_name.partition(".")
    row = _rows().get(full_name, "")
    if name in _TAKES_ANY:
        return None
    if name in _ALSO_CHECKED or _IS_ITERATED.search(row):
        return ""
    if _IS_UNCHECKED in row or not _HAS_KERNEL.search(row):
        return None
    # torchgen/dest/register_dispatch_key.py; of a structured kernel the overload stands last.
    is_structured = "  structured" in row
    return f"{_ARGUMENT}{full_name.replace('.', '_') if is_structured else f'{overload}_{name}'})"


class SameDevice:
    """Raises the error where an operation's tensors are on two devices, and CUDA's would."""

    def __init__(self, placements: Placements, calls: Calls) -> None:
        self._of, self._calls = placements.of, calls

    def check(self, call: Invocation) -> None:
        """Raise torch's error for a call that CUDA would refuse; its tensors are on several devices."""
        # The engine and torch.func's transforms call with tensors of their own.
        is_inside = torch._C._current_graph_task_id() != -1 or torch._C._functorch.peek_interpreter_stack()
        argument = None if is_inside else _check_of(call.func)
        operands = [] if argument is None else [*self._operands(call)]
        first = operands[0][1].device if operands else None
        for name, tensor in operands:
            if tensor.device != first:
                devices = sorted(map(str, (first, tensor.device)), reverse=True)
                raise for_program(RuntimeError(f"{_ERROR}{argument}".format(*devices, name)))

    def _operands(self, call: Invocation) -> Iterator[tuple[str, Any]]:
        """List the tensors that have to be on one device, by argument."""
        is_indexing = call.operation.name in _INDEXING
        for name, value in call.given().items():
            for tensor in tensors_in((value,)):
                # A single value is copied to what is indexed (TensorAdvancedIndexing.cpp).
                is_single = is_indexing and name == "values" and tensor.numel() == 1
                is_index = is_indexing and name == "indices"
                if not is_single and (tensor.is_cuda or (not is_index and self._is_certain(tensor))):
                    yield name, tensor

    def _is_certain(self, tensor: Any) -> bool:
        """Say whether the program handed a tensor over, or a view of its memory, and put it on the CPU."""
        placement, current, memory = self._of(tensor), self._calls.current, torch._C._storage_id
        if current is None or (placement and placement.is_doubtful):
            return False
        try:
            is_handed_over = memory(tensor) in map(memory, tensors_in(current[1:]))
        except RuntimeError:  # of one without a storage
            return False
        return is_handed_over and tensor.dim() > 0 and tensor.numel() > 0


def patch_doubts(doubt: Callable[[Any], None], patches: Patches) -> None:
    """Doubt what a script returns, as its ``y.to(x.device)`` is ``y`` itself, and what shares memory."""
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
