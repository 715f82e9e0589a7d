"""What allocates or frees -> the stack that torch would record for it, leaf first, interned.

The shape follows real captures of torch 2.10 on Linux: C++ frames of the allocator, of the
dispatcher and of the binding, then Python frames with the interpreter's C frames between them; on
the engine's thread C++ frames only. With stacks="python" only the Python frames are left.
"""

from collections.abc import Sequence
from typing import NamedTuple

SITE = "/opt/venv/lib/python3.10/site-packages"
PROJECT = "/home/user/llm-training"


class Frame(NamedTuple):
    """One frame; ``site`` distinguishes places of equal text: dictionaries of their own in torch."""

    name: str
    filename: str
    line: int
    site: int = 0


def cpp(name: str, filename: str = "??", line: int = 0) -> Frame:
    """Make a C++ frame; most have neither file nor line."""
    return Frame(name, filename, line)


def torch_frame(function: str, path: str, line: int) -> Frame:
    """Make a Python frame in a file of the installed torch."""
    return Frame(function, f"{SITE}/torch/{path}", line)


def project_frame(function: str, path: str, line: int) -> Frame:
    """Make a Python frame in a file of the user's project."""
    return Frame(function, f"{PROJECT}/{path}", line)


MODULE_CALL = (
    torch_frame("_call_impl", "nn/modules/module.py", 1786),
    torch_frame("_wrapped_call_impl", "nn/modules/module.py", 1775),
)

_NATIVE = "c10::cuda::CUDACachingAllocator::Native"
_ALLOCATOR_FILE = "CUDACachingAllocator.cpp"
_GATHER = (
    cpp("torch::unwind::unwind()"),
    cpp("torch::CapturedTraceback::gather(bool, bool, bool)"),
    cpp("torch::cuda::(anonymous namespace)::gather_with_cpp()", "memory_snapshot.cpp"),
)
_MALLOC = (
    *_GATHER,
    cpp(f"{_NATIVE}::DeviceCachingAllocator::malloc(unsigned long, CUstream_st*)", _ALLOCATOR_FILE),
    cpp(
        f"{_NATIVE}::NativeCachingAllocator::malloc(void**, signed char, unsigned long, "
        f"CUstream_st*)",
        "",
    ),
    cpp(f"{_NATIVE}::NativeCachingAllocator::allocate(unsigned long)", ""),
    cpp(
        "at::TensorBase at::detail::_empty_generic<long>(c10::ArrayRef<long>, c10::Allocator*, "
        "c10::DispatchKeySet, c10::ScalarType, std::optional<c10::MemoryFormat>)",
        "",
    ),
    cpp(
        "at::detail::empty_cuda(c10::ArrayRef<long>, c10::ScalarType, std::optional<c10::Device>, "
        "std::optional<c10::MemoryFormat>)"
    ),
)
_WORKSPACE = (cpp("at::cuda::getNewWorkspace()"), cpp("at::cuda::getCurrentCUDABlasHandle()"))
_FREE = (
    *_GATHER,
    cpp(
        f"{_NATIVE}::DeviceCachingAllocator::free({_NATIVE}::(anonymous namespace)::Block*)",
        _ALLOCATOR_FILE,
    ),
    cpp(f"{_NATIVE}::local_raw_delete(void*)", _ALLOCATOR_FILE),
    cpp("c10::StorageImpl::~StorageImpl()", ""),
    cpp("c10::TensorImpl::~TensorImpl()"),
)
_DROP_FROM_PYTHON = (
    cpp("THPVariable_clear(THPVariable*)", "python_variable.cpp"),
    cpp("THPVariable_subclass_dealloc(_object*)"),
)
_ENGINE = (
    cpp(
        "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&, "
        "torch::autograd::Node*, torch::autograd::InputBuffer&, "
        "std::shared_ptr<torch::autograd::ReadyQueue> const&)"
    ),
    cpp("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"),
    cpp(
        "torch::autograd::Engine::thread_init(int, std::shared_ptr<torch::autograd::ReadyQueue> "
        "const&, bool)"
    ),
    cpp(
        "torch::autograd::python::PythonEngine::thread_init(int, "
        "std::shared_ptr<torch::autograd::ReadyQueue> const&, bool)",
        "",
    ),
    cpp("std::error_code::default_error_condition() const"),
    cpp("start_thread", "./nptl/pthread_create.c", 442),
    cpp("__clone3", "./misc/../sysdeps/unix/sysv/linux/x86_64/clone3.S", 81),
)
_TENSORS = "std::vector<at::Tensor, std::allocator<at::Tensor> >"
_NODE_CALL = cpp(f"torch::autograd::Node::operator()({_TENSORS}&&)", "")
_EVALUATE = "_PyEval_EvalFrameDefault"
_N_CALL_SITES = 7
_MAIN = (
    cpp("PyEval_EvalCode"),
    cpp("_PyRun_SimpleFileObject"),
    cpp("_PyRun_AnyFileObject"),
    cpp("Py_RunMain"),
    cpp("Py_BytesMain"),
    cpp("__libc_start_call_main", "./csu/../sysdeps/nptl/libc_start_call_main.h", 58),
    cpp("__libc_start_main_impl", "./csu/../csu/libc-start.c", 392),
    cpp("_start"),
)


