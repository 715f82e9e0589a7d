"""Signals that end a command: Ctrl-C, and what a scheduler, `kill` or a terminal that is closed sends.

A signal raises an exception wherever Python is, so that everything is tidied up. NumPy 2.4 clears one that
comes while it looks up an attribute of an enum's member, and Python one that comes in a finalizer: then the
work goes on. So a signal is remembered too, and raised again where a stage ends.
"""

import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, ParamSpec, TypeVar

# As shells count: 128 plus the number of the signal; 130 for Ctrl-C.
BY_SIGNAL = 128
# SIGHUP is not on Windows.
STOPPING = tuple(number for number in signal.Signals if number.name in ("SIGTERM", "SIGHUP"))
_AS_PYTHON_STARTS = (signal.SIG_DFL, signal.default_int_handler)

_Values = ParamSpec("_Values")
_Result = TypeVar("_Result")

_remembered: list[int] = []


@contextmanager
def signals_raise(*, is_program: bool) -> Iterator[None]:
    """Let signals raise SystemExit, and Ctrl-C KeyboardInterrupt; one that is ignored or handled stays so.

    ``is_program``: a program of the user runs in this process. Ctrl-C is its own affair, and so is what it
    does with an exception that it catches.
    """

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        if not is_program:
            _remembered.append(number)
        raise _exception(number)

    numbers = STOPPING if is_program else (*STOPPING, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    ours = [number for number, handler in before.items() if handler in _AS_PYTHON_STARTS]
    try:
        for number in ours:
            signal.signal(number, stop)
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
        _remembered.clear()


def raise_remembered() -> None:
    """Raise again the last signal of a command that goes on all the same."""
    if _remembered:
        raise _exception(_remembered[-1])


def stage(function: Callable[_Values, _Result]) -> Callable[_Values, _Result]:
    """Make a function a stage: at its end a signal is raised whose exception was lost in it."""

    @functools.wraps(function)
    def run(*values: _Values.args, **named: _Values.kwargs) -> _Result:
        result = function(*values, **named)
        raise_remembered()
        return result

    return run


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(BY_SIGNAL + number)
