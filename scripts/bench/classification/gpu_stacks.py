"""Functions that stand around operation and script in a GPU's stacks: walk, allocator, interpreter, libc.

A simulated capture has only what says something: the operation's functions in C++, Python's, the
engine's. Names and order of the others are those of snapshots of real GPUs (torch 2.5 to 2.11,
Linux); whoever reads stacks has to find the same with them as without. Knows names alone, and
nothing of what runs.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

# (name, file, line), as a snapshot has a frame
Frame = tuple[str, str, int]

_NO_FILE = "??"
_CACHING = "c10::cuda::CUDACachingAllocator::Native"
_WALK = (
    "torch::unwind::unwind()",
    "torch::CapturedTraceback::gather(bool, bool, bool)",
    "torch::cuda::(anonymous namespace)::gather_with_cpp()",
)
_MALLOC = (
    *_WALK,
    f"{_CACHING}::DeviceCachingAllocator::malloc(signed char, unsigned long, CUstream_st*)",
    f"{_CACHING}::NativeCachingAllocator::malloc(void**, signed char, unsigned long, CUstream_st*)",
    f"{_CACHING}::NativeCachingAllocator::allocate(unsigned long)",
)
_EMPTY = (
    "at::TensorBase at::detail::_empty_generic<long>(c10::ArrayRef<long>, c10::Allocator*, "
    "c10::DispatchKeySet, c10::ScalarType, std::optional<c10::MemoryFormat>)",
    "at::detail::empty_generic(c10::ArrayRef<long>, c10::Allocator*, c10::DispatchKeySet, "
    "c10::ScalarType, "
    "std::optional<c10::MemoryFormat>)",
    "at::detail::empty_cuda(c10::ArrayRef<long>, c10::ScalarType, std::optional<c10::Device>, "
    "std::optional<c10::MemoryFormat>)",
    "at::detail::empty_cuda(c10::ArrayRef<long>, std::optional<c10::ScalarType>, "
    "std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>, "
    "std::optional<c10::MemoryFormat>)",
    "at::detail::empty_cuda(c10::ArrayRef<long>, c10::TensorOptions const&)",
)
_FREE = (
    *_WALK,
    f"{_CACHING}::DeviceCachingAllocator::free({_CACHING}::(anonymous namespace)::Block*)",
    f"{_CACHING}::local_raw_delete(void*)",
    "c10::StorageImpl::~StorageImpl()",
    "c10::intrusive_ptr<c10::StorageImpl, "
    "c10::detail::intrusive_target_default_null_type<c10::StorageImpl> >::reset_()",
)
# What frees a storage where nothing shows it: the last reference in Python.
_OF_PYTHON_OBJECT = (
    "c10::TensorImpl::~TensorImpl()",
    "THPVariable_clear(THPVariable*)",
    "THPVariable_dealloc(_object*)",
    "_Py_Dealloc",
)
# Between torch's function and the Python function that calls it, and around each Python function.
_CALL_OF_C = ("cfunction_call", "_PyObject_MakeTpCall")
_CALL_OF_PYTHON = ("_PyEval_EvalFrameDefault", "_PyFunction_Vectorcall")
_CALL_OF_OBJECT = (
    "_PyEval_EvalFrameDefault",
    "_PyObject_FastCallDictTstate",
    "_PyObject_Call_Prepend",
    "slot_tp_call",
    "_PyObject_MakeTpCall",
)
_OBJECT_CALLS = ("_wrapped_call_impl", "__call__")
_MAIN_THREAD = (
    "PyEval_EvalCode",
    "run_eval_code_obj",
    "run_mod",
    "pyrun_file",
    "_PyRun_SimpleFileObject",
    "_PyRun_AnyFileObject",
    "Py_RunMain",
    "Py_BytesMain",
    "__libc_start_main",
    "_start",
)
_PYTHON_THREAD = ("thread_run", "pythread_wrapper", "start_thread", "__clone3")
_ENGINE_THREAD = (
    (
        "torch::autograd::Engine::thread_init(int, std::shared_ptr<torch::autograd::ReadyQueue> "
        "const&, bool)"
    ),
    "torch::autograd::python::PythonEngine::thread_init(int, "
    "std::shared_ptr<torch::autograd::ReadyQueue> const&, bool)",
    "execute_native_thread_routine",
    "start_thread",
    "__clone3",
)
_REDISPATCH = re.compile(r"at::_ops::(\w+)::redispatch\(c10::DispatchKeySet(?:, )?(.*)\)")
_OF_AUTOGRAD = re.compile(r"(torch::autograd::VariableType::\(anonymous namespace\)::\w+)\((.*)\)")

_KERNEL, _FUNCTOR = (
    "at::(anonymous namespace)::wrapper_CUDA_",
    "c10::impl::wrap_kernel_functor_unboxed_",
)
_ENGINE = "torch::autograd::Engine::thread_main"


def add_surroundings(raw: dict[str, Any]) -> None:
    """Add to all stacks of a simulated snapshot, in place, what those of a GPU have besides.

    Blocks and events share the lists of their frames before, and afterwards.
    """
    made: dict[tuple[int, bool], tuple[list[Any], list[Any]]] = {}
    for holder in _holders(raw):
        frames = holder.get("frames")
        if not frames:
            continue
        key = id(frames), holder.get("action", "alloc").startswith("free")
        if key not in made:  # the former list is kept: no other has its id meanwhile
            made[key] = frames, _with_surroundings(frames, is_free=key[1])
        holder["frames"] = made[key][1]


def _holders(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (event for trace in raw["device_traces"] for event in trace)
    for segment in raw["segments"]:
        yield segment
        yield from segment["blocks"]


def _with_surroundings(frames: Sequence[dict[str, Any]], *, is_free: bool) -> list[dict[str, Any]]:
    plain: list[Frame] = [(frame["name"], frame["filename"], frame["line"]) for frame in frames]
    python = [place for place, frame in enumerate(plain) if _is_python(frame)]
    first, end = (python[0], python[-1] + 1) if python else (len(plain), len(plain))
    inner, script, engine = [frame[0] for frame in plain[:first]], plain[first:end], plain[end:]
    is_engine = any(name.startswith(_ENGINE) for name, *_ in plain)
    before = _before_a_free([*inner, *engine]) if is_free else _before_an_allocation(inner)
    whole = [
        *map(_native, (*before, *_with_functors(inner))),
        *_with_interpreter(script, calls_torch=bool(inner) and not is_free),
        *engine,
        *map(_native, _thread(script, is_engine=is_engine)),
    ]
    return [{"name": name, "filename": filename, "line": line} for name, filename, line in whole]


def _is_python(frame: Frame) -> bool:
    return frame[1].endswith(".py") or frame[1].startswith("<")


def _native(name: str) -> Frame:
    """Make the frame of a C++ function."""
    return name, _NO_FILE, 0


def _before_an_allocation(operation: Sequence[str]) -> list[str]:
    """Name what an allocation's stack has before the operation that requests it."""
    first = operation[0] if operation else ""
    if first.startswith("at::detail::empty_strided_generic"):
        return [*_MALLOC]
    kernel = _REDISPATCH.fullmatch(first)
    if kernel is None:
        return [*_MALLOC, *(_EMPTY if first.startswith("at::_ops::") else ())]
    name, arguments = f"{_KERNEL}{kernel[1]}", kernel[2]
    return [*_MALLOC, *_EMPTY, f"{name}({arguments})", _functor(name, arguments)]


