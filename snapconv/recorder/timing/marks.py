"""Points in time and stacks: taken at a call in a microsecond, read when the iteration is over.

On a GPU a mark is a CUDA event: making one waits for nothing, and what lies between two is known
once the device has come past the second. Without one a mark is the processor's time. torch gathers
a stack, and it is put into words afterwards.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeAlias

from snapconv.guest.own_frames import users_frames
from snapconv.recorder.environment import is_capturing_graph


class CpuClock:
    """The processor's clock: a mark has been reached when it is made, and nothing is waited for."""

    # No method of ours around it: a call of one would take longer than the call it makes.
    mark = staticmethod(time.perf_counter_ns)

    @staticmethod
    def can_mark(*_: int) -> bool:
        """Say yes, as ``was_reached`` does: the time of a mark is over when it is made."""
        return True

    was_reached = can_mark

    @staticmethod
    def settle() -> None:
        """Do nothing, as ``forget`` does: there is nothing to wait for or to keep."""

    forget = settle

    def ms(self, begin: int, end: int) -> float:
        """Return the milliseconds between two marks."""
        return (end - begin) / 1e6


class CudaClock:
    """Events on the device's current stream, used again in the next iteration.

    The stream is the calling thread's, which in a thread of autograd's engine is the one that the
    node's kernels go to. An event is only created where none is left over: creating takes longer
    than recording, and falls into the warm-up.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._pid = os.getpid()
        self._free: list[Any] = []
        self._used: list[Any] = []

    def mark(self) -> Any:
        """Record an event."""
        import torch

        try:  # with several devices, several threads of the engine come here
            event = self._free.pop()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._used.append(event)
        return event

    def can_mark(self) -> bool:
        """Say no in a forked child, where CUDA refuses everything, and during graph capture."""
        return os.getpid() == self._pid and not is_capturing_graph()

    def ms(self, begin: Any, end: Any) -> float:
        """Return the milliseconds between two events; CUDA resolves half a microsecond."""
        return float(begin.elapsed_time(end))

    def was_reached(self, mark: Any) -> bool:
        """Ask whether the device is past an event."""
        return bool(mark.query())

    def settle(self) -> None:
        """Wait for the device."""
        import torch

        torch.cuda.synchronize(self._device)

    def forget(self) -> None:
        """Put the events back for the next iteration."""
        self._free += self._used
        self._used.clear()


# A mark is anything, and only its clock can read it.
Clock: TypeAlias = CpuClock | CudaClock


# The function of torch that calls our mode: its frames exist only because of it.
_CALLER_OF_MODES = "handle_torch_function"

# filename, line (0: not known), function, whether ``self`` is an nn.Module there
Frame = tuple[str, int, str, bool]


class StackRecorder:
    """Gathers stacks and interns those that are requested: leaf first, without frames of ours."""

    def __init__(self) -> None:
        import torch

        self._profiler = torch._C._profiler
        self._module_type: type = torch.nn.Module
        self._module_call: CodeType = torch.nn.Module._call_impl.__code__
        self._ids: dict[tuple[tuple[str, int, str], ...], int] = {}

    def gather(self) -> tuple[Any, Any]:
        """Return the stack, for ``ids``, and the innermost module that is being called, if any.

        Of all frames only that of the module's call is read for its variables: reading those of the
        user's frames keeps values alive (before Python 3.13), and a step would need more memory
        than without us.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._module_call:
            frame = frame.f_back
        module = None if frame is None else frame.f_locals["self"]
        return self._profiler.gather_traceback(python=True, script=False, cpp=False), module

    def ids(self, gathered: Sequence[Any]) -> list[int]:
        """Return the ids of stacks: their places in ``stacks``."""
        return [
            self._id(raw) for raw in self._profiler.symbolize_tracebacks(list(gathered))
        ]

    def _id(self, raw: list[dict[str, Any]]) -> int:
        frames = tuple(
            (frame["filename"], max(int(frame["line"]), 0), frame["name"])
            for frame in users_frames(raw)
            if frame["name"] != _CALLER_OF_MODES
        )
        return self._ids.setdefault(frames, len(self._ids))

    def stacks(self) -> list[list[Frame]]:
        """Return all stacks that have an id; this takes a quarter of a second."""
        method_lines = lines_of_methods(self._module_type)

        def add_flag(frame: tuple[str, int, str]) -> Frame:
            filename, line, name = frame
            ranges = method_lines.get((filename, name), ())
            return (*frame, any(first <= line <= last for first, last in ranges))

        return [list(map(add_flag, frames)) for frames in self._ids]


# The first and last lines of the functions of one name in a file
Lines = dict[tuple[str, str], list[tuple[int, int]]]


def lines_of_methods(base: type) -> Lines:
    """Return the lines where a variable ``self`` is an instance of a class or its subclasses.

    A function inside of a method counts if it uses that ``self``, and so do a subclass's other
    bases.
    """
    method_lines: Lines = defaultdict(list)
    classes = [base]
    known_classes = {base}
    for kind in classes:  # grows as it goes
        subclasses: list[type] = type.__subclasses__(kind)
        new_classes = [subclass for subclass in subclasses if subclass not in known_classes]
        known_classes.update(new_classes)
        classes += new_classes
        for owner in kind.__mro__[:-1]:
            for value in vars(owner).values():
                function = value.fget if isinstance(value, property) else value
                _add_function(function, method_lines)
    return dict(method_lines)


def _add_function(function: Any, method_lines: Lines) -> None:
    """Add a function, and the one that a decorator has wrapped."""
    while isinstance(function, FunctionType):
        code = function.__code__
        if "self" in code.co_varnames[: code.co_argcount]:
            _add_code(code, method_lines)
        function = vars(function).get("__wrapped__")


def _add_code(code: CodeType, method_lines: Lines) -> None:
    lines = [line for _, _, line in code.co_lines() if line]
    if lines:
        method_lines[code.co_filename, code.co_name].append((min(lines), max(lines)))
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and "self" in constant.co_freevars:
            _add_code(constant, method_lines)
