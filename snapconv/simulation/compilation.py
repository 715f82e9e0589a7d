"""What torch.compile and torch.jit.trace make of functions: they run as they are written."""

from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from snapconv.errors import RecorderError
from snapconv.guest.own_frames import stands_in
from snapconv.notes import Note
from snapconv.simulation.machine import Machine
from snapconv.simulation.patches import Patches

_AS_EAGER = Note(
    "compiled-as-eager",
    "what torch.compile was to compile ran as it is written, with the memory of eager "
    "mode; compiled, it has less on a GPU as a rule",
)


def patch_compilation(machine: Machine, patches: Patches) -> None:
    """Let compiled functions run as they are written, and note that on a first call.

    Their memory is then that of eager mode. That of the code that Inductor makes for a CPU would be
    no better bound: what is fused is the CPU's choice. It was the same for a transformer, and took
    15 times as long.
    """
    from torch._dynamo.eval_frame import _TorchDynamoContext

    def noting(real: Callable[..., Any], context: Any, function: Any) -> Any:
        compiled = real(context, function)
        if not isinstance(compiled, FunctionType):
            return compiled

        @stands_in
        @wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if any(device.allocator.ledger.allocated_bytes for device in machine.devices):
                machine.note_not_modelled("compiled code", _AS_EAGER)
            return compiled(*args, **kwargs)

        return call

    for name in ("trace", "trace_module"):
        trace = getattr(torch.jit, name)
        patches.set(torch.jit, name, wraps(trace)(partial(_trace, machine, trace)))
    patches.wrap(_TorchDynamoContext, "__call__", noting)
    patches.enter_context(torch.compiler.set_stance("force_eager"))


@stands_in
def _trace(machine: Machine, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run torch.jit.trace unseen by our mode of operations: under any mode torch fails (2.13)."""
    machine.note_not_modelled("what torch.jit.trace runs")
    try:
        with _disable_current_modes():
            return real(*args, **kwargs)
    except (AssertionError, RuntimeError) as error:
        if not any(word in str(error).lower() for word in ("cuda", "nvidia")):
            raise
        raise RecorderError(
            "torch.jit.trace: a simulation traces no function that makes tensors on "
            "the device itself"
        ) from error
