"""The user's program -> what it ended with: what it raised, and the exit code that Python would have."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from snapconv.errors import RecorderError
from snapconv.recorder.program import own_frames, script_signals

# As shells count: 128 plus the number of SIGINT.
_INTERRUPTED = 130

# What a shell is given for ``sys.exit(2**70)``: CPython takes a number that is no C long for -1.
_NO_C_LONG = 255

# A name, since mypy takes what follows a comparison of the version itself for unreachable.
_TAKES_TUPLES_APART: bool = sys.version_info < (3, 12)


class Stop(BaseException):
    """Ends the program once the capture is complete; no ``except Exception`` of the user's holds it up."""


def outcome(run: Callable[..., Any], *arguments: Any) -> tuple[BaseException | None, Any]:
    """Run the user's program; return what it raised, our frames taken out, and what ``run`` returned."""
    try:
        with _tuples_as_they_are():
            try:
                result = run(*arguments)
            finally:
                script_signals.program_ends()
        return None, result
    except Stop:
        return None, None
    except BaseException as error:  # noqa: BLE001  # handed on by the caller, as it is
        own_frames.clean_traceback(error)
        return error, None


def exit_code_of(raised: BaseException | None) -> int:
    """Return the code that Python itself would end with."""
    if raised is None:
        return 0
    if isinstance(raised, SystemExit):
        code = exit_argument(raised)
        if isinstance(code, int):
            return int(code) & 0xFF if -(1 << 63) <= code < 1 << 63 else _NO_C_LONG
        return 0 if code is None else 1
    if type(raised) is KeyboardInterrupt:  # one of a subclass is an error as any other
        return _INTERRUPTED
    return raised.exit_code if isinstance(raised, RecorderError) else 1


def exit_argument(raised: SystemExit) -> object:
    """Return what ``sys.exit`` was given; the exception itself where a class of the program's fails."""
    try:
        return raised.code
    except Exception:  # noqa: BLE001  # the program's
        return raised


def text_of(value: object) -> str:
    """Return a value's text, as Python shows exceptions: one without a text does not hold up anything."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # the program's
        return "<exception str() failed>"


@contextmanager
def _tuples_as_they_are() -> Iterator[None]:
    """Keep what ``sys.exit(())`` was given.

    Up to 3.11, Python prints the tuple and ends with 1, unless something catches the exception before: then
    the tuple is taken for its arguments. We do catch it.
    """
    real = sys.exit
    if not _TAKES_TUPLES_APART:
        yield
        return

    @wraps(real)
    def exit_(status: Any = None, /) -> Any:
        if type(status) is tuple:
            raise SystemExit(status)
        real(status)

    sys.exit = exit_
    try:
        yield
    finally:
        if sys.exit is exit_:
            sys.exit = real
