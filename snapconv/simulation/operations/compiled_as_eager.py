"""Compiled functions run eagerly where they cannot be compiled: while values are computed, in CUDA builds.

Their memory is then that of eager mode, which is more than compiled code has. What is really called is noted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any

from snapconv.notes import Note
from snapconv.recorder.program.own_frames import stands_in
from snapconv.simulation.devices.machine import Machine
from snapconv.simulation.not_modelled import COMPILED
from snapconv.simulation.operations.compilation import can_compile, within_reach
from snapconv.simulation.patches import Patches
from snapconv.simulation.tensors.tensor_attributes import TensorPatches

# Backends that run a graph as it was written.
_EAGER_BACKENDS = ("eager", "eager_debug", "eager_noexcept")


@contextmanager
def eager(machine: Machine, tensors: TensorPatches) -> Iterator[None]:
    """Let compiled functions run as they are written."""
    import torch
    from torch._dynamo.eval_frame import _TorchDynamoContext

    with Patches() as patches:
        patches.wrap(_TorchDynamoContext, "__call__", lambda real: _noting(torch, machine, tensors, real))
        set_stance = getattr(torch.compiler, "set_stance", None)  # torch 2.6
        if set_stance is None:
            # Not a patch of ours: what torch.compile's settings lose is gone for good.
            run_eagerly = torch._dynamo.config.patch(disable=True)
        else:
            run_eagerly = set_stance("force_eager")
        with run_eagerly:
            yield


def _noting(torch: Any, machine: Machine, tensors: TensorPatches, real: Callable[..., Any]) -> Any:
    """Note the first call of a compiled function that works on the device."""

    @wraps(real)
    def decorate(context: Any, function: Any) -> Any:
        made = real(context, function)
        if not isinstance(made, FunctionType) or _backend(context) in _EAGER_BACKENDS:
            return made

        @stands_in
        @wraps(made)
        def call(*args: Any, **kwargs: Any) -> Any:
            if COMPILED not in machine.met:
                reached = within_reach(torch, function, (args, kwargs))
                if any(map(tensors.takes_gpu_way, reached)):
                    machine.meet(COMPILED)
                    machine.note(_note())
            return made(*args, **kwargs)

        return call

    return decorate


def _backend(context: Any) -> str:
    """Find the name of what is to compile; torch wraps it several times."""
    compiler: Any = getattr(context, "callback", None)
    while (inner := _within(compiler)) is not None:
        compiler = inner
    return str(getattr(compiler, "compiler_name", ""))


def _within(compiler: Any) -> Any:
    older = getattr(compiler, "_torchdynamo_orig_callable", None)  # up to torch 2.7
    return getattr(compiler, "_torchdynamo_orig_backend", older)


def _note() -> Note:
    instead = (
        "give --no-compute, which compiles" if can_compile() else "take a CPU build of torch and --no-compute"
    )
    return Note(
        "compiled-as-eager",
        "what torch.compile was to compile ran as it is written, with the memory of eager mode; compiled, it "
        f"has less on a GPU as a rule. To see that, {instead}",
    )
