"""Our own work inside a user program: it must neither break the program nor run twice.

Whatever torch calls of ours is made here. What goes wrong in it is kept, and turns one feature of
the recording off; the program's own functions are called once, as it called them, and what they
raise passes.
"""

import functools
import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from snapconv.guest.own_frames import (
    calls_original,
    has_interrupted,
    is_for_program,
    is_ours,
    stands_in,
)
from snapconv.guest.replacement import replaced
from snapconv.guest.script_signals import deliver_waiting, waiting
from snapconv.guest.torch_surface import Changed, Feature
from snapconv.notes import Note

_Result = TypeVar("_Result")

_MAX_MESSAGE = 200


def is_fault(error: BaseException) -> bool:
    """Return whether an exception out of our work is a fault of ours: Ctrl-C is none."""
    return isinstance(error, Exception) and not is_for_program(error)


@dataclass(slots=True, eq=False)
class OriginalCall:
    """The program's original call: it runs at most once, and its result or exception is kept."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    is_done: bool = False
    raised: BaseException | None = None
    _result: Any = None

    @calls_original
    def __call__(self, *_: Any, **__: Any) -> Any:
        """Run it, with the program's own arguments; another time, return what it returned."""
        if self.is_done:
            if self.raised is not None:
                raise self.raised
            return self._result
        self.is_done = True
        try:
            self._result = self.function(*self.arguments, **self.keywords)
        except BaseException as error:
            self.raised = error
            raise
        return self._result


class _BrokenOff(RuntimeError):
    """An exception for the program interrupted our work; the text is its name: SystemExit."""


