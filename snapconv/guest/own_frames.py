"""The border between the recorder's frames and the user's, in stacks and in tracebacks.

User code is entered in one place, ``call_user``. What lies outside of it, and every other frame of
this package, is nothing that the user wrote: a snapshot and a traceback look as without us.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum, auto
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Error = TypeVar("_Error", bound=BaseException)

# As the import system writes it: on Windows it may mix slashes, and Path would change them.
_MODULE = os.path.join("guest", "own_frames.py")  # noqa: PTH118
_PACKAGE = __file__.removesuffix(_MODULE)
_THIS_FILE = __file__
_COMMANDS = os.path.join(_PACKAGE, "cli")  # noqa: PTH118
# The outermost function that runs Python code, in C.
_START = "PyEval_EvalCode"


class _Calls(Enum):
    """Whom a function of ours calls; a member is the decorator that declares such a function."""

    # It calls the user's program.
    PROGRAM = auto()
    # It stands in for a function of the program's or of torch's, and calls that for its caller.
    ORIGINAL = auto()
    # It calls that function too, on behalf of the function of ours that stands in for it.
    ORIGINAL_WITHIN = auto()

    def __call__(self, function: _Function) -> _Function:
        _CALLS[function.__code__] = self
        return function


_CALLS: dict[CodeType, _Calls] = {}
runs_program = _Calls.PROGRAM
stands_in = _Calls.ORIGINAL
calls_original = _Calls.ORIGINAL_WITHIN


def is_in_our_work(frame: FrameType | None) -> bool:
    """Return whether a frame runs work of ours, not the program's within functions of ours.

    The callers decide, from the innermost outwards: one of ours that is not declared has work done
    for us, and ``call_user`` for the program. A function that stands in passes a call on, so who
    called it decides.
    """
    if frame is not None and is_ours(frame.f_code.co_filename):
        return True
    while frame is not None:
        if is_ours(frame.f_code.co_filename):
            calls = _CALLS.get(frame.f_code)
            if calls is None:
                return True
            if calls is _Calls.PROGRAM:
                return False
            frame = _frame_that_stands_in(frame)
        frame = frame and frame.f_back
    return False


def _frame_that_stands_in(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, from this one outwards, of a function that stands in."""
    while frame is not None and _CALLS.get(frame.f_code) is not _Calls.ORIGINAL:
        frame = frame.f_back
    return frame


def for_program(error: _Error, *, interrupts: bool = False) -> _Error:
    """Mark an exception that must reach the program.

    ``interrupts``: it was raised in the midst of our work, which is left half done.
    """
    with suppress(Exception):  # a class may forbid it
        is_interrupt = interrupts or has_interrupted(error)
        error._snapconv_interrupts = is_interrupt  # type: ignore[attr-defined]
    return error


def is_for_program(error: BaseException) -> bool:
    """Return whether ``for_program`` has marked an exception."""
    return hasattr(error, "_snapconv_interrupts")


def has_interrupted(error: BaseException) -> bool:
    """Return whether an exception for the program was raised in the midst of our work."""
    return getattr(error, "_snapconv_interrupts", False)


@runs_program
def call_user(function: Callable[..., _Result], /, *arguments: Any) -> _Result:
    """Call the user's code; this frame is where every stack is cut."""
    return function(*arguments)


def is_ours(filename: str) -> bool:
    """Return whether a frame's file belongs to snapconv itself."""
    return filename.startswith(_PACKAGE)


def program_frames() -> Iterator[FrameType]:
    """Return the frames of the running program, innermost first.

    None of them is ours, and none is outside of the program.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not call_user.__code__:
        filename = frame.f_code.co_filename
        if filename.startswith(_COMMANDS):  # the program is over
            return
        if not is_ours(filename):
            yield frame
        frame = frame.f_back


def clean_snapshot(raw_snapshot: dict[str, Any]) -> None:
    """Take our frames out of every stack of a snapshot, in place; shared lists stay shared."""
    cleaned: dict[int, tuple[list[Any], list[Any]]] = {}
    for holder in holders(raw_snapshot):
        frames = holder.get("frames")
        if not frames:
            continue
        if id(frames) not in cleaned:
            # The former list is kept beside the new one, so that no other object has its id
            # meanwhile.
            cleaned[id(frames)] = frames, users_frames(frames)
        holder["frames"] = cleaned[id(frames)][1]


def holders(raw_snapshot: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all that may have a stack in a snapshot: segments, their blocks, and events."""
    for segment in (
        *raw_snapshot.get("segments", ()),
        *raw_snapshot.get("host_segments", ()),
    ):
        yield segment
        yield from segment.get("blocks", ())
    for trace in (
        *raw_snapshot.get("device_traces", ()),
        raw_snapshot.get("host_traces", ()),
    ):
        yield from trace


def users_frames(frames: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the frames of a stack, leaf first, that are there without us."""
    user_frames: list[dict[str, Any]] = []
    for i, frame in enumerate(frames):  # leaf first
        if frame["filename"] == _THIS_FILE and frame["name"] == call_user.__name__:
            # The frames that start Python are there without us, too.
            names = [outer_frame["name"] for outer_frame in frames[i:]]
            if _START in names:
                user_frames += frames[i + names.index(_START) :]
            break
        if not is_ours(frame["filename"]):
            user_frames.append(frame)
    return user_frames


def clean_traceback(error: BaseException) -> None:
    """Take our frames out of an exception's tracebacks.

    ``python -X dev`` keeps them, to find our faults.
    """
    if sys.flags.dev_mode:
        return
    for link in chain(error):
        link.__traceback__ = _cleaned(link.__traceback__)


def chain(error: BaseException) -> list[BaseException]:
    """Return an exception and all its causes and contexts, each once."""
    links: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        link = waiting.pop()
        if not isinstance(link, BaseException) or any(link is former for former in links):
            continue
        links.append(link)
        waiting += [link.__cause__, link.__context__]
        # An ExceptionGroup has members, from Python 3.11 on.
        members = getattr(link, "exceptions", None)
        if isinstance(members, tuple):
            waiting += members
    return links


def _cleaned(traceback: TracebackType | None) -> TracebackType | None:
    links = []
    while traceback is not None:
        if not is_ours(traceback.tb_frame.f_code.co_filename):
            links.append(traceback)
        traceback = traceback.tb_next
    cleaned: TracebackType | None = None
    for link in reversed(links):
        cleaned = TracebackType(cleaned, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return cleaned
