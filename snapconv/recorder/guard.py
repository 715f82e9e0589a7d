"""Our own work inside somebody else's program: it must neither break theirs nor run twice."""

import os
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Guard:
    """Runs our work: in the process that made it only, and with our failures kept, not thrown.

    ``failure`` is the first of them, and ``report`` says as text where it happened: a kept traceback would
    hold the program's frames, and with them its tensors, for as long as it runs. After a failure nothing more
    is run: what it left is not to be trusted.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.failure: Exception | None = None
        self.report = ""

    @property
    def is_child(self) -> bool:
        """Whether this is a forked child of the process that records."""
        return os.getpid() != self._pid

    def run(self, work: Callable[..., _Result], /, *arguments: Any) -> _Result | None:
        """Do a piece of work; None where it failed, or may not run.

        Only Exceptions are kept: Ctrl-C and the like are meant for the program.
        """
        if self.failure is not None or self.is_child:
            return None
        try:
            return work(*arguments)
        except Exception as failure:  # noqa: BLE001  # whatever it is, it is not theirs
            self.report = "".join(traceback.format_exception(failure))
            self.failure = failure
            _forget_frames(failure)
            return None


def _forget_frames(error: BaseException | None) -> None:
    """Take the tracebacks off an exception and off all that led to it."""
    while error is not None:
        error.__traceback__ = None
        error.__cause__, error.__context__, error = None, None, error.__context__
