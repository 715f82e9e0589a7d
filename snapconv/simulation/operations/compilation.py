"""Code of torch.compile, as far as memory is concerned: what a GPU would be given, without its kernels.

torch.compile gets CPU tensors, and makes for them what it makes for a GPU's: one function per graph that
allocates memory, calls kernels and frees what is no longer needed. That function is then run with memory of
the device. Its own kernels are left out, so this is for simulations that compute nothing. What has nothing to
do with the device needs its values, and runs as it is written.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import FunctionType
from typing import Any

from snapconv.recorder.observe.tensors import named_tensors
from snapconv.recorder.program.own_frames import stands_in
from snapconv.recorder.replacements import change_modes
from snapconv.simulation.patches import Patches
from snapconv.simulation.tensors.tensor_attributes import TensorPatches

EnterModes = Callable[[], AbstractContextManager[Any]]


def can_compile() -> bool:
    """Whether this torch can compile beneath a mode that sees what compiled code does (seen with 2.13).

    Only a build for the CPU: in one for CUDA, the autograd nodes of the tensors that torch.compile works with
    ask the driver for their stream, which ends the process where there is none (seen with 2.15).
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    is_for_the_cpu = torch.version.cuda is None and torch.version.hip is None
    return is_for_the_cpu and hasattr(TorchDispatchMode, "ignore_compile_internals")


_INDUCTOR = {
    "cpp_wrapper": False,  # Python allocates the memory then, as it is for a GPU by default
    "cpp.vec_isa_ok": False,  # else a compiler is run to find what this CPU can do
    "layout_optimization": False,  # for a CPU every convolution would have its tensors laid out anew
    "max_autotune_gemm_backends": "ATEN",  # else kernels would be run to find the fastest
}
# What cannot be compiled runs as it is written, and torch logs why.
_DYNAMO = {"suppress_errors": True}


@contextmanager
def compiled(tensors: TensorPatches, enter_modes: EnterModes) -> Iterator[None]:
    """Let compiled functions be compiled, and their code have the simulated device's memory.

    ``enter_modes`` switches the simulation on where torch.compile has switched it off.
    """
    import torch
    from torch._dynamo import config as dynamo_config
    from torch._dynamo import convert_frame
    from torch._dynamo.eval_frame import _TorchDynamoContext
    from torch._inductor import config, cpp_builder
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    with (
        _forgotten(torch, PyCodeCache),
        config.patch(_INDUCTOR),
        dynamo_config.patch(_DYNAMO),
        Patches() as patches,
    ):
        patches.wrap(torch, "compile", _breaking)
        patches.wrap(_TorchDynamoContext, "__call__", lambda real: _calling(torch, tensors, real))
        patches.wrap(convert_frame.ConvertFrameAssert, "__call__", lambda real: _on_the_cpu(tensors, real))
        for optimizer in _subclasses(torch.optim.Optimizer):
            if "_init_group" in vars(optimizer):
                patches.wrap(
                    optimizer, "_init_group", lambda real: _on_the_device(tensors, enter_modes, real)
                )
        patches.wrap(PyCodeCache, "load_by_key_path", lambda real: _with_device_memory(torch, tensors, real))
        patches.set(AsyncCompile, "cpp_pybinding", lambda *_: _no_kernel)
        patches.set(cpp_builder, "get_cpp_compiler", lambda: "c++")  # it would have to exist
        yield


@contextmanager
def _forgotten(torch: Any, code_cache: Any) -> Iterator[None]:
    """Keep what is compiled here apart from what was before and what will be afterwards."""
    from torch._dynamo import trace_rules

    before = list(trace_rules.SKIP_DIRS)
    torch._dynamo.reset()
    # What of ours is called in the middle of compiled code is not to be compiled with it.
    trace_rules.add("snapconv.simulation")
    try:
        yield
    finally:
        trace_rules.SKIP_DIRS[:] = before
        trace_rules._recompile_re()
        torch._dynamo.reset()
        code_cache.cache_clear()


def _no_kernel(*_: Any) -> None:
    """Replace a kernel whose results are not read."""