def _with_functors(operation: Sequence[str]) -> list[str]:
    """Put what the dispatcher calls around the functions of autograd."""
    result = []
    for name in operation:
        result.append(name)
        if function := _OF_AUTOGRAD.fullmatch(name):
            result.append(_functor(function[1], function[2]))
    return result


def _functor(function: str, arguments: str) -> str:
    signature = f"at::Tensor ({arguments})"
    plain = arguments.removeprefix("c10::DispatchKeySet, ")
    return (
        f"{_FUNCTOR}<c10::impl::detail::WrapFunctionIntoFunctor_<c10::CompileTimeFunctionPointer<"
        f"{signature}, &{function}>, at::Tensor, c10::guts::typelist::typelist<{arguments}> >, "
        f"{signature}"
        f">::call(c10::OperatorKernel*, c10::DispatchKeySet, {plain})"
    )


def _before_a_free(cause: Sequence[Any]) -> list[str]:
    """Name what a free's stack has before what caused it."""
    return [*_FREE, *(() if cause else _OF_PYTHON_OBJECT)]


def _with_interpreter(python: Sequence[Frame], *, calls_torch: bool) -> list[Frame]:
    """Put the interpreter's functions around those of Python."""
    result = [*map(_native, _CALL_OF_C)] if calls_torch and python else []
    for frame in python:
        calls = _CALL_OF_OBJECT if frame[0] in _OBJECT_CALLS else _CALL_OF_PYTHON
        result += (frame, *map(_native, calls))
    return result


def _thread(python: Sequence[Frame], *, is_engine: bool) -> tuple[str, ...]:
    """Name what a thread began with: the engine's, one of Python's, or the main one."""
    if is_engine:
        return _ENGINE_THREAD
    if not python:
        return ()
    name, filename, _ = python[-1]
    return (
        _PYTHON_THREAD
        if name == "_bootstrap" and filename.endswith("threading.py")
        else _MAIN_THREAD
    )
