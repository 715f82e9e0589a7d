"""Code of torch.compile, as far as memory is concerned: what a GPU would be given, without its kernels.

torch.compile is handed CPU tensors, and makes for them what it makes for a GPU's: one function per graph that
asks for memory, calls kernels and drops what is no longer needed. That function is then run with the device's
memory. Its own kernels are left out, so this is for simulations that compute nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any

from snapconv.recorder.simulation.patches import Patches
from snapconv.recorder.simulation.tensors import TensorPatches


def can_compile() -> bool:
    """Whether this torch can compile beneath a mode that sees what compiled code does (seen with 2.13)."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return hasattr(TorchDispatchMode, "ignore_compile_internals")


_INDUCTOR = {
    "cpp_wrapper": False,  # what asks for memory is Python then, as it is for a GPU by default
    "cpp.vec_isa_ok": False,  # else a compiler is asked what this CPU can do
    "layout_optimization": False,  # for a CPU every convolution would have its tensors laid out anew
    "max_autotune_gemm_backends": "ATEN",  # else kernels would be run to find the fastest
}
# What cannot be compiled runs as it is written, with a warning of torch's.
_DYNAMO = {"suppress_errors": True}


@contextmanager
def compiled(tensors: TensorPatches) -> Iterator[None]:
    """Let compiled functions be compiled, and their code have the simulated device's memory."""
    import torch
    from torch._dynamo import config as dynamo_config
    from torch._dynamo import convert_frame, trace_rules
    from torch._dynamo.eval_frame import _TorchDynamoContext
    from torch._inductor import config, cpp_builder
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    # What of ours is called in the middle of compiled code is not to be compiled with it.
    trace_rules.add(__package__)
    with config.patch(_INDUCTOR), dynamo_config.patch(_DYNAMO), Patches() as patches:
        patches.wrap(convert_frame.ConvertFrameAssert, "__call__", lambda real: _on_the_cpu(tensors, real))
        patches.wrap(_TorchDynamoContext, "__call__", _without_function_modes)
        patches.wrap(PyCodeCache, "load_by_key_path", lambda real: _with_device_memory(torch, real))
        patches.set(AsyncCompile, "cpp_pybinding", lambda *_: _no_kernel)
        patches.set(cpp_builder, "get_cpp_compiler", lambda: "c++")  # it would have to exist
        yield


def _no_kernel(*_: Any) -> None:
    """Stand for a kernel whose results nobody asks for."""


def _on_the_cpu(tensors: TensorPatches, real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        with tensors.as_they_are():
            return real(*args, **kwargs)

    return compile_frame


def _without_function_modes(real: Callable[..., Any]) -> Callable[..., Any]:
    """Take torch function modes away while compiled functions run: they would be compiled with them."""

    @wraps(real)
    def decorate(*args: Any, **kwargs: Any) -> Any:
        made = real(*args, **kwargs)
        if not isinstance(made, FunctionType):
            return made

        @wraps(made)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _no_function_modes():
                return made(*args, **kwargs)

        return call

    return decorate


@contextmanager
def _no_function_modes() -> Iterator[None]:
    from torch.overrides import _len_torch_function_stack, _pop_mode, _push_mode

    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


def _with_device_memory(torch: Any, real: Any) -> Any:
    """Put what compiled code asks for on the device; its own function calls the CPU's allocator."""

    def empty_for_compiled(size: Any, stride: Any, dtype: Any) -> Any:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    def load(_cls: Any, *args: Any, **kwargs: Any) -> Any:
        module = real(*args, **kwargs)
        if hasattr(module, "empty_strided_cpu"):
            module.empty_strided_cpu = empty_for_compiled
        return module

    return classmethod(load)