def _breaking(real: Callable[..., Any]) -> Callable[..., Any]:
    """Let every graph be broken: what cannot be compiled here could be on a GPU."""

    @wraps(real)
    def compile_(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs | {"fullgraph": False})

    return compile_


def _subclasses(base: Any) -> Iterator[Any]:
    for found in base.__subclasses__():
        yield found
        yield from _subclasses(found)


def _on_the_cpu(tensors: TensorPatches, real: Callable[..., Any]) -> Callable[..., Any]:
    @stands_in
    @wraps(real)
    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        with tensors.as_they_are():
            return real(*args, **kwargs)

    return compile_frame


def _on_the_device(tensors: TensorPatches, enter_modes: EnterModes, real: Any) -> Callable[..., Any]:
    """Make an optimizer's states on the device: torch.compile has them made while it compiles the step."""

    @stands_in
    @wraps(real)
    def init_group(*args: Any, **kwargs: Any) -> Any:
        if not tensors.is_compiling:
            return real(*args, **kwargs)
        with tensors.as_on_the_device(), enter_modes():
            return real(*args, **kwargs)

    return init_group


def _calling(torch: Any, tensors: TensorPatches, real: Callable[..., Any]) -> Callable[..., Any]:
    """Call compiled functions without the simulation's function mode, which would be compiled with them.

    One that has nothing on the device is called as it is written.
    """

    @wraps(real)
    def decorate(*args: Any, **kwargs: Any) -> Any:
        made = real(*args, **kwargs)
        if not isinstance(made, FunctionType):
            return made
        written = made.__wrapped__  # type: ignore[attr-defined]

        @stands_in
        @wraps(made)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not any(map(tensors.takes_gpu_way, within_reach(torch, written, (args, kwargs)))):
                return written(*args, **kwargs)
            with _without_our_function_mode():
                return made(*args, **kwargs)

        return call

    return decorate


def within_reach(torch: Any, function: Any, arguments: Any) -> Iterator[Any]:
    """The tensors that a function is given, and those that it references itself."""
    yield from (tensor for _, tensor in named_tensors(arguments))
    inner = getattr(function, "__func__", function)
    cells = getattr(inner, "__closure__", None) or ()
    known = [getattr(function, "__self__", None), *(_content(cell) for cell in cells)]
    names = getattr(getattr(inner, "__code__", None), "co_names", ())
    known += [getattr(inner, "__globals__", {}).get(name) for name in names]
    for value in known:
        if isinstance(value, torch.nn.Module):
            yield from value.parameters()
            yield from value.buffers()
        elif isinstance(value, torch.optim.Optimizer):
            yield from (tensor for _, tensor in named_tensors(value.param_groups))
        else:
            yield from (tensor for _, tensor in named_tensors(value))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


@contextmanager
def _without_our_function_mode() -> Iterator[None]:
    before = change_modes(
        lambda modes: [mode for mode in modes if not getattr(mode, "is_of_simulation", False)]
    )
    try:
        yield
    finally:
        change_modes(lambda _: before)


def _with_device_memory(torch: Any, tensors: TensorPatches, real: Any) -> Any:
    """Allocate for compiled code where its arguments are; its own function calls the CPU's allocator."""

    def load(_cls: Any, *args: Any, **kwargs: Any) -> Any:
        module = real(*args, **kwargs)
        if not hasattr(module, "empty_strided_cpu"):
            return module
        run, devices = module.call, [torch.device("cuda")]

        def empty_for_compiled(size: Any, stride: Any, dtype: Any) -> Any:
            made = torch.empty_strided(size, stride, dtype=dtype, device=devices[-1])
            tensors.forget_values(made)
            return made

        @stands_in
        def call(args: Any) -> Any:
            placed = (tensor.device for _, tensor in named_tensors(args) if tensors.takes_gpu_way(tensor))
            devices.append(next(placed, devices[0]))
            try:
                return run(args)
            finally:
                devices.pop()

        module.empty_strided_cpu, module.call = empty_for_compiled, call
        return module

    return classmethod(load)