class Guard:
    """Runs our work for one feature: in the process that made it only, and with our failures kept.

    ``failure`` is the first of them, and ``report`` has as text where it happened: a kept traceback
    would hold the program's frames, and with them its tensors, for as long as it runs. After a
    failure nothing more is run: what it left is not to be trusted. ``lacking`` is what torch does
    not have, so that nothing is run at all.
    """

    failure: Exception | None = None
    report = location = ""
    # The cost of a failure, where more is known of it than by the feature.
    cost = ""
    lacking = ""

    def __init__(self, feature: Feature = Feature.MEMORY) -> None:
        self._pid = os.getpid()
        self.feature = feature

    @property
    def is_child(self) -> bool:
        """Whether this is a forked child of the process that records."""
        return os.getpid() != self._pid

    @property
    def is_off(self) -> bool:
        """Whether nothing is run: left out, failed, or in a forked child."""
        return bool(self.failure is not None or self.lacking or os.getpid() != self._pid)

    def run(self, work: Callable[..., _Result], /, *arguments: Any) -> _Result | None:
        """Do a piece of work; None where it failed, or may not run."""
        if self.is_off:
            return None
        with self:
            return work(*arguments)
        return None

    def __enter__(self) -> None:
        """Begin a piece of work of ours."""

    def __exit__(self, _kind: Any, failure: BaseException | None, _trace: Any) -> bool:
        """Keep a failure of ours; what the program must get passes."""
        return failure is not None and self.takes(failure)

    def takes(self, failure: BaseException) -> bool:
        """Keep a failure of ours and return True; return False for one that the program must get.

        Where the program's exception interrupted our work, the feature ends: it may be half
        updated.
        """
        if is_fault(failure):
            self.keep(failure)
            return True
        if has_interrupted(failure):
            self.keep(_BrokenOff(type(failure).__name__))
        return False

    def keep(self, failure: BaseException) -> None:
        """Keep a failure of ours, unless there is one already: the feature is off from here on."""
        if self.failure is None and isinstance(failure, Exception):
            self.report = "".join(traceback.format_exception(failure))
            self.location = _location(failure)
            self.failure = failure
        # Keep nothing of the stack with it; what it happened during may be the program's.
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None

    def enter(
        self, parts: ExitStack, make: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        """Enter a context of ours until ``parts`` end; its beginning and its end never raise."""

        def begin() -> None:
            context = make()
            context.__enter__()
            parts.callback(self.finish, lambda: context.__exit__(None, None, None))

        self.run(begin)

    def finish(self, work: Callable[..., object], /, *arguments: Any) -> None:
        """Put something back: that is done after a failure too."""
        with self:
            work(*arguments)

    def hook(self, work: Callable[..., object]) -> Callable[..., None]:
        """Make a hook whose result torch does not use."""

        def hook(*arguments: Any) -> None:
            if not is_read_by_torch():
                self.run(work, *arguments)
                if waiting:
                    deliver_waiting()

        return hook

    def hook_with_result(
        self, work: Callable[..., _Result], otherwise: Callable[..., _Result]
    ) -> Callable[..., Any]:
        """Make a hook whose result torch uses; after a failure ``otherwise`` gives it."""

        @functools.wraps(work)
        def hook(*arguments: Any, **keywords: Any) -> Any:
            with self:
                return work(*arguments, **keywords)
            return otherwise(*arguments, **keywords)

        return hook

    def wrap_call(
        self, original: Callable[..., Any], work: Callable[..., Any], *, like: Any = None
    ) -> Callable[..., Any]:
        """Make a wrapper that runs ``work(call, *arguments)``; ``call()`` is the program's call.

        The wrapper has the name and the docstring of the original, or of ``like``.
        """

        @stands_in
        @functools.wraps(original if like is None else like)
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            # Somebody may have kept this function beyond the recording.
            if is_read_by_torch() or self.is_off:
                return original(*arguments, **keywords)
            call = OriginalCall(original, arguments, keywords)
            result = self._around(call, work)
            if waiting:
                deliver_waiting()
            return result

        return wrapper

    def replaced(
        self,
        holder: Any,
        name: str,
        work: Callable[..., Any],
        *,
        even_if_wrapped: bool = False,
    ) -> AbstractContextManager[None]:
        """Have such a wrapper in the place of a function for a context."""
        wrapper = self.wrap_call(getattr(holder, name), work)
        return replaced(holder, name, wrapper, even_if_wrapped=even_if_wrapped)

    def _around(self, call: OriginalCall, work: Callable[..., Any]) -> Any:
        """Do our work around a call of the program's; where that fails, the call alone."""
        try:
            return work(call, *call.arguments, **call.keywords)
        except BaseException as failure:
            if failure is call.raised or not self.takes(failure):
                call.raised = None  # it holds the frames that hold it
                raise
        try:
            return call()
        finally:
            call.raised = None


class Guards:
    """The guards of a recording, one for each feature, made on demand."""

    def __init__(self) -> None:
        self._guards: dict[Feature, Guard] = {}

    def of(self, feature: Feature) -> Guard:
        """Return the guard of a feature."""
        return self._guards.setdefault(feature, Guard(feature))

    def changed(self) -> Changed:
        """Return the features that are left out, each with what this torch lacks."""
        guards = self._guards.items()
        return {feature: guard.lacking for feature, guard in guards if guard.lacking}

    def notes(self) -> tuple[Note, ...]:
        """Say which features a fault of ours has ended."""
        guards = list(self._guards.values())
        return tuple(fault_note(guard) for guard in guards if guard.failure is not None)


def fault_note(guard: Guard) -> Note:
    """Say what a failure costs, in one line."""
    failure = guard.failure
    cost = guard.cost or _COSTS.get(guard.feature, _DEFAULT_COST)
    if isinstance(failure, _BrokenOff):
        cause = f"{failure}, raised in the midst of snapconv's work,"
        request = ""
    else:
        cause = "a fault of snapconv"
        text = " ".join(f"{type(failure).__name__}: {failure}".split())
        request = (
            f". The program ran on. Please report {text[:_MAX_MESSAGE]} ({guard.location})"
        )
    message = (
        f"{cause} ended one part of the recording, {guard.feature.value}: {cost}{request}"
    )
    return Note("recorder-fault", message)


_COSTS = {
    Feature.MEMORY: "nothing is recorded from there on",
    Feature.SIMULATION: "allocations may be missing: peaks may be too low",
    Feature.NOTES: "names of weights and recorded categories end there; bytes are as recorded",
}
_DEFAULT_COST = "they are missing from there on; bytes are as recorded"


def is_read_by_torch() -> bool:
    """Return whether torch.compile or torch.jit.trace reads the program.

    Nothing of ours may be in what they make of it.
    """
    import torch

    return bool(torch.compiler.is_compiling() or torch._C._is_tracing())


def _location(failure: BaseException) -> str:
    """Name the innermost line of ours that a failure came through."""
    for frame in reversed(traceback.extract_tb(failure.__traceback__)):
        if is_ours(frame.filename):
            return f"{Path(frame.filename).name}, line {frame.lineno}"
    return "outside of snapconv"