def _dispatch(operator: str) -> tuple[Frame, ...]:
    """Lead from an operator's CUDA kernel outwards to its public entry."""
    functor = "c10::impl::wrap_kernel_functor_unboxed_<c10::impl::detail::WrapFunctionIntoFunctor_"
    variable = f"torch::autograd::VariableType::(anonymous namespace)::{operator}"
    wrapper = f"at::(anonymous namespace)::wrapper_CUDA_{operator}"
    options = "c10::ArrayRef<long>, c10::ArrayRef<long>, c10::TensorOptions"
    structured = f"at::(anonymous namespace)::structured_{operator}_functional"
    return (
        cpp(f"at::(anonymous namespace)::create_out({options} const&)", "RegisterCUDA_0.cpp"),
        cpp(f"{structured}::set_output_raw_strided(long, {options})", "RegisterCUDA_0.cpp"),
        cpp("at::TensorIteratorBase::allocate_or_resize_outputs()"),
        cpp("at::TensorIteratorBase::build(at::TensorIteratorConfig&)"),
        cpp(f"at::native::{operator}_cuda(at::Tensor const&, at::Tensor const&)"),
        cpp(f"{wrapper}(at::Tensor const&, at::Tensor const&)", "RegisterCUDA_0.cpp"),
        cpp(f"{functor}<c10::CompileTimeFunctionPointer<&{wrapper}> >::call", "RegisterCUDA_0.cpp"),
        cpp(
            f"at::_ops::{operator}::redispatch(c10::DispatchKeySet, at::Tensor const&, at::Tensor "
            f"const&)"
        ),
        cpp(
            f"{variable}(c10::DispatchKeySet, at::Tensor const&, at::Tensor const&)",
            "VariableType_0.cpp",
        ),
        cpp(
            f"{functor}<c10::CompileTimeFunctionPointer<&{variable}> >::call", "VariableType_0.cpp"
        ),
        cpp(f"at::_ops::{operator}::call(at::Tensor const&, at::Tensor const&)"),
    )


def _binding(operator: str) -> tuple[Frame, ...]:
    """Lead from an operator's public entry out to the Python line that called it."""
    name = f"torch::autograd::THPVariable_{operator}(_object*, _object*, _object*)"
    return (
        cpp(name, "python_torch_functions_0.cpp"),
        cpp("PyCFunction_Call"),
        cpp("_PyObject_MakeTpCall"),
    )


def _interpreter(python: Sequence[Frame]) -> list[Frame]:
    """Put the interpreter's C frames between Python frames, as Python 3.10 has them."""
    frames = []
    for depth, frame in enumerate(python):
        frames += [frame, Frame(_EVALUATE, "??", 0, depth % _N_CALL_SITES)]
        if frame.name == "_wrapped_call_impl":
            frames += [cpp("_PyObject_Call_Prepend"), cpp("PyObject_Call")]
        elif frame.name != "<module>":
            frames.append(Frame("_PyFunction_Vectorcall", "??", 0, depth % _N_CALL_SITES))
    return [*frames, *_MAIN]


class StackTable:
    """Every frame and stack once; a stack is named by its number."""

    def __init__(self, *, has_cpp: bool) -> None:
        self._has_cpp = has_cpp
        self._frame_ids: dict[Frame, int] = {}
        self._stack_ids: dict[tuple[int, ...], int] = {}
        self.frames: list[Frame] = []
        self.stacks: list[tuple[int, ...]] = []

    def allocated_by(self, operator: str, python: Sequence[Frame]) -> int:
        """Give the stack of an operator that a line of Python called."""
        return self._stack(_MALLOC + _dispatch(operator) + _binding(operator), python)

    def workspace_of(self, operator: str, python: Sequence[Frame]) -> int:
        """Give the stack of the cuBLAS workspace that an operator is the first to need."""
        return self._stack(_MALLOC + _WORKSPACE + _dispatch(operator) + _binding(operator), python)

    def dropped_at(self, python: Sequence[Frame]) -> int:
        """Give the stack of a line of Python that freed a tensor."""
        return self._stack(_FREE + _DROP_FROM_PYTHON, python)

    def allocated_in_backward(self, node: str, operator: str) -> int:
        """Give the stack of an operator that a backward node called, such as ``MulBackward0``."""
        apply = f"torch::autograd::generated::{node}::apply({_TENSORS}&&)"
        return self._engine_stack((*_MALLOC, *_dispatch(operator), cpp(apply), _NODE_CALL))

    def released_in_backward(self, node: str) -> int:
        """Give the stack of a backward node that freed the tensors saved for it."""
        release = f"torch::autograd::generated::{node}::release_variables()"
        reset = cpp("torch::autograd::SavedVariable::reset_data()")
        return self._engine_stack((*_FREE, reset, cpp(release, "")))

    def dropped_in_backward(self) -> int:
        """Give the stack of the engine letting go of a gradient that has been used."""
        return self._engine_stack((*_FREE, cpp(f"{_TENSORS}::~vector()")))

    def _stack(self, native: tuple[Frame, ...], python: Sequence[Frame]) -> int:
        return self._intern([*native, *_interpreter(python)] if self._has_cpp else python)

    def _engine_stack(self, native: tuple[Frame, ...]) -> int:
        return self._intern([*native, *_ENGINE] if self._has_cpp else [])

    def _intern(self, frames: Sequence[Frame]) -> int:
        frame_ids = tuple(self._frame_id(frame) for frame in frames)
        stack_id = self._stack_ids.setdefault(frame_ids, len(self.stacks))
        if stack_id == len(self.stacks):
            self.stacks.append(frame_ids)
        return stack_id

    def _frame_id(self, frame: Frame) -> int:
        frame_id = self._frame_ids.setdefault(frame, len(self.frames))
        if frame_id == len(self.frames):
            self.frames.append(frame)
        return frame_id
