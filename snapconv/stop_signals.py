"""Signals that end a command: Ctrl-C, and those of a scheduler, `kill` or a closed terminal.

A signal raises an exception wherever Python is, so that everything is tidied up. NumPy 2.4 clears
one that comes while it looks up an attribute of an enum's member, and Python one that comes in a
finalizer or in the callback of a weak reference, as after an import: then the work goes on. So a
signal is remembered too, and raised again where a stage ends. A second one that comes at once, as
of a person who presses Ctrl-C twice, must not interrupt the tidying up.
"""

import functools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import ParamSpec, TypeVar

# Shells add it to the number of the signal: 130 is the exit code after Ctrl-C.
BY_SIGNAL = 128
# SIGHUP is not on Windows.
STOPPING = tuple(
    number for number in signal.Signals if number.name in ("SIGTERM", "SIGHUP")
)
_AS_PYTHON_STARTS = (signal.SIG_DFL, signal.default_int_handler)

_Values = ParamSpec("_Values")
_Result = TypeVar("_Result")

# Tidying up takes less.
_AT_ONCE_S = 2.0
_remembered: list[int] = []
# One entry for each block that holds signals back; functions that get the exit code of a signal.
_holds: list[None] = []
_endings: list[Callable[[int], object]] = []


@contextmanager
def signals_raise(*, is_program: bool) -> Iterator[None]:
    """Let signals raise SystemExit, and Ctrl-C KeyboardInterrupt.

    A signal that is ignored, or has a handler already, stays so. ``is_program``: a program of the
    user runs in this process; Ctrl-C is its own affair, and so is an exception that it catches.
    """
    last_s = -_AT_ONCE_S

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last_s
        for end in _endings:
            end(BY_SIGNAL + number)
        if not is_program:
            _remembered.append(number)
            previous_s = last_s
            last_s = time.monotonic()
            # A finalizer is let finish: it frees memory, or closes a file.
            is_finalizing = frame is not None and frame.f_code.co_name == "__del__"
            if _holds or is_finalizing or last_s - previous_s < _AT_ONCE_S:
                return
        raise _exception(number)

    numbers = STOPPING if is_program else (*STOPPING, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    replaced = [
        number for number, handler in before.items() if handler in _AS_PYTHON_STARTS
    ]
    try:
        for number in replaced:
            signal.signal(number, stop)
        with nullcontext() if is_program else _lost_signals_print_nothing():
            yield
    finally:
        for number in replaced:
            signal.signal(number, before[number])
        _remembered.clear()
        _endings.clear()


@contextmanager
def _lost_signals_print_nothing() -> Iterator[None]:
    """Let Python print no traceback of a signal's exception that it clears: it is raised again."""
    before = sys.unraisablehook

    def report(unraisable: "sys.UnraisableHookArgs") -> None:
        if not (
            _remembered and isinstance(unraisable.exc_value, SystemExit | KeyboardInterrupt)
        ):
            before(unraisable)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


def let_signals_call(end: Callable[[int], object]) -> None:
    """Let signals call a function with the exit code: an event loop can raise none of them."""
    _endings.append(end)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Raise a signal that comes meanwhile at the end, and hold Ctrl-C back from new processes.

    A terminal sends Ctrl-C to every process; one that still imports its modules answers with a
    traceback.
    """
    _holds.append(None)
    let_ctrl_c_in(is_wanted=False)
    try:
        yield
    finally:
        let_ctrl_c_in(is_wanted=True)
        _holds.clear()
        raise_remembered()  # also in place of what followed from it, such as a worker that it ended


def let_ctrl_c_in(*, is_wanted: bool) -> None:
    """Let Ctrl-C reach this thread, and the processes that it starts, or not."""
    if sys.platform != "win32":
        action = signal.SIG_UNBLOCK if is_wanted else signal.SIG_BLOCK
        signal.pthread_sigmask(action, {signal.SIGINT})


def raise_remembered() -> None:
    """Raise again the last signal of a command that goes on all the same."""
    if _remembered:
        raise _exception(_remembered[-1])


def stage(function: Callable[_Values, _Result]) -> Callable[_Values, _Result]:
    """Make a function a stage: at its end a signal is raised whose exception was lost in it."""

    @functools.wraps(function)
    def run(*values: _Values.args, **keywords: _Values.kwargs) -> _Result:
        result = function(*values, **keywords)
        raise_remembered()
        return result

    return run


def _exception(number: int) -> BaseException:
    return (
        KeyboardInterrupt() if number == signal.SIGINT else SystemExit(BY_SIGNAL + number)
    )
