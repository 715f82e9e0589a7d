"""The user's program -> what it ended with: what it raised, and the exit code that Python would have."""

from collections.abc import Callable
from typing import Any

from snapconv.errors import RecorderError
from snapconv.recorder.program import own_frames, script_signals

# As shells count: 128 plus the number of SIGINT.
_INTERRUPTED = 130

# What a shell is given for ``sys.exit(2**70)``: CPython takes a number that is no C long for -1.
_NO_C_LONG = 255


class Stop(BaseException):
    """Ends the program once the capture is complete; no ``except Exception`` of the user's holds it up."""


def outcome(run: Callable[..., Any], *arguments: Any) -> tuple[BaseException | None, Any]:
    """Run the user's program; return what it raised, our frames taken out, and what ``run`` returned."""
    try:
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
    match raised:
        case None:
            return 0
        case SystemExit(code=None):
            return 0
        case SystemExit(code=int(code)):
            return code & 0xFF if -(1 << 63) <= code < 1 << 63 else _NO_C_LONG
        case KeyboardInterrupt():
            return _INTERRUPTED
        case RecorderError():
            return raised.exit_code
    return 1
